package main

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// How long the agent that froze a process may take to let it go.
const healPatience = 5 * time.Second

// heal ends a fault of this Pod that another agent made, or what one left that was killed. Doing it twice changes nothing.
func heal(entry string) (event, error) {
	ended := event{Event: "ended"}
	thawed, err := healProcesses(entry)
	if err != nil {
		return ended, err
	}
	removed, err := healNetwork(entry)
	switch {
	case errors.Is(err, unix.EPERM) && thawed:
		ended.Text = "the frozen processes go on"
		return ended, nil
	case errors.Is(err, unix.EPERM):
		ended.Text = "nothing was frozen any more; not allowed to look at the network"
		return ended, nil
	case err != nil:
		return ended, err
	case thawed:
		ended.Text = "the frozen processes go on"
	case removed:
		ended.Text = "its rules are removed"
	default:
		ended.Text = "nothing of it was left"
	}
	return ended, nil
}

// healNetwork removes an entry's table, and the queueing disciplines if they are of no use any more.
func healNetwork(entry string) (removed bool, err error) {
	kernel, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return false, err
	}
	defer func() { _ = kernel.CloseLasting() }()
	table, err := find(kernel, entry)
	if err != nil {
		return false, err
	}
	if table != nil {
		kernel.DelTable(table)
		if err = kernel.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return false, err
		}
	}
	if err = removeWay(kernel, 0); err != nil {
		return table != nil, err
	}
	if again, err := find(kernel, entry); err != nil || again != nil {
		return table != nil, errors.Join(err, fmt.Errorf("table %s%s is still there", tablePrefix, entry))
	}
	return table != nil, nil
}

// healProcesses tells agents that hold processes for this entry to end, and waits until they have.
func healProcesses(entry string) (found bool, err error) {
	until := time.Now().Add(healPatience)
	for {
		agents, err := holders(entry)
		if err != nil || len(agents) == 0 {
			return found, err
		}
		for _, agent := range agents {
			if !found {
				_ = syscall.Kill(agent, syscall.SIGTERM)
			}
			if time.Now().After(until) {
				// The kernel lets go what its tracer leaves.
				_ = syscall.Kill(agent, syscall.SIGKILL)
			}
		}
		if time.Now().After(until.Add(healPatience)) {
			return true, fmt.Errorf("the agent that holds the processes (%v) does not end", agents)
		}
		found = true
		time.Sleep(10 * time.Millisecond)
	}
}

// holders returns the processes of other agents that freeze something for this entry.
func holders(entry string) ([]int, error) {
	processes, err := list()
	var found []int
	for _, one := range processes {
		if one.isAgent() && one.arguments[1] == "freeze" {
			if at := slices.Index(one.arguments, "--entry"); at > 0 && at+1 < len(one.arguments) && one.arguments[at+1] == entry {
				found = append(found, one.id)
			}
		}
	}
	return found, err
}

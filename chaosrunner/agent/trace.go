package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How often is looked whether a frozen process was ended.
const frozenPoll = 20 * time.Millisecond

// How long threads may take to stand still: one that waits for a disk cannot.
const stillPatience = 2 * time.Second

// freeze stops every thread of the chosen processes, waits for the end, and lets them go on.
//
// By ptrace, since process 1 of a namespace ignores SIGSTOP from inside (pid_namespaces(7)), and since the kernel lets the
// threads go on by itself when the tracer ends, however it does (ptrace(2)).
func freeze(entry string, which choice, limit time.Duration) (event, error) {
	ended := event{Event: "ended"}
	stop := told()
	chosen, err := which.choose()
	if err != nil {
		return ended, err
	}
	// Threads are traced by a thread, not by a process: this one, from here on.
	runtime.LockOSThread()
	held := &tracer{}
	for _, one := range chosen {
		if err := held.seize(one, unix.PTRACE_O_TRACECLONE); err != nil {
			return ended, err // its end lets go what was held
		}
	}
	if err := held.still(); err != nil {
		return ended, err
	}
	over := time.NewTimer(limit)
	tell(event{Event: "set", Entry: entry, Text: fmt.Sprintf("%d threads of %s stand still", len(held.threads), names(chosen))})
	look := time.NewTicker(frozenPoll)
	for len(held.threads) > 0 {
		select {
		case <-over.C:
			ended.Text = "time limit reached"
			return ended, held.release()
		case sig := <-stop:
			ended.Text = "ended by signal " + unix.SignalName(sig.(syscall.Signal))
			return ended, held.release()
		case <-look.C:
			if err := held.collect(); err != nil {
				return ended, err
			}
		}
	}
	ended.Text = names(chosen) + " ended meanwhile"
	return ended, nil
}

// kill sends a signal to the chosen processes.
func kill(entry string, which choice, sig syscall.Signal) (event, error) {
	ended := event{Event: "ended"}
	if sig == unix.SIGSTOP || sig == unix.SIGTSTP {
		return ended, refuse("a stopped process does not go on by itself: use freeze")
	}
	chosen, err := which.choose()
	if err != nil {
		return ended, err
	}
	name := unix.SignalName(sig)
	if name == "" {
		return ended, refuse("there is no signal %d", sig)
	}
	if chosen[0].id == 1 {
		if sig == unix.SIGKILL {
			return ended, killFirst(entry, chosen[0])
		}
		caught, err := catches(1, sig)
		if err != nil {
			return ended, err
		}
		if !caught {
			return ended, refuse("%s has no handler for %s, and the kernel ignores it for process 1 then", chosen[0], name)
		}
	}
	for _, one := range chosen {
		if err := syscall.Kill(one.id, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return ended, mayNot(one, err, "KILL")
		}
	}
	ended.Text = fmt.Sprintf("%s sent to %s", name, names(chosen))
	tell(event{Event: "set", Entry: entry, Text: ended.Text})
	if sig == unix.SIGKILL && gone(chosen) {
		ended.Text = names(chosen) + " killed"
	}
	return ended, nil
}

// gone waits until processes have ended; says whether they have.
func gone(processes []process) bool {
	for until := time.Now().Add(stillPatience); time.Now().Before(until); time.Sleep(frozenPoll) {
		all, err := list()
		left := slices.ContainsFunc(all, func(one process) bool {
			return slices.ContainsFunc(processes, func(was process) bool { return was.id == one.id })
		})
		if err == nil && !left {
			return true
		}
	}
	return false
}

// killFirst kills process 1 of this namespace, which ignores SIGKILL from inside, by ending as its tracer. The kernel then
// ends all processes of the namespace, so this one says beforehand what it does.
func killFirst(entry string, first process) error {
	runtime.LockOSThread()
	if err := (&tracer{}).seize(first, unix.PTRACE_O_EXITKILL); err != nil {
		return err
	}
	tell(event{Event: "set", Entry: entry, Text: "SIGKILL sent to " + first.String()})
	os.Exit(0)
	return nil
}

func names(processes []process) string {
	all := make([]string, len(processes))
	for place, one := range processes {
		all[place] = one.String()
	}
	return strings.Join(all, ", ")
}

// catches says whether a process has a handler for a signal.
func catches(id int, sig syscall.Signal) (bool, error) {
	mask, err := strconv.ParseUint(status(id, "SigCgt:"), 16, 64)
	return mask>>(uint(sig)-1)&1 == 1, err
}

func mayNot(one process, err error, capability string) error {
	if errors.Is(err, unix.EPERM) {
		return refuse("not allowed to touch %s: it needs capability %s, and no other tracer", one, capability)
	}
	return err
}

// A tracer holds threads: by id, how each stands.
type tracer struct{ threads map[int]stand }

// How a thread stands.
type stand struct {
	still bool
	// The signal that it was about to get when it was stopped, to be given to it when it goes on.
	pending int
}

// seize begins to trace every thread of a process, and tells each to stand still. Threads that are made meanwhile are found
// by looking again, or come by themselves where the options say so.
func (t *tracer) seize(one process, options int) error {
	if t.threads == nil {
		t.threads = map[int]stand{}
	}
	for {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", one.id))
		if err != nil {
			return refuse("%s has ended", one)
		}
		found := false
		for _, entry := range entries {
			id, err := strconv.Atoi(entry.Name())
			if _, held := t.threads[id]; held || err != nil {
				continue
			}
			err = ptrace(unix.PTRACE_SEIZE, id, options)
			if err == nil {
				err = ptrace(unix.PTRACE_INTERRUPT, id, 0)
			}
			switch {
			case errors.Is(err, unix.ESRCH):
				continue // it has ended
			case errors.Is(err, unix.EPERM) && tracedBy(id) == unix.Gettid():
				// Made by a thread that was held already, it has come by itself.
			case err != nil:
				return mayNot(one, err, "SYS_PTRACE")
			}
			t.threads[id] = stand{}
			found = true
		}
		if !found {
			return nil
		}
	}
}

// tracedBy returns the tracer of a thread, 0 where there is none.
func tracedBy(id int) int {
	tracer, _ := strconv.Atoi(status(id, "TracerPid:"))
	return tracer
}

// status returns a line of proc_pid_status(5), empty where there is none.
func status(id int, name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", id))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// collect notes which threads stand still by now, which are new, and which have ended.
func (t *tracer) collect() error {
	for {
		var status unix.WaitStatus
		id, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			clear(t.threads)
			return nil
		case err != nil:
			return err
		case id == 0:
			return nil
		case status.Exited() || status.Signaled():
			delete(t.threads, id)
		case status.Stopped():
			now := stand{still: true}
			if event := int(status) >> 16; event == 0 {
				now.pending = int(status.StopSignal())
			}
			t.threads[id] = now
		}
	}
}

// still waits until all threads stand still.
func (t *tracer) still() error {
	until := time.Now().Add(stillPatience)
	for {
		if err := t.collect(); err != nil {
			return err
		}
		moving := 0
		for _, one := range t.threads {
			if !one.still {
				moving++
			}
		}
		if moving == 0 {
			return nil
		}
		if time.Now().After(until) {
			return refuse("%d of %d threads do not stand still within %s", moving, len(t.threads), stillPatience)
		}
		time.Sleep(time.Millisecond)
	}
}

// release lets all threads go on.
func (t *tracer) release() error {
	if err := t.collect(); err != nil {
		return err
	}
	for id, one := range t.threads {
		// One that is being killed cannot be told any more.
		if err := ptrace(unix.PTRACE_DETACH, id, one.pending); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

func ptrace(request, id, data int) error {
	_, _, number := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(id), 0, uintptr(data), 0, 0)
	if number != 0 {
		return number
	}
	return nil
}

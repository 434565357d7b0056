package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A choice of processes: those of one container, by name or its main process.
type choice struct {
	// The runtime's id of the container, without `containerd://`. The processes of all containers are seen here where the
	// Pod shares its process namespace; elsewhere those of the container alone, and its main process is process 1.
	container string
	// A child, by its name (comm) or a word of its command line.
	process string
}

// A process as /proc shows it.
type process struct {
	id, parent int
	name       string
	arguments  []string
	groups     string
}

const nameBytes = 15 // of a process's name; TASK_COMM_LEN without the zero at the end

func (p process) isCalled(name string) bool {
	if p.name == name || len(name) > nameBytes && p.name == name[:nameBytes] {
		return true
	}
	for _, argument := range p.arguments {
		if argument == name || filepath.Base(argument) == name {
			return true
		}
	}
	return false
}

// isAgent says whether it runs this program; its command line tells, as its file may not be looked at without capabilities.
func (p process) isAgent() bool {
	own, err := os.Executable()
	if err != nil || len(p.arguments) < 2 || filepath.Base(p.arguments[0]) != filepath.Base(own) {
		return false
	}
	return slices.Contains([]string{"freeze", "kill", "heal"}, p.arguments[1]) && slices.Contains(p.arguments, "--entry")
}

func (p process) String() string { return fmt.Sprintf("%s (%d)", p.name, p.id) }

// list returns all processes that can be seen but this one.
func list() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []process
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil || id == os.Getpid() {
			continue
		}
		one, err := read(id)
		if err != nil {
			continue // it has ended meanwhile
		}
		found = append(found, one)
	}
	return found, nil
}

func read(id int) (process, error) {
	folder := fmt.Sprintf("/proc/%d/", id)
	stat, err := os.ReadFile(folder + "stat")
	if err != nil {
		return process{}, err
	}
	// The name is in brackets and may have any character: proc_pid_stat(5).
	from, to := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if from < 0 || to < from {
		return process{}, errors.New("no line of /proc/PID/stat")
	}
	fields := strings.Fields(string(stat[to+1:]))
	if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return process{}, errors.New("it has ended")
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, err
	}
	command, err := os.ReadFile(folder + "cmdline")
	if err != nil {
		return process{}, err
	}
	groups, err := os.ReadFile(folder + "cgroup")
	if err != nil {
		return process{}, err
	}
	arguments := strings.FieldsFunc(string(command), func(r rune) bool { return r == 0 })
	return process{id, parent, string(stat[from+1 : to]), arguments, string(groups)}, nil
}

// choose finds the processes that are meant: the main process alone, or all its children of that name.
func (c choice) choose() ([]process, error) {
	all, err := list()
	if err != nil {
		return nil, err
	}
	var inside []process
	for _, one := range all {
		if !one.isAgent() && c.container != "" && strings.Contains(one.groups, c.container) {
			inside = append(inside, one)
		}
	}
	if len(inside) == 0 {
		// Control groups may be hidden. Then all that is seen here is the container, unless the namespace is wider than that.
		for _, one := range all {
			if one.id == 1 && one.name == "pause" || one.id == 2 && one.name == "kthreadd" {
				return nil, refuse("the container shares its process namespace, and which processes are its own cannot be told")
			}
			if !one.isAgent() {
				inside = append(inside, one)
			}
		}
	}
	main, err := mainOf(inside)
	if err != nil {
		return nil, err
	}
	if c.process == "" {
		return []process{main}, nil
	}
	var found []process
	names := make([]string, 0, len(inside))
	for _, one := range inside {
		if one.id != main.id && one.isCalled(c.process) {
			found = append(found, one)
		}
		names = append(names, one.String())
	}
	if len(found) == 0 {
		return nil, refuse("no child of the main process is called %s; there are: %s", c.process, strings.Join(names, ", "))
	}
	return found, nil
}

// mainOf returns the process that was first: process 1, or the one whose parent is in no container of the Pod.
func mainOf(processes []process) (process, error) {
	inside := map[int]bool{}
	for _, one := range processes {
		inside[one.id] = true
	}
	for _, one := range processes {
		if one.id == 1 || !inside[one.parent] {
			return one, nil
		}
	}
	return process{}, refuse("no process of the container is seen here: it needs the container's process namespace (targetContainerName)")
}

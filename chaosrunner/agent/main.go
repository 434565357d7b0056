// Command agent makes one fault beside a container of a Pod, and ends it by itself at its time limit.
//
//	agent network SPEC                                        packets of the Pod are dropped, rejected, lost, delayed, slowed
//	agent freeze --entry ID --for SECONDS [WHICH]             a process stands still
//	agent kill   --entry ID --signal NUMBER [WHICH]           a process gets a signal
//	agent heal   --entry ID                                   ends what another agent of this Pod began
//
// WHICH is [--container CONTAINER-ID] [--process NAME]; the main process of the container where no name is given. With
// --start-by UNIX-SECONDS it refuses to begin later than that.
//
// It tells what happens as one JSON object a line on standard output; the last one is also its termination message.
// It exits with 0 when the fault is over and nothing is left of it, with 2 when the fault cannot be made here (nothing is
// left of it then either), and with 1 when something may be left.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// An event is what the agent tells.
type event struct {
	// set: the fault is there. counted: how many packets it met. ended: it is over. refused: it cannot be made here.
	// failed: it is unknown how much of it is left.
	Event string `json:"event"`
	Entry string `json:"entry,omitempty"`
	// A sentence for people.
	Text string `json:"text,omitempty"`
	// Packets that the fault applies to, and those of them that it dropped, rejected or handed to the slow way.
	Seen *uint64 `json:"seen,omitempty"`
	Hit  *uint64 `json:"hit,omitempty"`
}

// The file whose content the kubelet shows as `terminated.message` of the container's state.
const terminationLog = "/dev/termination-log"

func tell(told event) {
	line, err := json.Marshal(told)
	if err != nil {
		panic(err) // strings and numbers only
	}
	line = append(line, '\n')
	_, _ = os.Stdout.Write(line)
	// Not made where it is missing: then there is no kubelet.
	if file, err := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
		_, _ = file.Write(line)
		_ = file.Close()
	}
}

// A refusal says why a fault cannot be made here. Nothing of it is left.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }

func refuse(format string, values ...any) error { return refusal{fmt.Sprintf(format, values...)} }

func main() {
	ended, err := run(os.Args[1:])
	var refused refusal
	switch {
	case err == nil:
		tell(ended)
	case errors.As(err, &refused):
		tell(event{Event: "refused", Entry: ended.Entry, Text: refused.text})
		os.Exit(2)
	default:
		tell(event{Event: "failed", Entry: ended.Entry, Text: err.Error()})
		os.Exit(1)
	}
}

// run makes the fault, waits for its end and returns what is to be told last.
func run(arguments []string) (event, error) {
	if len(arguments) == 0 {
		return event{}, refuse("say what to do: network, freeze, kill or heal")
	}
	verb, rest := arguments[0], arguments[1:]
	if verb == "network" {
		if len(rest) != 1 {
			return event{}, refuse("network takes one argument, a JSON object")
		}
		return network([]byte(rest[0]))
	}
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	entry := flags.String("entry", "", "name of the fault")
	var seconds, startBy float64
	var number int
	var which choice
	switch verb {
	case "freeze":
		flags.Float64Var(&seconds, "for", 0, "time limit in seconds")
	case "kill":
		flags.IntVar(&number, "signal", int(syscall.SIGKILL), "number of the signal")
	case "heal":
	default:
		return event{}, refuse("%s is none of network, freeze, kill and heal", verb)
	}
	if verb != "heal" {
		flags.StringVar(&which.container, "container", "", "runtime's id of the container")
		flags.StringVar(&which.process, "process", "", "name of a child")
		flags.Float64Var(&startBy, "start-by", 0, "Unix seconds")
	}
	if err := flags.Parse(rest); err != nil {
		return event{}, refuse("%s", err)
	}
	if flags.NArg() > 0 {
		return event{}, refuse("%s is one argument too many", flags.Arg(0))
	}
	if !entryName.MatchString(*entry) {
		return event{}, refuse("--entry wants letters and digits, not %q", *entry)
	}
	ended := event{Entry: *entry}
	if err := inTime(startBy); err != nil {
		return ended, err
	}
	var err error
	switch verb {
	case "freeze":
		if seconds <= 0 {
			return ended, refuse("--for wants a number of seconds above 0")
		}
		ended, err = freeze(*entry, which, duration(seconds))
	case "kill":
		ended, err = kill(*entry, which, syscall.Signal(number))
	case "heal":
		ended, err = heal(*entry)
	}
	ended.Entry = *entry
	return ended, err
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// told returns a channel that says when somebody wants the fault to end.
func told() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return signals
}

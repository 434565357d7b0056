// Command pause keeps the namespaces of a Pod: it is the first process of the Pod's sandbox, does nothing until it is told
// to end, and reaps the children that other containers of the Pod leave to it when they share its process namespace.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for child, err := 1, error(nil); child > 0 && err == nil; {
			child, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"regexp"
	"time"
)

var entryName = regexp.MustCompile(`^[0-9A-Za-z]{1,64}$`)

// A spec says what is to happen to which packets of the Pod.
type spec struct {
	Entry string `json:"entry"`
	// partition, reject, loss, latency or rate.
	Kind string `json:"kind"`
	// Share of packets that get lost in each direction, in percent.
	Percent float64 `json:"percent"`
	// How much later packets leave.
	Seconds float64 `json:"seconds"`
	// By how many seconds that varies, evenly to both sides.
	Jitter        float64 `json:"jitter"`
	BitsPerSecond float64 `json:"bits_per_second"`
	// The other ends; all where there are none.
	Peers []netip.Prefix `json:"peers"`
	// in, out or both: of packets, as the Pod sees them.
	Direction string `json:"direction"`
	// The Pod's own ports; all where there are none.
	Ports []uint16 `json:"ports"`
	// Other ends that are never hit.
	Spare []netip.Prefix `json:"spare"`
	// Whether the next hop of the default routes is never hit either: on many nodes the kubelet's probes come from there.
	SpareGateway bool `json:"spare_gateway"`
	// Time limit in seconds.
	Duration float64 `json:"duration"`
	// Unix seconds after which it is too late to begin; 0: never.
	StartBy float64 `json:"start_by"`
}

func (s *spec) in() bool  { return s.Direction != "out" }
func (s *spec) out() bool { return s.Direction != "in" }

// parse reads a spec, and refuses what it cannot mean.
func parse(text []byte) (*spec, error) {
	var s spec
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return nil, refuse("the argument of network: %s", err)
	}
	if s.Direction == "" {
		s.Direction = "both"
	}
	switch {
	case !entryName.MatchString(s.Entry):
		return nil, refuse("entry wants letters and digits, not %q", s.Entry)
	case s.Direction != "in" && s.Direction != "out" && s.Direction != "both":
		return nil, refuse("direction %q is none of in, out and both", s.Direction)
	case !(s.Duration > 0):
		return nil, refuse("duration wants a number of seconds above 0")
	case s.Kind == "loss" && !(s.Percent > 0 && s.Percent <= 100):
		return nil, refuse("percent wants a number above 0 and up to 100")
	case s.Kind == "latency" && !(s.Seconds > 0 && s.Jitter >= 0 && s.Jitter <= s.Seconds):
		return nil, refuse("seconds wants a number above 0, and jitter no more than that")
	case s.Kind == "latency" && s.Direction == "in":
		return nil, refuse("packets can be delayed on their way out of the Pod only: use direction out or both")
	case s.Kind == "rate" && !(s.BitsPerSecond >= 8):
		return nil, refuse("bits_per_second wants a number of at least 8")
	}
	switch s.Kind {
	case "partition", "reject", "loss", "latency", "rate":
		return &s, nil
	}
	return nil, refuse("kind %q is none of partition, reject, loss, latency and rate", s.Kind)
}

// inTime refuses to begin after `by` (Unix seconds): who asked for the fault may have given it up by then, as a container
// whose image comes late is started all the same.
func inTime(by float64) error {
	if late := float64(time.Now().UnixMilli())/1e3 - by; by > 0 && late > 0 {
		return refuse("started %.1f s too late by this node's clock", late)
	}
	return nil
}

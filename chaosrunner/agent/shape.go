package main

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What leaves the Pod is delayed, slowed or lost by a class of a queueing discipline (htb) on each of its interfaces. Rules
// put packets into that class by their priority; all others pass htb as if it were not there. So it does nothing any more
// once the rules do not.
const (
	major = 0xc4a0
	// A class needs a rate, in bit/s: about the greatest that 32 bits can say in bytes.
	everything = 30_000_000_000
	// Most of what a slow way holds back, in seconds of its rate.
	heldSeconds = 0.4
	// How much a slow way lets pass at once, in seconds of its rate, and bytes at the least.
	burstSeconds  = 0.02
	smallestBurst = 4096
	// Most packets on a delayed way: those of 10 Gbit/s during a second.
	delayedPackets = 1_000_000
	ethernetHeader = 14
)

// addWay makes the class for a fault on each interface, and returns what it is called. On an error nothing of it is left.
func addWay(s *spec) (way uint32, err error) {
	links, err := interfaces()
	if err != nil {
		return 0, cannot(err, "the Pod's interfaces cannot be read")
	}
	var roots []netlink.Link
	minor := uint16(1)
	for _, link := range links {
		root, used, err := lookAt(link)
		if err != nil {
			return 0, cannot(err, "the queueing disciplines cannot be read")
		}
		if !root {
			roots = append(roots, link)
		}
		minor = max(minor, used+1)
	}
	var added []func() error
	defer func() {
		for place := len(added); err != nil && place > 0; place-- {
			if left := added[place-1](); left != nil {
				err = fmt.Errorf("%s; what was made before cannot be removed: %s", err, left)
			}
		}
	}()
	for _, link := range roots {
		root := netlink.NewHtb(netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(major, 0), Parent: netlink.HANDLE_ROOT,
		})
		if err = netlink.QdiscAdd(root); err != nil {
			return 0, lacks(err, "htb")
		}
		added = append(added, func() error { return netlink.QdiscDel(root) })
	}
	way = netlink.MakeHandle(major, minor)
	for _, link := range links {
		class := netlink.NewHtbClass(
			netlink.ClassAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.MakeHandle(major, 0), Handle: way},
			netlink.HtbClassAttrs{Rate: everything, Quantum: math.MaxUint16},
		)
		if err = netlink.ClassAdd(class); err != nil {
			return 0, lacks(err, "htb")
		}
		added = append(added, func() error { return netlink.ClassDel(class) })
		if err = netlink.QdiscAdd(leaf(s, link, way)); err != nil {
			return 0, lacks(err, leaf(s, link, way).Type())
		}
	}
	return way, nil
}

// leaf is what happens to packets of the class.
func leaf(s *spec, link netlink.Link, way uint32) netlink.Qdisc {
	attributes := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: way}
	switch s.Kind {
	case "latency":
		return netlink.NewNetem(attributes, netlink.NetemQdiscAttrs{
			Latency: microseconds(s.Seconds), Jitter: microseconds(s.Jitter), Limit: delayedPackets,
		})
	case "rate":
		bytes := s.BitsPerSecond / 8
		frame := float64(link.Attrs().MTU) + ethernetHeader
		burst := max(burstSeconds*bytes, smallestBurst, frame)
		return &netlink.Tbf{
			QdiscAttrs: attributes,
			Rate:       uint64(max(1, bytes)),
			Limit:      uint32(min(math.MaxUint32, heldSeconds*bytes+burst)),
			Buffer:     netlink.Xmittime(uint64(max(1, bytes)), uint32(min(math.MaxUint32, burst))),
		}
	}
	return &netlink.GenericQdisc{QdiscAttrs: attributes, QdiscType: "blackhole"}
}

func microseconds(seconds float64) uint32 { return uint32(min(math.MaxUint32, seconds*1e6)) }

// removeWay removes a fault's class, and the queueing disciplines where no fault of ours is left. Idempotent.
func removeWay(kernel *nftables.Conn, way uint32) error {
	needed, err := others(kernel)
	if err != nil {
		return err
	}
	links, err := interfaces()
	if err != nil {
		return err
	}
	for _, link := range links {
		root, _, err := lookAt(link)
		if err != nil || !root {
			continue // somebody has put another one there: ours is gone
		}
		index := link.Attrs().Index
		if !needed {
			err = netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: index, Handle: netlink.MakeHandle(major, 0), Parent: netlink.HANDLE_ROOT,
			}, QdiscType: "htb"})
		} else if way != 0 {
			err = netlink.ClassDel(&netlink.GenericClass{ClassAttrs: netlink.ClassAttrs{
				LinkIndex: index, Handle: way, Parent: netlink.MakeHandle(major, 0),
			}, ClassType: "htb"})
		}
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return nil
}

// interfaces returns those over which the Pod is reached.
func interfaces() ([]netlink.Link, error) {
	links, err := netlink.LinkList()
	var found []netlink.Link
	for _, link := range links {
		if flags := link.Attrs().RawFlags; flags&unix.IFF_LOOPBACK == 0 && flags&unix.IFF_UP != 0 {
			found = append(found, link)
		}
	}
	return found, err
}

// nextHops returns the addresses to which the default routes lead.
func nextHops() ([]netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	var found []netip.Prefix
	for _, route := range routes {
		if hop, ok := netip.AddrFromSlice(route.Gw); ok && (route.Dst == nil || route.Dst.IP.IsUnspecified()) {
			hop = hop.Unmap()
			found = append(found, netip.PrefixFrom(hop, hop.BitLen()))
		}
	}
	return found, err
}

// lookAt says whether an interface has our queueing discipline, and the greatest number of a class in it. It refuses an
// interface on which somebody has set another one: it could not be put back as it was.
func lookAt(link netlink.Link) (ours bool, used uint16, err error) {
	disciplines, err := netlink.QdiscList(link)
	if err != nil {
		return false, 0, err
	}
	for _, one := range disciplines {
		handle, minor := netlink.MajorMinor(one.Attrs().Handle)
		if one.Attrs().Parent != netlink.HANDLE_ROOT || handle == 0 {
			continue // what the kernel sets by itself has no number
		}
		if handle != major || minor != 0 {
			return false, 0, refuse("interface %s has a queueing discipline (%s) that somebody set", link.Attrs().Name, one.Type())
		}
		ours = true
	}
	if !ours {
		return false, 0, nil
	}
	classes, err := netlink.ClassList(link, netlink.HANDLE_NONE)
	for _, class := range classes {
		_, minor := netlink.MajorMinor(class.Attrs().Handle)
		used = max(used, minor)
	}
	return ours, used, err
}

// lacks makes a refusal of what the kernel says of a queueing discipline that it does not know.
func lacks(err error, kind string) error {
	if errors.Is(err, unix.ENOENT) {
		return refuse("the node's kernel has no %s (module sch_%s), which this fault needs", kind, kind)
	}
	return cannot(err, "the kernel does not take the queueing discipline "+kind)
}

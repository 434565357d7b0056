package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	tablePrefix = "chaosrunner_"
	// How often is looked whether somebody took the table away, and whether packets were met.
	pollEvery  = 100 * time.Millisecond
	countEvery = 500 * time.Millisecond
	// Loss is in millionths.
	million = 1_000_000
)

// Where packets are met. On the way in before everything else and on the way out after everything else, so that they are
// seen with the addresses and ports that they have outside the Pod, whatever a sidecar redirects in between.
const (
	beforeAll = -300
	afterAll  = 300
)

// network makes a network fault and waits for its end.
//
// The rules only bite while their table's set `live` has its elements, and those have a timeout: the kernel ends the fault
// at its limit, whatever becomes of this process. (Where they are gone, what is left of the table and of the queueing
// discipline does nothing; heal removes it.)
func network(text []byte) (event, error) {
	s, err := parse(text)
	if err != nil {
		return event{}, err
	}
	stop := told()
	ended := event{Event: "ended", Entry: s.Entry}
	if err = inTime(s.StartBy); err != nil {
		return ended, err
	}
	if s.SpareGateway {
		hops, err := nextHops()
		if err != nil {
			return ended, cannot(err, "the Pod's routes cannot be read")
		}
		s.Spare = append(s.Spare, hops...)
	}
	kernel, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return ended, cannot(err, "the node's kernel has no nftables")
	}
	defer func() { _ = kernel.CloseLasting() }()
	table, err := find(kernel, s.Entry)
	if err != nil {
		return ended, cannot(err, "the node's kernel shows no nftables")
	}
	if table != nil {
		return ended, refuse("table %s is there already", table.Name)
	}
	var way uint32
	if s.out() && s.Kind != "reject" {
		if way, err = addWay(s); err != nil {
			return ended, err
		}
	}
	table = s.rules(kernel, way)
	if err = kernel.Flush(); err != nil {
		if left := removeWay(kernel, way); left != nil {
			return ended, fmt.Errorf("%s; what was made before cannot be removed: %s", err, left)
		}
		return ended, refuse("the kernel takes no such rules: %s", err)
	}
	limit := time.After(duration(s.Duration))
	tell(event{Event: "set", Entry: s.Entry, Text: "rules are in table " + table.Name})
	ended.Text = await(kernel, table, limit, stop, &ended)
	kernel.DelTable(table)
	if err = kernel.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return ended, err
	}
	if err = removeWay(kernel, way); err != nil {
		return ended, err
	}
	if table, err = find(kernel, s.Entry); err == nil && table != nil {
		err = errors.New("table " + table.Name + " was deleted and is still there")
	}
	return ended, err
}

// await returns why the fault is to end, and keeps the count of packets in `counted`.
func await(
	kernel *nftables.Conn, table *nftables.Table, limit <-chan time.Time, stop <-chan os.Signal, counted *event,
) string {
	look := time.NewTicker(pollEvery)
	defer look.Stop()
	last := time.Now()
	for {
		select {
		case <-limit:
			count(kernel, table, counted)
			return "time limit reached"
		case sig := <-stop:
			count(kernel, table, counted)
			return "ended by signal " + unix.SignalName(sig.(syscall.Signal))
		case <-look.C:
			now, err := find(kernel, strings.TrimPrefix(table.Name, tablePrefix))
			if err == nil && now == nil {
				return "its table was removed"
			}
			if time.Since(last) < countEvery {
				continue
			}
			last = time.Now()
			if count(kernel, table, counted) {
				tell(event{Event: "counted", Entry: counted.Entry, Seen: counted.Seen, Hit: counted.Hit})
			}
		}
	}
}

// count reads how many packets the rules met; says whether it is news.
func count(kernel *nftables.Conn, table *nftables.Table, into *event) bool {
	var seen, hit uint64
	for _, name := range []string{"in_effect", "out_effect"} {
		rules, err := kernel.GetRules(table, &nftables.Chain{Name: name, Table: table})
		if err != nil {
			continue // a chain of the other direction, or the table is gone just now
		}
		for place, rule := range rules {
			for _, one := range rule.Exprs {
				if counter, ok := one.(*expr.Counter); ok && place == 0 {
					seen += counter.Packets
				} else if ok {
					hit += counter.Packets
				}
			}
		}
	}
	if into.Seen != nil && seen <= *into.Seen && hit <= *into.Hit {
		return false
	}
	into.Seen, into.Hit = &seen, &hit
	return true
}

// find returns an entry's table, nil where there is none.
func find(kernel *nftables.Conn, entry string) (*nftables.Table, error) {
	tables, err := kernel.ListTablesOfFamily(nftables.TableFamilyINet)
	for _, table := range tables {
		if table.Name == tablePrefix+entry {
			return table, err
		}
	}
	return nil, err
}

// others says whether any fault of ours is in this network.
func others(kernel *nftables.Conn) (bool, error) {
	tables, err := kernel.ListTablesOfFamily(nftables.TableFamilyINet)
	for _, table := range tables {
		if strings.HasPrefix(table.Name, tablePrefix) {
			return true, err
		}
	}
	return false, err
}

// cannot makes a refusal of an error after which nothing is there.
func cannot(err error, what string) error {
	var refused refusal
	switch {
	case err == nil || errors.As(err, &refused):
		return err
	case errors.Is(err, unix.EPERM):
		return refuse("not allowed to change the Pod's network: it needs capability NET_ADMIN")
	}
	return refuse("%s: %s", what, err)
}

// rules puts the table of a fault together, to be sent as one change. `way` is the class of packets that go out slowly.
func (s *spec) rules(kernel *nftables.Conn, way uint32) *nftables.Table {
	table := kernel.AddTable(&nftables.Table{Name: tablePrefix + s.Entry, Family: nftables.TableFamilyINet})
	live := &nftables.Set{Table: table, Name: "live", KeyType: nftables.TypeNFProto, HasTimeout: true}
	limit := duration(s.Duration)
	// Errors of these come with Flush: what they check beforehand holds.
	_ = kernel.AddSet(live, []nftables.SetElement{
		{Key: []byte{unix.NFPROTO_IPV4}, Timeout: limit},
		{Key: []byte{unix.NFPROTO_IPV6}, Timeout: limit},
	})
	if s.in() {
		s.direction(kernel, live, "in", nftables.ChainHookPrerouting, beforeAll, s.inEffect())
	}
	if s.out() && s.Kind == "reject" {
		s.direction(kernel, live, "out", nftables.ChainHookOutput, 0, s.rejectOut())
	} else if s.out() {
		s.direction(kernel, live, "out", nftables.ChainHookPostrouting, afterAll, s.outEffect(way))
	}
	return table
}

// direction adds the chains for packets of one direction: which are left alone, which are meant, what happens to those.
func (s *spec) direction(
	kernel *nftables.Conn, live *nftables.Set, name string, hook *nftables.ChainHook, priority int32, effect [][]expr.Any,
) {
	table := live.Table
	base := kernel.AddChain(&nftables.Chain{
		Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook,
		Priority: nftables.ChainPriorityRef(nftables.ChainPriority(priority)),
	})
	ports := kernel.AddChain(&nftables.Chain{Name: name + "_ports", Table: table})
	hit := kernel.AddChain(&nftables.Chain{Name: name + "_effect", Table: table})
	rule := func(chain *nftables.Chain, parts ...[]expr.Any) {
		var exprs []expr.Any
		for _, part := range parts {
			exprs = append(exprs, part...)
		}
		kernel.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	inwards := name == "in"

	rule(base, dead(live), verdict(expr.VerdictReturn))
	rule(base, throughLoopback(inwards), verdict(expr.VerdictReturn))
	rule(base, neighbours(), verdict(expr.VerdictReturn))
	for _, prefix := range s.Spare {
		rule(base, otherEnd(prefix, inwards), verdict(expr.VerdictReturn))
	}
	for _, prefix := range s.Peers {
		rule(base, otherEnd(prefix, inwards), jump(ports))
	}
	if len(s.Peers) == 0 {
		rule(base, jump(ports))
	}

	for _, port := range s.Ports {
		for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
			rule(ports, ownPort(protocol, port, inwards), jump(hit))
		}
	}
	if len(s.Ports) == 0 {
		rule(ports, jump(hit))
	}

	rule(hit, counter())
	for _, exprs := range effect {
		rule(hit, exprs)
	}
}

func (s *spec) inEffect() [][]expr.Any {
	switch s.Kind {
	case "partition":
		return [][]expr.Any{join(counter(), verdict(expr.VerdictDrop))}
	case "loss":
		return [][]expr.Any{join(chance(s.Percent), counter(), verdict(expr.VerdictDrop))}
	case "rate":
		// What the kernel lets pass at once after a rest is a second's worth and the burst (net/netfilter/nft_limit.c).
		bytes := uint64(s.BitsPerSecond / 8)
		burst := uint32(min(math.MaxUint32, max(burstSeconds*s.BitsPerSecond/8, smallestBurst)))
		over := &expr.Limit{
			Type: expr.LimitTypePktBytes, Rate: max(1, bytes), Over: true, Unit: expr.LimitTimeSecond, Burst: burst,
		}
		return [][]expr.Any{join([]expr.Any{over}, counter(), verdict(expr.VerdictDrop))}
	case "reject":
		return [][]expr.Any{
			join(tcpFlags(rst, 0), counter(), reject(unix.NFT_REJECT_TCP_RST, 0)),
			join(protocol(unix.IPPROTO_UDP), counter(), reject(unix.NFT_REJECT_ICMPX_UNREACH, portUnreachable)),
		}
	}
	return nil // latency: packets that come are as quick as ever
}

// rejectOut: what both ends of a connection get is a reset. The other end's comes with its next packet, from the rule for
// packets that come, and only if it can still acknowledge what the Pod sends; so where both directions are meant, of the
// packets that leave only those that open a connection are rejected: the others are answered by the other end, which does
// not know the connection any more. Resets themselves pass, ours among them.
func (s *spec) rejectOut() [][]expr.Any {
	resets := tcpFlags(rst, 0)
	if s.in() {
		resets = tcpFlags(syn|ack, syn)
	}
	return [][]expr.Any{
		join(resets, counter(), reject(unix.NFT_REJECT_TCP_RST, 0)),
		join(protocol(unix.IPPROTO_UDP), counter(), reject(unix.NFT_REJECT_ICMPX_UNREACH, portUnreachable)),
	}
}

// outEffect: packets that leave are handed to a class of the interface's queueing discipline, also those that are to be
// lost. A rule that dropped them would tell the sender: sendto would fail with EPERM, and TCP would know at once.
func (s *spec) outEffect(way uint32) [][]expr.Any {
	var which []expr.Any
	if s.Kind == "loss" {
		which = chance(s.Percent)
	}
	classify := []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(way)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: 1},
	}
	return [][]expr.Any{join(which, counter(), classify)}
}

const (
	syn = 0x02
	rst = 0x04
	ack = 0x10
	// Of the codes that serve for IPv4 and IPv6.
	portUnreachable = unix.NFT_REJECT_ICMPX_PORT_UNREACH
)

func join(parts ...[]expr.Any) (all []expr.Any) {
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func jump(to *nftables.Chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: to.Name}}
}

func counter() []expr.Any { return []expr.Any{&expr.Counter{}} }

func reject(kind uint32, code uint8) []expr.Any {
	return []expr.Any{&expr.Reject{Type: kind, Code: code}}
}

func meta(key expr.MetaKey, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

func protocol(number byte) []expr.Any { return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{number}) }

// dead: the time limit is over.
func dead(live *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: live.Name, SetID: live.ID, Invert: true},
	}
}

func throughLoopback(inwards bool) []expr.Any {
	key := expr.MetaKeyOIFTYPE
	if inwards {
		key = expr.MetaKeyIIFTYPE
	}
	return meta(key, expr.CmpOpEq, binaryutil.NativeEndian.PutUint16(unix.ARPHRD_LOOPBACK))
}

// neighbours: with these (RFC 4861) IPv6 finds its neighbours, as IPv4 does by ARP, which passes no rule here either.
func neighbours() []expr.Any {
	const routerSolicitation, redirect = 133, 137
	return join(protocol(unix.IPPROTO_ICMPV6), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{routerSolicitation}},
		&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: []byte{redirect}},
	})
}

// otherEnd: the packet comes from, or goes to, an address of the prefix.
func otherEnd(prefix netip.Prefix, inwards bool) []expr.Any {
	family, length, source, destination := byte(unix.NFPROTO_IPV4), uint32(4), uint32(12), uint32(16)
	if prefix.Addr().Is6() {
		family, length, source, destination = unix.NFPROTO_IPV6, 16, 8, 24
	}
	offset := destination
	if inwards {
		offset = source
	}
	mask := make([]byte, length)
	for bit := range prefix.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return join(meta(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{family}), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: mask, Xor: make([]byte, length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: prefix.Masked().Addr().AsSlice()},
	})
}

func ownPort(number byte, port uint16, inwards bool) []expr.Any {
	offset := uint32(0)
	if inwards {
		offset = 2
	}
	return join(protocol(number), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
	})
}

// tcpFlags: of the flags in `mask`, exactly those in `set` are set.
func tcpFlags(mask, set byte) []expr.Any {
	return join(protocol(unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{set}},
	})
}

// chance: one packet out of so many.
func chance(percent float64) []expr.Any {
	below := uint32(math.Round(percent / 100 * million))
	return []expr.Any{
		&expr.Numgen{Register: 1, Modulus: million, Type: unix.NFT_NG_RANDOM},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binaryutil.BigEndian.PutUint32(below)},
	}
}

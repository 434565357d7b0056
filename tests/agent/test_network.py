"""Network faults in a real kernel: who is hit and who is not, when it ends, and that nothing is left."""

from __future__ import annotations

import json
import math
import shutil
import signal
import socket
import subprocess
import time

import pytest

from tests.agent.places import OTHER, PEER, POD, POD6, Network, run

pytestmark = pytest.mark.timeout(600)  # the first one builds the agent

PACKETS = 4000


def test_a_partition_cuts_connections_that_live_and_new_ones_and_lets_them_go_on(network: Network) -> None:
    listener = network.listen(network.pod, POD, 8000)
    client = network.connect(POD, 8000)
    server = network.accept(listener)
    server.sendall(b"before")
    assert client.recv(100) == b"before"

    fault = network.disturb("partition", duration=2)
    server.sendall(b"during")  # neither end is told
    client.settimeout(0.8)
    with pytest.raises(TimeoutError):
        client.recv(100)
    assert not network.reaches()
    assert fault.event("counted")["hit"] > 0
    assert "time limit" in fault.event("ended")["text"]
    assert fault.exit() == 0

    client.settimeout(5)  # the kernel sends again after a while
    assert client.recv(100) == b"during"
    assert network.reaches()
    assert network.rules() == ""


def test_the_sender_of_a_lost_packet_is_not_told(network: Network) -> None:
    network.disturb("partition")
    sender = network.open(network.pod, socket.SOCK_DGRAM)
    sender.sendto(b"lost", (PEER, 9000))  # with a rule that drops it: PermissionError


def test_only_the_named_peers_and_ports_are_hit(network: Network) -> None:
    for port in (8000, 9000):
        network.listen(network.pod, POD, port)
    network.disturb("partition", peers=[f"{PEER}/32"], ports=[8000])
    assert not network.reaches(8000, source=PEER)
    assert network.reaches(8000, source=OTHER)
    assert network.reaches(9000, source=PEER)


def test_spared_peers_are_not_hit(network: Network) -> None:
    network.listen(network.pod, POD, 8000)
    network.disturb("partition", spare=[f"{OTHER}/32"])
    assert network.reaches(source=OTHER)
    assert not network.reaches(source=PEER)


def test_the_next_hop_is_spared_where_asked(network: Network) -> None:
    run("ip", "-n", network.pod, "route", "add", "default", "via", OTHER)
    network.listen(network.pod, POD, 8000)
    network.disturb("partition", spare_gateway=True)
    assert network.reaches(source=OTHER)
    assert not network.reaches(source=PEER)


def test_the_pod_still_reaches_itself(network: Network) -> None:
    network.listen(network.pod, POD, 8000)
    network.disturb("partition")
    assert network.reaches(where=network.pod)


@pytest.mark.parametrize(("direction", "arrives"), [("in", (False, True)), ("out", (True, False))])
def test_one_direction_alone(network: Network, direction: str, arrives: tuple[bool, bool]) -> None:
    network.disturb("partition", direction=direction)
    ends = [network.open(where, socket.SOCK_DGRAM) for where in (network.peer, network.pod)]
    for end, address in zip(ends, (PEER, POD), strict=True):
        end.bind((address, 9000))
        end.settimeout(0.3)
    for sender, receiver, to, expected in ((0, 1, POD, arrives[0]), (1, 0, PEER, arrives[1])):
        ends[sender].sendto(b"x", (to, 9000))
        if expected:
            assert ends[receiver].recv(10) == b"x"
        else:
            with pytest.raises(TimeoutError):
                ends[receiver].recv(10)


def test_ipv6_is_hit_too_but_not_how_neighbours_are_found(network: Network) -> None:
    network.listen(network.pod, POD6, 8000, socket.AF_INET6)
    fault = network.disturb("partition", ports=[8000])
    assert not network.reaches(address=POD6)
    fault.kill(signal.SIGTERM)
    assert fault.exit() == 0
    network.disturb("partition", entry="e2", direction="out", ports=[9000])
    run("ip", "-n", network.peer, "neigh", "flush", "dev", "eth0")
    assert network.reaches(address=POD6)


def test_reject_resets_what_lives_at_both_ends_and_refuses_what_is_new(network: Network) -> None:
    listener = network.listen(network.pod, POD, 8000)
    network.listen(network.pod, POD, 9000)
    client = network.connect(POD, 8000)
    server = network.accept(listener)
    fault = network.disturb("reject", ports=[8000])
    server.sendall(b"token")  # a stream: the client only receives, and acknowledges
    assert client.recv(100) == b"token"
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    server.sendall(b"token")
    with pytest.raises(ConnectionResetError):
        server.recv(100)
    with pytest.raises(ConnectionRefusedError):
        network.connect(POD, 8000)
    assert network.reaches(9000)
    assert fault.event("counted")["hit"] > 0
    fault.kill(signal.SIGTERM)
    assert fault.exit() == 0
    assert network.rules() == ""


def test_reject_refuses_what_the_pod_itself_opens(network: Network) -> None:
    network.listen(network.peer, PEER, 7000)
    network.disturb("reject")
    with pytest.raises(ConnectionRefusedError):
        network.connect(PEER, 7000, where=network.pod)


def test_reject_answers_udp_as_a_closed_port_does(network: Network) -> None:
    network.disturb("reject")
    sender = network.open(network.peer, socket.SOCK_DGRAM)
    sender.connect((POD, 9000))
    sender.send(b"x")
    with pytest.raises(ConnectionRefusedError):
        sender.recv(10)


@pytest.mark.parametrize("percent", [20.0, 0.5])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_so_many_packets_are_lost_as_were_asked_for(network: Network, direction: str, percent: float) -> None:
    fault = network.disturb("loss", percent=percent, direction=direction)
    ends = [network.open(where, socket.SOCK_DGRAM) for where in (network.peer, network.pod)]
    for end, address in zip(ends, (PEER, POD), strict=True):
        end.bind((address, 9000))
        end.setblocking(False)
    sender, receiver, to = (ends[0], ends[1], POD) if direction == "in" else (ends[1], ends[0], PEER)
    arrived = 0
    for _ in range(PACKETS):
        sender.sendto(b"x", (to, 9000))
        try:
            arrived += len(receiver.recv(10))
        except BlockingIOError:
            pass
    lost = PACKETS - arrived
    share = percent / 100
    # Six standard deviations of a binomial distribution: missed once in 500 million runs.
    assert abs(lost - PACKETS * share) <= 6 * math.sqrt(PACKETS * share * (1 - share))
    fault.kill(signal.SIGTERM)
    told = fault.event("ended")
    assert 0 <= told["hit"] - lost <= 2  # a packet of somebody else in this network may be hit as well
    assert told["seen"] >= PACKETS


@pytest.mark.parametrize(("direction", "low", "high"), [("out", 0.75, 1.15), ("in", 0.2, 1.15)])
def test_no_more_comes_through_than_the_rate(network: Network, direction: str, low: float, high: float) -> None:
    """What leaves is queued and so nearly as quick as the rate; what comes can only be dropped, and TCP yields more."""
    rate, seconds = 8_000_000, 2.0
    listener = network.listen(network.pod, POD, 8000)
    client = network.connect(POD, 8000)
    server = network.accept(listener)
    sender, receiver = (server, client) if direction == "out" else (client, server)
    network.disturb("rate", bits_per_second=rate, direction=direction)
    push(sender, receiver, rate / 8)  # the kernel has a second's worth in store
    received = push(sender, receiver, math.inf, seconds)
    assert low * rate <= received * 8 / seconds <= high * rate


def push(sender: socket.socket, receiver: socket.socket, enough: float, seconds: float = 30) -> int:
    """How many bytes come through until there are enough, or the time is over."""
    for end in (sender, receiver):
        end.setblocking(False)
    received, data, end_at = 0, b"x" * 65536, time.monotonic() + seconds
    while time.monotonic() < end_at and received < enough:
        try:
            sender.send(data)
        except BlockingIOError:
            pass
        try:
            received += len(receiver.recv(1 << 20))
        except BlockingIOError:
            time.sleep(0.001)
    return received


def test_latency_without_netem_is_one_refusal_and_leaves_nothing(network: Network) -> None:
    has_netem = subprocess.run(
        ["tc", "-n", network.peer, "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "1ms"], capture_output=True
    )
    if has_netem.returncode == 0:
        pytest.skip("this kernel has netem")
    fault = network.start("network", json.dumps({"entry": "e1", "kind": "latency", "seconds": 0.1, "duration": 5}))
    told = fault.event("refused")
    assert told["text"] == "the node's kernel has no netem (module sch_netem), which this fault needs"
    assert fault.exit() == 2
    assert network.rules() == ""


def test_latency_is_added_to_each_round_trip(network: Network) -> None:
    fault = network.start("network", json.dumps({"entry": "e1", "kind": "latency", "seconds": 0.1, "duration": 9}))
    try:
        fault.event("set")
    except AssertionError:
        pytest.skip("this kernel has no netem")
    network.listen(network.pod, POD, 8000)
    began = time.monotonic()
    network.connect(POD, 8000)
    assert 0.1 <= time.monotonic() - began < 0.3


def test_the_kernel_ends_a_fault_whose_agent_was_killed(network: Network) -> None:
    network.listen(network.pod, POD, 8000)
    for kind in ("partition", "reject"):
        began = time.monotonic()
        fault = network.disturb(kind, duration=2, entry=kind)
        fault.kill()
        fault.exit()
        with pytest.raises((TimeoutError, ConnectionRefusedError)):
            network.connect(POD, 8000, timeout=0.5)
        assert time.monotonic() - began < 2, "too slow to tell"
        time.sleep(2.1 - (time.monotonic() - began))
        assert network.reaches()
        assert f"chaosrunner_{kind}" in network.rules(), "what is left does nothing, but is there"
        healer = network.start("heal", "--entry", kind)
        assert healer.event("ended")["text"] == "its rules are removed"
        assert healer.exit() == 0
        assert network.rules() == ""


def test_heal_ends_a_fault_before_its_time_and_may_be_done_twice(network: Network) -> None:
    network.listen(network.pod, POD, 8000)
    fault = network.disturb("partition")
    assert not network.reaches()
    healer = network.start("heal", "--entry", "e1")
    assert healer.exit() == 0
    assert network.reaches()
    assert fault.event("ended")["text"] == "its table was removed"
    assert fault.exit() == 0
    assert network.rules() == ""
    again = network.start("heal", "--entry", "e1")
    assert again.event("ended")["text"] == "nothing of it was left"
    assert again.exit() == 0


def test_two_faults_of_one_pod_end_each_by_itself(network: Network) -> None:
    for port in (8000, 9000):
        network.listen(network.pod, POD, port)
    first = network.disturb("partition", ports=[8000], entry="a1")
    second = network.disturb("partition", ports=[9000], entry="b2")
    assert not network.reaches(8000)
    assert not network.reaches(9000)
    first.kill(signal.SIGTERM)
    assert first.exit() == 0
    assert network.reaches(8000)
    assert not network.reaches(9000)
    second.kill(signal.SIGTERM)
    assert second.exit() == 0
    assert network.rules() == ""


def test_a_queueing_discipline_that_somebody_set_is_left_alone(network: Network) -> None:
    run(*f"tc -n {network.pod} qdisc add dev eth0 root handle 1: tbf rate 1gbit burst 1mb latency 50ms".split())
    before = network.rules()
    fault = network.start("network", json.dumps({"entry": "e1", "kind": "partition", "duration": 5}))
    assert fault.event("refused")["text"] == "interface eth0 has a queueing discipline (tbf) that somebody set"
    assert fault.exit() == 2
    assert network.rules() == before


def test_what_cannot_be_meant_is_refused(network: Network) -> None:
    good = {"entry": "e1", "kind": "partition", "duration": 5}
    for wrong, words in (
        ({"kind": "smoke"}, "none of partition"),
        ({"duration": 0}, "duration"),
        ({"entry": "a b"}, "letters and digits"),
        ({"kind": "loss", "percent": 101}, "percent"),
        ({"kind": "latency", "seconds": 1, "direction": "in"}, "direction out"),
        ({"kind": "rate"}, "bits_per_second"),
        ({"peers": ["10.0.0.1"]}, "argument of network"),
        ({"colour": "red"}, "unknown field"),
        ({"start_by": time.time() - 10}, "too late"),
    ):
        fault = network.start("network", json.dumps(good | wrong))
        assert words in fault.event("refused")["text"]
        assert fault.exit() == 2
    assert network.rules() == ""


def test_without_the_capability_it_is_one_refusal(network: Network) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    spec = json.dumps({"entry": "e1", "kind": "partition", "duration": 5})
    fault = network.start("network", spec, prefix=("setpriv", "--bounding-set", "-net_admin"))
    assert fault.event("refused")["text"] == "not allowed to change the Pod's network: it needs capability NET_ADMIN"
    assert fault.exit() == 2

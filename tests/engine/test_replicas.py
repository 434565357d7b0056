"""Which replicas there are to probe, and where: from rows of Pods and their endpoints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaosrunner.engine.replicas import Follower
from chaosrunner.engine.traffic import spec_of
from chaosrunner.playbook.endpoint import Endpoint
from chaosrunner.playbook.endpoint import Replicas as Way
from chaosrunner.playbook.probe import Probe
from chaosrunner.playbook.selectors import parse_selector
from chaosrunner.probes.replicas import Replica
from chaosrunner.timeline import rows


class Cluster:
    """Rows as observers would emit them, and what the follower makes of them."""

    def __init__(self, service: str | None = "chat", **way: Any) -> None:
        self.handed: list[tuple[Replica, ...]] = []
        self._versions = 0
        self._follower = Follower(
            parse_selector("app=chat"), service, Way.model_validate(way), lambda found: self.handed.append(found)
        )

    @property
    def now(self) -> dict[str, str]:
        """Address by name."""
        return {replica.name: replica.address for replica in (self.handed[-1] if self.handed else ())}

    def pod(self, name: str, *addresses: str, ready: bool = False, seen: rows.Seen = "MODIFIED", **fields: Any) -> None:
        fields = {"phase": "Running", "labels": {"app": "chat"}} | fields
        self._follower.feed(
            rows.Pod(
                at=0.0, seen=seen, name=name, uid=f"u-{name}", version=self._version(), addresses=list(addresses),
                ip=addresses[0] if addresses else None,
                conditions=[rows.Condition(type="Ready", status=str(ready))], **fields,
            )
        )  # fmt: skip

    def slice(self, ports: dict[str, int], seen: rows.Seen = "MODIFIED", service: str = "chat", **pods: str) -> None:
        self._follower.feed(
            rows.EndpointSlice(
                at=0.0, seen=seen, name="s", uid="s", version=self._version(), service=service, named_ports=ports,
                endpoints=[
                    rows.Endpoint(
                        ready=False, serving=False, terminating=False, addresses=[ip], uid=f"u-{pod}", pod=pod
                    )
                    for pod, ip in pods.items()
                ],
            )
        )  # fmt: skip

    def _version(self) -> str:
        self._versions += 1
        return str(self._versions)


HTTP = {"http": 8000}


def test_a_replica_is_there_from_its_first_address_until_it_is_gone() -> None:
    cluster = Cluster()
    cluster.pod("a")
    assert cluster.now == {}
    cluster.pod("a", "10.0.0.1")
    assert cluster.now == {}  # no port yet
    cluster.slice(HTTP, a="10.0.0.1")
    assert [(replica.number, replica.address, replica.up) for replica in cluster.handed[-1]] == [
        (1, "10.0.0.1:8000", False)
    ]
    cluster.pod("a", "10.0.0.1", ready=True)
    assert [(replica.number, replica.up) for replica in cluster.handed[-1]] == [(1, True)]
    cluster.pod("a", "10.0.0.1", ready=False)  # what it was, it is to be held to
    assert cluster.handed[-1][0].up
    cluster.pod("a", "10.0.0.1", deletion_time="2026-11-29T17:00:00Z")
    cluster.slice(HTTP)  # its endpoint goes before it does
    assert cluster.now == {"a": "10.0.0.1:8000"}
    cluster.pod("a", "10.0.0.1", seen="DELETED")
    assert cluster.now == {}


@pytest.mark.parametrize(
    ("seen", "phase"), [("VANISHED", "Running"), ("MODIFIED", "Succeeded"), ("MODIFIED", "Failed")]
)
def test_one_that_ended_is_not_there(seen: rows.Seen, phase: str) -> None:
    cluster = Cluster()
    cluster.slice(HTTP, a="10.0.0.1")
    assert cluster.now == {}
    cluster.pod("a", "10.0.0.1")
    assert cluster.now == {"a": "10.0.0.1:8000"}
    cluster.pod("a", "10.0.0.1", seen=seen, phase=phase)
    assert cluster.now == {}


def test_pods_and_endpoints_of_others_are_not_asked() -> None:
    cluster = Cluster()
    cluster.pod("stranger", "10.0.0.9", labels={"app": "other"})
    cluster.slice(HTTP, stranger="10.0.0.9")
    cluster.pod("a", "10.0.0.1")
    cluster.slice(HTTP, service="other", a="10.0.0.1")
    assert cluster.handed == []


def test_a_named_port_may_be_another_number_for_each_pod() -> None:
    """As in slices of a Service whose targetPort is a name: the Pods of each slice have the same number."""
    cluster = Cluster(port="http")
    for name in "ab":
        cluster.pod(name, "127.0.0.1")
    cluster.slice({"metrics": 9000, "http": 8001}, a="127.0.0.1")
    cluster.slice({"metrics": 9000, "http": 8002}, b="127.0.0.1")
    assert cluster.now == {"a": "127.0.0.1:8001", "b": "127.0.0.1:8002"}


def test_of_several_ports_none_is_guessed() -> None:
    cluster = Cluster()
    cluster.pod("a", "10.0.0.1")
    cluster.slice({"metrics": 9000, "http": 8000}, a="10.0.0.1")
    assert cluster.handed == []


def test_a_number_needs_no_service() -> None:
    cluster = Cluster(service=None, port=8000)
    cluster.pod("a", "10.0.0.1")
    assert cluster.now == {"a": "10.0.0.1:8000"}


@pytest.mark.parametrize(
    ("way", "address"),
    [
        ({}, "[fd00::1]:8000"),
        ({"family": "IPv4"}, "10.0.0.1:8000"),
        ({"family": "IPv6"}, "[fd00::1]:8000"),
        ({"port": 8000}, "[fd00::1]:8000"),
        ({"port": 8000, "family": "IPv4"}, "10.0.0.1:8000"),
    ],
)
def test_a_pod_with_two_addresses_is_one_replica(way: dict[str, Any], address: str) -> None:
    """Kubernetes makes a slice for each family; podIP is the first of podIPs."""
    cluster = Cluster(**way)
    cluster.pod("a", "fd00::1", "10.0.0.1")
    cluster.slice(HTTP, a="10.0.0.1")
    cluster.slice(HTTP, a="fd00::1")
    assert cluster.now == {"a": address}


def test_a_service_of_the_other_family_decides() -> None:
    cluster = Cluster()
    cluster.pod("a", "fd00::1", "10.0.0.1")
    cluster.slice(HTTP, a="10.0.0.1")
    assert cluster.now == {"a": "10.0.0.1:8000"}


def test_an_address_that_became_another_pods_is_that_ones() -> None:
    cluster = Cluster()
    cluster.pod("old", "10.0.0.1")
    cluster.slice(HTTP, old="10.0.0.1")
    cluster.pod("new", "10.0.0.1")
    cluster.slice(HTTP, new="10.0.0.1")
    (only,) = cluster.handed[-1]
    assert (only.id, only.number) == ("u-new", 2)
    cluster.pod("old", "10.0.0.1", seen="DELETED")
    assert cluster.handed[-1] == (only,)


def test_a_pod_with_a_new_address_is_asked_there_under_a_new_number() -> None:
    cluster = Cluster()
    cluster.pod("a", "10.0.0.1")
    cluster.slice(HTTP, a="10.0.0.1")
    cluster.pod("a", "10.0.0.2")
    cluster.slice(HTTP, a="10.0.0.2")
    (only,) = cluster.handed[-1]
    assert (only.id, only.number, only.address) == ("u-a", 2, "10.0.0.2:8000")


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]),
        st.sampled_from(["pod", "slice", "gone", "finished"]),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_comes_addresses_are_ones_alone_and_numbers_are_never_given_twice(
    events: list[tuple[str, str, str]],
) -> None:
    cluster = Cluster()
    there: set[str] = set()
    for name, address, what in events:
        match what:
            case "slice":
                cluster.slice(HTTP, **{name: address})
            case "pod":
                cluster.pod(name, address)
                there.add(name)
            case "gone" | "finished":
                there.discard(name)
                gone: dict[str, Any] = {"seen": "DELETED"} if what == "gone" else {"phase": "Succeeded"}
                cluster.pod(name, address, **gone)
        assert cluster.now.keys() <= there
    owners: dict[int, tuple[str, str]] = {}
    for before, found in zip([(), *cluster.handed], cluster.handed, strict=False):
        assert found != before
        assert len({replica.address for replica in found}) == len(found)
        assert len({replica.id for replica in found}) == len(found)
        for replica in found:
            assert owners.setdefault(replica.number, (replica.id, replica.address)) == (replica.id, replica.address)
    assert len(set(owners.values())) == len(owners)


# --- how they are asked ---------------------------------------------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, **replicas: Any) -> Any:
    monkeypatch.setenv("KEY", "secret")
    endpoint = {
        "url": "https://Chat.example.com:8443/team",
        "pod_header": "x-pod",
        "api_key": {"env": "KEY"},
        "headers": {"tenant": "a", "x-token": {"env": "KEY"}, "Host": "virtual.example"},
        "ca": "/ca.pem",
        "http2": True,
        "proxy": "http://proxy.example:3128",
        "replicas": replicas,
    }
    probe = Probe.model_validate({"name": "direct", "target": "replicas", "openai": {"prompt": "x"}})
    return spec_of(probe, Endpoint.model_validate(endpoint), seed="s")


def test_what_the_endpoint_needs_goes_to_the_replicas_but_not_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = asked(monkeypatch)
    assert (spec.replicas, spec.url, spec.pod_header) == (True, "http://Chat.example.com:8443", None)
    assert (spec.api_key, dict(spec.headers)) == (
        "secret",
        {"tenant": "a", "x-token": "secret", "Host": "virtual.example"},
    )
    assert (spec.ca, spec.insecure, spec.http2, spec.proxy) == ("/ca.pem", False, False, None)


def test_what_the_drill_says_of_replicas_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    way = {"scheme": "https", "host": "chat.pods", "credentials": False, "insecure": True, "proxy": "http://p:1"}
    assert asked(monkeypatch).headers["Host"] == "virtual.example"
    spec = asked(monkeypatch, **way)
    assert (spec.url, spec.api_key, dict(spec.headers)) == ("https://chat.pods", None, {"tenant": "a"})
    assert (spec.ca, spec.insecure, spec.proxy) == (None, True, "http://p:1")

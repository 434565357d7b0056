"""The lab's networks: a namespace a node, cabled to a bridge in the control plane's own.

Kubernetes refuses loopback addresses in EndpointSlices, so that Pods need real ones; in namespaces of their own they
touch nothing of the machine's. `ip netns` keeps the names below /run, which only the lab sees.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chaosrunner.errors import UserError

CONTROL_PLANE = "10.200.0.1"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
PODS = "10.244.0.0/16"
INFRA = "infra"
MOST_NODES = 100

_NAMES = Path("/run/netns")


@dataclass(frozen=True)
class Node:
    """A node's name and its place in the network; `index` counts from 1."""

    name: str
    index: int

    @property
    def address(self) -> str:
        return f"10.200.0.{10 + self.index}"

    @property
    def pods(self) -> str:
        return f"10.244.{self.index}.0/24"

    @property
    def is_infra(self) -> bool:
        return self.name == INFRA

    @property
    def cable(self) -> str:
        """The control plane's end of the node's cable."""
        return f"veth{self.index}"

    def inside(self, command: Sequence[str]) -> list[str]:
        """A command, to be run in the node's network. `ip netns exec` would hide the control groups below /sys."""
        return ["nsenter", f"--net={_NAMES / self.name}", "--", *command]


def nodes(count: int) -> list[Node]:
    """`node1` to `node<count>`, and `infra` for what is not to be drained. UserError for an impossible count."""
    if not 1 <= count <= MOST_NODES:
        raise UserError(f"--nodes {count}: between 1 and {MOST_NODES}")
    names = [*(f"node{index}" for index in range(1, count + 1)), INFRA]
    return [Node(name, index) for index, name in enumerate(names, 1)]


def lay(all_nodes: Sequence[Node]) -> None:
    """Make namespaces, cables, addresses and routes, from within the control plane's namespace."""
    _ip(
        "link set lo up",
        "link add br0 type bridge",
        f"addr add {CONTROL_PLANE}/24 dev br0",
        "link set br0 up",
        *(f"netns add {node.name}" for node in all_nodes),
        *(f"link add {node.cable} type veth peer name eth0 netns {node.name}" for node in all_nodes),
        *(f"link set {node.cable} master br0 up" for node in all_nodes),
        *(f"route add {node.pods} via {node.address}" for node in all_nodes),
        # ClusterIPs are reached through the node that no drill takes away.
        *(f"route add {SERVICES} via {node.address}" for node in all_nodes if node.is_infra),
    )
    for node in all_nodes:
        others = [f"route add {other.pods} via {other.address}" for other in all_nodes if other != node]
        _ip(
            "link set lo up",
            f"addr add {node.address}/24 dev eth0",
            "link set eth0 up",
            # Without a default route a connection to a ClusterIP ends before kube-proxy's rules see it.
            f"route add default via {CONTROL_PLANE}",
            *others,
            node=node,
        )
    forwarding = "/proc/sys/net/ipv4/ip_forward"
    Path(forwarding).write_text("1")
    for node in all_nodes:
        subprocess.run(node.inside(["sh", "-c", f"echo 1 > {forwarding}"]), check=True)


def cut(node: Node) -> None:
    """Pull the node's cable: nothing gets in or out. Its Pods run on and reach each other."""
    _ip(f"link set {node.cable} down")


def heal(node: Node) -> None:
    """Undo `cut`."""
    _ip(f"link set {node.cable} up")


def _ip(*commands: str, node: Node | None = None) -> None:
    where = ["-n", node.name] if node else []
    found = subprocess.run(
        ["ip", *where, "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise RuntimeError(f"ip {' '.join(where)}: {found.stderr.strip()}")

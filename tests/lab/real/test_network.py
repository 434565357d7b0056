"""The networks of a real lab, laid in namespaces that end with the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from chaosrunner.errors import UserError
from chaosrunner.lab.real import network

LAY = """
import json, subprocess, sys
from pathlib import Path
from chaosrunner.lab.real import network, syscalls

syscalls.unshare(syscalls.NEW_MOUNTS | syscalls.NEW_NETWORK)
syscalls.mount("none", Path("/"), None, syscalls.MS_RECURSIVE | syscalls.MS_PRIVATE)
syscalls.mount("tmpfs", Path("/run"), "tmpfs")
Path("/run/netns").mkdir()
nodes = network.nodes(2)
network.lay(nodes)

CONNECT = (
    "import socket, sys\\n"
    "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM); s.settimeout(0.5)\\n"
    "try: s.connect((sys.argv[1], 9)); print('connected')\\n"
    "except ConnectionRefusedError: print('reached')\\n"
    "except OSError as error: print('not reached')\\n"
)

def reach(address, node=None):
    command = [sys.executable, "-c", CONNECT, address]
    return subprocess.run(node.inside(command) if node else command, capture_output=True, text=True).stdout.strip()

one, two, infra = nodes
found = {"to one": reach(one.address), "one to two": reach(two.address, one), "one to us": reach("10.200.0.1", one)}
network.cut(one)
found |= {"cut: to one": reach(one.address), "cut: two to one": reach(one.address, two)}
found |= {"cut: to two": reach(two.address)}
network.heal(one)
found |= {"healed: to one": reach(one.address), "healed: one to two": reach(two.address, one)}
routes = subprocess.run(["ip", "-j", "route"], capture_output=True, text=True).stdout
found["services by"] = [r["gateway"] for r in json.loads(routes) if r["dst"] == network.SERVICES][0]
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="makes network namespaces: Linux, as root")
def test_who_reaches_whom() -> None:
    done = subprocess.run([sys.executable, "-c", LAY], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "to one": "reached",
        "one to two": "reached",
        "one to us": "reached",
        "cut: to one": "not reached",
        "cut: two to one": "not reached",
        "cut: to two": "reached",
        "healed: to one": "reached",
        "healed: one to two": "reached",
        "services by": "10.200.0.13",
    }


def test_names_and_addresses() -> None:
    nodes = network.nodes(2)
    assert [(one.name, one.address, one.pods) for one in nodes] == [
        ("node1", "10.200.0.11", "10.244.1.0/24"),
        ("node2", "10.200.0.12", "10.244.2.0/24"),
        ("infra", "10.200.0.13", "10.244.3.0/24"),
    ]
    assert [one.is_infra for one in nodes] == [False, False, True]


@pytest.mark.parametrize("count", [0, -1, 101])
def test_an_impossible_number_of_nodes(count: int) -> None:
    with pytest.raises(UserError, match="between 1 and 100"):
        network.nodes(count)

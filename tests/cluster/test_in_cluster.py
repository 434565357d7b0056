"""A ServiceAccount inside a Pod: where its token is, and that a new one is used in time."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest
from aiohttp import web

from chaosrunner.cluster import ClusterConfig, connect
from chaosrunner.cluster.config import load, namespace_of
from chaosrunner.cluster.credentials import expiry
from chaosrunner.errors import UserError
from chaosrunner.timeline.clock import Clock

from .server import kubeconfig, ok, serving

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def token(lives: float, name: str = "t") -> str:
    """A JSON Web Token that expires so many seconds from now; its signature is nobody's."""

    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'exp': time.time() + lives, 'jti': name})}.c2ln"


def account(folder: Path, text: str = "abc") -> Path:
    for name, content in (("token", text), ("ca.crt", "pem"), ("namespace", "chaos\n")):
        (folder / name).write_text(content)
    return folder


def test_expiry_of_tokens_of_any_kind() -> None:
    assert expiry(token(60)) == pytest.approx(time.time() + 60, abs=5)
    for other in ("", "abc", "a.b.c", "a.e30.c", "a.bnVsbA.c", "a.W10.c", "a.eyJleHAiOiAieCJ9.c", "a.\u00e9.c"):
        assert expiry(other) is None


def test_namespace_of_the_pod(tmp_path: Path) -> None:
    assert namespace_of(tmp_path) is None
    assert namespace_of(account(tmp_path)) == "chaos"


@pytest.mark.parametrize(
    ("config", "environ", "message"),
    [
        ({}, {}, "no ServiceAccount token at .*automountServiceAccountToken"),
        ({"context": "staging"}, {}, "context 'staging': inside a Pod the context is in-cluster"),
    ],
)
def test_one_clear_error_inside_a_pod(
    tmp_path: Path, config: dict[str, str], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load(ClusterConfig(**config), {"HOME": str(tmp_path)} | POD | environ, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_a_home_that_is_closed_to_us_holds_no_kubeconfig(tmp_path: Path) -> None:
    home = tmp_path / "root"
    home.mkdir(mode=0o000)
    loaded = load(ClusterConfig(), {"HOME": str(home)} | POD, account(tmp_path))
    assert loaded.context == "in-cluster"


@pytest.mark.anyio
async def test_a_token_that_is_about_to_expire_is_read_again_before_the_server_refuses_it(tmp_path: Path) -> None:
    # kubernetes-client/python#741: a token that was read once runs into 401 when it is rotated.
    presented = []
    async with serving() as server:

        @server.on("GET", "/version")
        async def _(request: web.Request) -> web.StreamResponse:
            presented.append(request.headers["Authorization"].removeprefix("Bearer "))
            return ok({"major": "1", "minor": "37"})

        file = tmp_path / "token"
        long, dying, fresh = token(3600, "long"), token(4, "dying"), token(3600, "fresh")
        for first, expected in ((long, [long, long]), (dying, [dying, fresh])):
            presented.clear()
            file.write_text(first)
            async with connect(kubeconfig(tmp_path, server.url, {"tokenFile": "token"}), Clock()) as cluster:
                await cluster.version()
                file.write_text(fresh)
                await cluster.version()
            assert presented == expected

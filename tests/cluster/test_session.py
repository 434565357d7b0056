from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from chaosrunner.cli.options import CLUSTER, cluster_config
from chaosrunner.cluster import ApiError, ClusterConfig, Unreachable, connect
from chaosrunner.cluster.resources import NODES, PODS
from chaosrunner.errors import UserError
from chaosrunner.timeline import rows
from chaosrunner.timeline.clock import Clock

from .server import Recorder, always, kubeconfig, listing, ok, pod, serving, status

pytestmark = pytest.mark.anyio


async def test_an_answer_is_an_answer_whatever_its_status(tmp_path: Path) -> None:
    async with serving() as server:

        @server.on("GET", "/api/v1/nodes/n1")
        async def _(request: web.Request) -> web.Response:
            return status(403, "Forbidden", "no")

        @server.on("GET", "/readyz")
        async def _(request: web.Request) -> web.Response:
            return web.Response(text="ok")

        clock, recorder = Clock(), Recorder()
        async with connect(kubeconfig(tmp_path, server.url), clock, recorder) as cluster:
            before = clock.now()
            answer = await cluster.get(NODES, "n1")
            assert (answer.status, answer.reason, answer.message, answer.ok) == (403, "Forbidden", "no", False)
            assert before <= answer.sent <= answer.received <= clock.now()
            ready = await cluster.request("GET", "/readyz")
            assert (ready.text, ready.body) == ("ok", {})
    skew = recorder.of(rows.Skew)
    assert len(skew) == 2
    # aiohttp's server writes Date from its own clock, which is this machine's: the interval must hold the truth
    assert skew[0].owner == "apiserver"
    assert clock.wall(skew[0].sent) - 1 - 0.5 <= skew[0].reported <= clock.wall(skew[0].received) + 0.5


async def test_proxies_of_the_environment_are_not_used_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with serving() as server:
        server.on("GET", "/version")(always({"major": "1", "minor": "37"}))
        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            assert (await cluster.version()).minor == 37
    async with connect(kubeconfig(tmp_path, "http://api.invalid:80"), Clock()) as cluster:
        with pytest.raises(Unreachable) as caught:
            await cluster.version()
        assert caught.value.cause == "proxy"


async def test_lists_come_in_pages_and_start_over_when_they_expire(tmp_path: Path) -> None:
    async with serving() as server:

        @server.on("GET", "/api/v1/namespaces/demo/pods")
        async def _(request: web.Request) -> web.Response:
            page = request.query.get("continue")
            if page == "b==":
                return status(410, "Expired", "The provided continue parameter is too old")
            if "limit" not in request.query:
                return listing("90", [pod("a", "5"), pod("b", "6"), pod("c", "7")])
            return (
                listing("80", [pod("b", "6")], **{"continue": "b=="})
                if page
                else listing("80", [pod("a", "5")], **{"continue": "a+/="})
            )

        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            found = await cluster.list(PODS, "demo", label_selector="app in (chat,embed),x!=y")
            assert [item["metadata"]["name"] for item in found.items] == ["a", "b", "c"]
            assert found.version == "90"
            assert [request[2].get("continue") for request in server.requests] == [None, "a+/=", "b==", None]
            assert all(request[2]["labelSelector"] == "app in (chat,embed),x!=y" for request in server.requests)
            with pytest.raises(ApiError, match="list nodes: 404"):
                await cluster.list(NODES)


async def test_unreachable_says_what_broke_and_whether_it_left(tmp_path: Path) -> None:
    async with serving() as server:

        @server.on("GET", "/slow")
        async def _(request: web.Request) -> web.Response:
            await anyio.sleep(30)
            return ok({})

        @server.on("GET", "/cut")
        async def _(request: web.Request) -> web.Response:
            assert request.transport is not None
            request.transport.abort()
            return ok({})

        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            for path, cause in (("/slow", "timeout"), ("/cut", "closed")):
                with pytest.raises(Unreachable) as caught:
                    await cluster.request("GET", path, timeout=0.2)
                assert (caught.value.cause, caught.value.sent) == (cause, True)
    async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
        with pytest.raises(Unreachable, match="connection refused") as caught:
            await cluster.request("GET", "/slow")
        assert (caught.value.cause, caught.value.sent) == ("refused", False)
    async with connect(kubeconfig(tmp_path, "http://no-such-host.invalid:1"), Clock()) as cluster:
        with pytest.raises(Unreachable) as caught:
            await cluster.request("GET", "/")
        assert (caught.value.cause, caught.value.sent) == ("dns", False)


@contextmanager
def hesitant(seconds: float) -> Iterator[str]:
    """The address of a server that takes no connection for so long: its queue is full, and it is not told why."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        address = listener.getsockname()
        full = stack.enter_context(socket.create_connection(address))
        while True:
            another = stack.enter_context(socket.socket())
            another.setblocking(False)
            another.connect_ex(address)
            if not select.select([], [another], [], 0.1)[1]:
                break

        def answer() -> None:
            time.sleep(seconds)
            listener.settimeout(5.0)
            taken = listener.accept()[0]
            while taken.getpeername() in (full.getsockname(), another.getsockname()):
                taken = listener.accept()[0]
            with taken:
                taken.recv(65536)
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{address[1]}"
        thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="what a full queue does to a connection is Linux's way")
async def test_who_gives_a_request_more_time_gives_a_connection_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaosrunner.cluster.session.DEAD_AFTER", 0.5)
    flags = dict.fromkeys(CLUSTER) | {"as_groups": ()}
    with hesitant(2.5) as url:
        flags["kubeconfig"] = kubeconfig(tmp_path, url).kubeconfig
        impatient = replace(cluster_config(flags), connect_timeout=0.5)
        async with connect(impatient, Clock()) as cluster:
            with pytest.raises(Unreachable) as caught:
                await cluster.request("GET", "/readyz")
            assert (caught.value.cause, caught.value.sent) == ("connect", False)
        async with connect(cluster_config(flags | {"request_timeout": 10.0}), Clock()) as cluster:
            assert (await cluster.request("GET", "/readyz")).text == "ok"


@pytest.mark.parametrize(
    ("given", "request_", "connection"), [(None, 30, 5), (2, 2, 2), (20, 20, 20), (60, 60, 30), (0, 0, 30)]
)
def test_the_limit_of_a_connection_follows_the_requests_as_kubectls_does(
    given: float | None, request_: float, connection: float
) -> None:
    config = cluster_config(dict.fromkeys(CLUSTER) | {"as_groups": (), "request_timeout": given})
    assert (config.request_timeout, config.connect_timeout) == (request_, connection)


async def test_rotated_token_file_is_read_again_after_401(tmp_path: Path) -> None:
    # kubernetes-client/python#741
    token = tmp_path / "token"
    token.write_text("old\n")
    async with serving() as server:

        @server.on("GET", "/version")
        async def _(request: web.Request) -> web.Response:
            if request.headers["Authorization"] != "Bearer new":
                return status(401, "Unauthorized", "Unauthorized")
            return ok({"major": "1", "minor": "37+", "gitVersion": "v1.37.2"})

        async with connect(kubeconfig(tmp_path, server.url, {"tokenFile": "token"}), Clock()) as cluster:
            with pytest.raises(ApiError, match="401"):
                await cluster.version()
            assert len(server.requests) == 1  # the same token again would get the same answer
            token.write_text("new\n")
            version = await cluster.version()
            assert (version.git, version.major, version.minor) == ("v1.37.2", 1, 37)
            assert len(server.requests) == 3


def plugin(folder: Path, script: str) -> dict[str, Any]:
    """A credential plugin beside the kubeconfig, called by a relative path."""
    path = folder / "plugin"
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "args": [str(folder)]}}


COUNTING = """
import json, pathlib, sys
counter = pathlib.Path(sys.argv[1], "count")
number = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(number))
status = {"token": f"t{number}"}
expiry = pathlib.Path(sys.argv[1], "expiry")
if expiry.exists():
    status["expirationTimestamp"] = expiry.read_text()
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


async def test_exec_plugin_is_run_again_once_for_many_401s(tmp_path: Path) -> None:
    # R4: nolar/kopf#926, kubernetes-client/python#1946
    async with serving() as server:
        valid = ["Bearer t1"]

        @server.on("GET", "/version")
        async def _(request: web.Request) -> web.Response:
            known = request.headers["Authorization"] in valid
            return ok({"major": "1", "minor": "37"}) if known else status(401, "Unauthorized", "Unauthorized")

        async with connect(kubeconfig(tmp_path, server.url, plugin(tmp_path, COUNTING)), Clock()) as cluster:
            await cluster.version()
            valid[:] = ["Bearer t2"]
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(cluster.version)
            assert (tmp_path / "count").read_text() == "2"


async def test_expired_plugin_token_is_replaced_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "expiry").write_text((datetime.now(UTC) - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ"))
    async with serving() as server:
        server.on("GET", "/version")(always({"major": "1", "minor": "37"}))
        async with connect(kubeconfig(tmp_path, server.url, plugin(tmp_path, COUNTING)), Clock()) as cluster:
            (tmp_path / "expiry").write_text((datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"))
            await cluster.version()
            await cluster.version()
    assert [request[3]["Authorization"] for request in server.requests] == ["Bearer t2", "Bearer t2"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('sso login first')", "sso login first"),
        ("print('{}')", "malformed response"),
        ('print(\'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "x", "status": {}}\')', "neither a token"),
    ],
)
async def test_plugin_that_fails_is_a_clear_error(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        async with connect(kubeconfig(tmp_path, "http://127.0.0.1:1", plugin(tmp_path, script)), Clock()):
            pass


async def test_missing_plugin_gives_its_install_hint(tmp_path: Path) -> None:
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "installHint": "get it"}
    }
    with pytest.raises(UserError, match="get it"):
        async with connect(kubeconfig(tmp_path, "http://127.0.0.1:1", user), Clock()):
            pass


async def test_impersonation_headers_reach_the_server(tmp_path: Path) -> None:
    async with serving() as server:
        config = kubeconfig(tmp_path, server.url)
        config = ClusterConfig(kubeconfig=config.kubeconfig, as_user="drill", as_groups=("a", "b"))
        async with connect(config, Clock()) as cluster:
            await cluster.request("GET", "/version")
    headers = server.requests[0][3]
    assert (headers["Impersonate-User"], headers["Impersonate-Group"]) == ("drill", "a,b")


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, Path]:
    """A CA that signs a server and a client, made by openssl."""

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=tmp_path)

    try:
        run("version")
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    run(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-days",
        "2",
        "-subj",
        "/CN=ca",
    )
    for name, alternative in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "subjectAltName=DNS:client")):
        run(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        (tmp_path / "ext").write_text(alternative)
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "ext", "-out", f"{name}.pem")  # fmt: skip
    return {path.name: path for path in tmp_path.iterdir()}


def trust(path: Path, authority: str) -> None:
    path.write_text(path.read_text().replace("server:", f"certificate-authority: {authority}\n    server:"))


async def test_tls_with_a_private_ca_and_a_plugins_client_certificate(
    tmp_path: Path, certificates: dict[str, Path]
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates["ca.pem"]))
    context.load_cert_chain(certificates["server.pem"], certificates["server.key"])
    context.verify_mode = ssl.CERT_REQUIRED

    async def who(request: web.Request) -> web.Response:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        return ok({"major": "1", "minor": "0", "gitVersion": dict(pair[0] for pair in subject)["commonName"]})

    app = web.Application()
    app.router.add_get("/version", who)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    status_ = {
        "clientCertificateData": certificates["client.pem"].read_text(),
        "clientKeyData": certificates["client.key"].read_text(),
    }
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status_}
    user = plugin(tmp_path, f"print({json.dumps(credential)!r})")
    path = Path(str(kubeconfig(tmp_path, url, user).kubeconfig))
    try:
        async with connect(ClusterConfig(kubeconfig=str(path)), Clock()) as cluster:
            with pytest.raises(Unreachable) as caught:
                await cluster.version()
            assert caught.value.cause == "tls"
        trust(path, "ca.pem")
        async with connect(ClusterConfig(kubeconfig=str(path)), Clock()) as cluster:
            assert (await cluster.version()).git == "client"
    finally:
        await runner.cleanup()


async def test_a_request_costs_little(tmp_path: Path) -> None:
    async with serving() as server:
        server.on("GET", "/version")(always({"major": "1", "minor": "37"}))
        async with connect(kubeconfig(tmp_path, server.url), Clock()) as cluster:
            await cluster.version()
            began = time.perf_counter()
            for _ in range(50):
                await cluster.version()
            assert time.perf_counter() - began < 1.0

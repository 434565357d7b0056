"""How the gateway and the alert source reach an API server: as a Pod, and by kubeconfigs of several kinds."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosrunner.lab.workload.credentials import ApiServer, BadCredentials, in_pod, read_kubeconfig
from chaosrunner.lab.workload.endpoints import Endpoint, Follower
from tests.lab.workload.authority import Authority, behind_tls
from tests.lab.workload.harness import eventually
from tests.lab.workload.slices import TOKEN, Slices, api, endpoint


class Followed:
    """What a follower has seen and said."""

    def __init__(self, server: ApiServer) -> None:
        self.ready: list[str] = []
        self.lost: list[str] = []
        self._follower = Follower(server, "chat", None, self._see, self._note)
        self._task = asyncio.create_task(self._follower.run())

    def _see(self, endpoints: list[Endpoint]) -> None:
        self.ready = [endpoint.pod for endpoint in endpoints if endpoint.ready]

    def _note(self, event: str, **more: Any) -> None:
        self.lost.append(str(more.get("error")))

    async def sees(self, *pods: str) -> None:
        async def seen() -> bool:
            return self.ready == list(pods)

        await eventually(seen)

    async def is_lost(self) -> str:
        async def said() -> bool:
            return bool(self.lost)

        await eventually(said)
        return self.lost[0]

    def end(self) -> None:
        self._task.cancel()


@asynccontextmanager
async def followed(server: ApiServer) -> AsyncIterator[Followed]:
    found = Followed(server)
    try:
        yield found
    finally:
        found.end()


def service_account(folder: Path, authority: Authority, token: str = TOKEN) -> Path:
    """What kubelet mounts into a Pod."""
    account = folder / "serviceaccount"
    account.mkdir(exist_ok=True)
    (account / "token").write_text(token)
    (account / "ca.crt").write_bytes(authority.file.read_bytes())
    (account / "namespace").write_text("demo")
    return account


def variables(port: int) -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}


@pytest.mark.anyio
async def test_a_pod_follows_by_its_service_account_and_takes_up_a_rotated_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    account = service_account(tmp_path, authority)
    async with api() as slices, behind_tls(slices.port, authority) as port:
        slices.put(endpoint("chat-0", 8000))
        async with followed(in_pod(None, account, variables(port))) as found:
            await found.sees("chat-0")
            slices.token = "the next one"
            slices.hang_up()
            assert "401" in await found.is_lost()
            slices.put(endpoint("chat-1", 8001))
            (account / "token").write_text("the next one\n")
            await found.sees("chat-0", "chat-1")


@pytest.mark.anyio
async def test_an_api_server_of_another_authority_is_not_trusted(tmp_path: Path) -> None:
    account = service_account(tmp_path, Authority(tmp_path, "other"))
    async with api() as slices, behind_tls(slices.port, Authority(tmp_path)) as port:
        async with followed(in_pod("demo", account, variables(port))) as found:
            assert "CERTIFICATE_VERIFY_FAILED" in await found.is_lost()


def kubeconfig(folder: Path, port: int, cluster: dict[str, str], user: dict[str, str]) -> str:
    config = {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": "demo"}}],
        "clusters": [{"name": "lab", "cluster": {"server": f"https://127.0.0.1:{port}"} | cluster}],
        "users": [{"name": "lab", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.mark.anyio
@pytest.mark.parametrize("inline", [False, True])
async def test_a_kubeconfig_with_a_client_certificate(tmp_path: Path, inline: bool) -> None:
    authority = Authority(tmp_path)
    files = dict(zip(("client-certificate", "client-key"), authority.issue("client"), strict=True))
    cluster: dict[str, str] = {"certificate-authority": authority.file.name}
    user = {name: file.name for name, file in files.items()}
    if inline:
        cluster = {"certificate-authority-data": base64.b64encode(authority.file.read_bytes()).decode()}
        user = {f"{name}-data": base64.b64encode(file.read_bytes()).decode() for name, file in files.items()}
    async with api() as slices, behind_tls(slices.port, authority, wants_certificate=True) as port:
        slices.put(endpoint("chat-0", 8000))
        path = kubeconfig(tmp_path, port, cluster, user | {"token": TOKEN})
        async with followed(read_kubeconfig(path)) as found:
            await found.sees("chat-0")
        path = kubeconfig(tmp_path, port, cluster, {"token": TOKEN})
        async with followed(read_kubeconfig(path)) as found:
            await found.is_lost()
            assert found.ready == []


@pytest.mark.anyio
async def test_a_kubeconfig_with_a_token_in_a_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    async with api() as slices, behind_tls(slices.port, authority) as port:
        slices.put(endpoint("chat-0", 8000))
        cluster = {"certificate-authority": str(authority.file)}
        async with followed(read_kubeconfig(kubeconfig(tmp_path, port, cluster, {"tokenFile": "token"}))) as found:
            await found.sees("chat-0")


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({"certificate-authority": "missing.crt"}, {}, "missing.crt"),
        ({"certificate-authority-data": "AAAA"}, {}, "kubeconfig"),
        ({}, {"client-key": "kubeconfig"}, "go together"),
        ({}, {"client-certificate": "kubeconfig", "client-key": "kubeconfig"}, "kubeconfig"),
        ({"server": "ftp://127.0.0.1"}, {}, "no http or https address"),
        ({"server": "https://127.0.0.1:port"}, {}, "kubeconfig"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_told(
    tmp_path: Path, cluster: dict[str, str], user: dict[str, str], said: str
) -> None:
    with pytest.raises(BadCredentials, match=said):
        read_kubeconfig(kubeconfig(tmp_path, 1, cluster, user))


def test_a_pod_without_a_service_account_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadCredentials, match="token"):
        in_pod(None, tmp_path, variables(1))


def test_plain_http_needs_no_certificates(tmp_path: Path) -> None:
    server = read_kubeconfig(Slices().kubeconfig(tmp_path))
    assert (server.tls, server.namespace) == (None, "demo")
    assert server.headers() == [("Authorization", f"Bearer {TOKEN}")]

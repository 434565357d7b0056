from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from chaosrunner.cluster import ClusterConfig
from chaosrunner.cluster.config import load
from chaosrunner.errors import UserError


def write(path: Path, current: str | None, *names: str, user: dict[str, Any] | None = None, **context: str) -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                **({"current-context": current} if current else {}),
                "contexts": [{"name": n, "context": {"cluster": n, "user": n, **context}} for n in names],
                "clusters": [{"name": n, "cluster": {"server": f"http://{n}.{path.stem}:1"}} for n in names],
                "users": [{"name": n, "user": user or {"token": f"t-{n}"}} for n in names],
            }
        )
    )
    return path


def test_the_first_file_that_sets_a_value_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "one", None, "shared")
    two = write(tmp_path / "two", "prod", "prod", "shared")
    three = write(tmp_path / "three", "other", "other")
    environ = {"KUBECONFIG": f"{one}:{tmp_path / 'missing'}:{two}:{three}"}
    loaded = load(ClusterConfig(), environ)
    assert (loaded.context, loaded.configuration.host) == ("prod", "http://prod.two:1")
    assert load(ClusterConfig(context="shared"), environ).configuration.host == "http://shared.one:1"


def test_explicit_file_beats_the_environment(tmp_path: Path) -> None:
    explicit, listed = write(tmp_path / "a", "a", "a"), write(tmp_path / "b", "b", "b")
    loaded = load(ClusterConfig(kubeconfig=str(explicit)), {"KUBECONFIG": str(listed)})
    assert loaded.context == "a"


def test_home_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", "home", "home")
    assert load(ClusterConfig(), {"HOME": str(tmp_path)}).context == "home"


def test_namespace_of_flag_context_and_default(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a", "a", "a", namespace="team"))
    assert load(ClusterConfig(kubeconfig=path), {}).namespace == "team"
    assert load(ClusterConfig(kubeconfig=path, namespace="mine"), {}).namespace == "mine"
    plain = str(write(tmp_path / "b", "b", "b"))
    assert load(ClusterConfig(kubeconfig=plain), {}).namespace == "default"


def in_base64(text: bytes) -> str:
    """As some tools write it, in lines."""
    return base64.encodebytes(text).decode()


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
def test_keys_in_a_kubeconfig_are_not_put_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    certificate, key, authority = b"certificate " * 9, b"key " * 9, b"authority " * 9
    path = write(tmp_path / "a", "a", "a", user={
        "client-certificate-data": in_base64(certificate), "client-key-data": in_base64(key), "client-key": "other",
    })  # fmt: skip
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"] = {
        "server": "https://a:1",
        "certificate-authority-data": in_base64(authority),
    }
    path.write_text(yaml.safe_dump(document))
    loaded = load(ClusterConfig(kubeconfig=str(path)), {})
    anyio.run(loaded.credentials.prepare)
    found = loaded.configuration
    assert Path(found.cert_file).read_bytes() == certificate
    assert Path(found.key_file).read_bytes() == key
    assert Path(found.ssl_ca_cert).read_bytes() == authority
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "config", "message"),
    [
        ({}, {"context": "produciton"}, "did you mean 'production'"),
        ({"current-context": None}, {}, "choose one with --context: production, staging"),
        ("[broken", {}, "is not YAML"),
        ("", {}, "is empty"),
        ("- a\n", {}, "is not a mapping"),
        ({"users": []}, {}, "user 'u' of context 'production' is not defined"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, {}, "has no server"),
        (
            {"users": [{"name": "u", "user": {"client-key-data": "no base64!"}}]},
            {},
            "is no base64",
        ),
        ({"clusters": []}, {}, "Expected object with name c"),
        ({}, {"as_groups": ("devs",)}, "needs a user"),
    ],
)
def test_one_clear_error(tmp_path: Path, content: Any, config: dict[str, Any], message: str) -> None:
    path = tmp_path / "config"
    full: dict[str, Any] = {
        "current-context": "production",
        "contexts": [{"name": n, "context": {"cluster": "c", "user": "u"}} for n in ("production", "staging")],
        "clusters": [{"name": "c", "cluster": {"server": "http://x"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(full | content))
    with pytest.raises(UserError, match=message):
        load(ClusterConfig(kubeconfig=str(path), **config), {})


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load(ClusterConfig(kubeconfig=str(tmp_path / "none")), {})
    with pytest.raises(UserError, match="no kubeconfig found"):
        load(ClusterConfig(), {"HOME": str(tmp_path)})


def test_inside_a_pod(tmp_path: Path) -> None:
    for name, text in (("token", "abc\n"), ("ca.crt", "pem"), ("namespace", "chaos")):
        (tmp_path / name).write_text(text)
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    loaded = load(ClusterConfig(), environ, tmp_path)
    assert (loaded.configuration.host, loaded.namespace) == ("https://[fd00::1]:443", "chaos")
    (tmp_path / "token").unlink()
    with pytest.raises(UserError, match="token"):
        load(ClusterConfig(), environ, tmp_path)


def test_impersonation_of_the_kubeconfig_and_of_the_flags(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a", "a", "a", user={"as": "bot", "as-groups": ["robots"], "as-uid": "7"}))
    assert load(ClusterConfig(kubeconfig=path), {}).impersonate == [
        ("Impersonate-User", "bot"), ("Impersonate-Group", "robots"), ("Impersonate-Uid", "7"),
    ]  # fmt: skip
    flags = ClusterConfig(kubeconfig=path, as_user="me", as_groups=("x", "y"))
    assert load(flags, {}).impersonate == [
        ("Impersonate-User", "me"), ("Impersonate-Group", "x"), ("Impersonate-Group", "y"),
    ]  # fmt: skip


@pytest.mark.anyio
async def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "ca.pem").write_text("ca")
    path = write(folder / "config", "a", "a", user={"client-certificate": "me.pem", "client-key": "me.key"})
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"] = {
        "server": "https://x:1/", "certificate-authority": "ca.pem", "tls-server-name": "api", "proxy-url": "http://p:1",
    }  # fmt: skip
    path.write_text(yaml.safe_dump(document))
    loaded = load(ClusterConfig(kubeconfig=str(path)), {})
    with pytest.raises(UserError, match=r"me\.pem"):
        await loaded.credentials.prepare()
    for name in ("me.pem", "me.key"):
        (folder / name).write_text("x")
    loaded = load(ClusterConfig(kubeconfig=str(path)), {})
    await loaded.credentials.prepare()
    configuration = loaded.configuration
    assert (configuration.host, configuration.tls_server_name, configuration.proxy) == (
        "https://x:1",
        "api",
        "http://p:1",
    )
    assert (configuration.ssl_ca_cert, configuration.cert_file) == (str(folder / "ca.pem"), str(folder / "me.pem"))


@pytest.mark.anyio
async def test_basic_authentication(tmp_path: Path) -> None:
    loaded = load(
        ClusterConfig(kubeconfig=str(write(tmp_path / "a", "a", "a", user={"username": "u", "password": "p"}))), {}
    )
    await loaded.credentials.prepare()
    assert await loaded.credentials.authorization() == "Basic " + base64.b64encode(b"u:p").decode()

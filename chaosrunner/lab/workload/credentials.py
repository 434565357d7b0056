"""How to reach an API server: by a kubeconfig, or as a Pod does, by its ServiceAccount."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a Pod finds the token, the authority and the namespace of its ServiceAccount."""


class BadCredentials(Exception):
    """The kubeconfig cannot be read or lacks something, or this is no Pod with a ServiceAccount."""


@dataclass(frozen=True)
class ApiServer:
    """Where the API server is and how to speak to it; `namespace` is the one to look into."""

    host: str
    port: int
    prefix: str
    namespace: str
    tls: ssl.SSLContext | None
    """None for plain http."""
    token: Callable[[], str | None]
    """The bearer token as it is now: one that is kept in a file is replaced before it expires."""

    def headers(self) -> list[tuple[str, str]]:
        """What authenticates a request. Raises OSError where the file of the token cannot be read."""
        token = self.token()
        return [("Authorization", f"Bearer {token}")] if token else []


def api_server(kubeconfig: str | None, context: str | None, namespace: str | None) -> ApiServer:
    """By the kubeconfig where one is given, else as this Pod. Raises BadCredentials."""
    return read_kubeconfig(kubeconfig, context, namespace) if kubeconfig else in_pod(namespace)


def in_pod(
    namespace: str | None = None, folder: Path = SERVICE_ACCOUNT, variables: Mapping[str, str] = os.environ
) -> ApiServer:
    """The API server as a Pod's ServiceAccount reaches it. Raises BadCredentials where there is none.

    https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api
    """
    host, port = variables.get("KUBERNETES_SERVICE_HOST"), variables.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise BadCredentials("no kubeconfig is given, and this is no Pod: KUBERNETES_SERVICE_HOST is not set")
    token = folder / "token"
    try:
        token.read_text(encoding="ascii")
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        space = namespace or (folder / "namespace").read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise BadCredentials(f"{folder}: {error}") from error
    return ApiServer(host, int(port), "", space, tls, _of_file(token))


def read_kubeconfig(path: str, context: str | None = None, namespace: str | None = None) -> ApiServer:
    """Read a kubeconfig: certificates and keys in files or inline, `token` or `tokenFile`. Raises BadCredentials."""
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        name = context or config["current-context"]
        chosen = _named(config["contexts"], name, "context", path)
        cluster = _named(config["clusters"], chosen["cluster"], "cluster", path)
        user = _named(config["users"], chosen["user"], "user", path) if chosen.get("user") else {}
        url = urlsplit(cluster["server"])
        if url.scheme not in ("http", "https") or not url.hostname:
            raise BadCredentials(f"{path}: {cluster['server']} is no http or https address")
        port = url.port or (443 if url.scheme == "https" else 80)
        tls = _tls(cluster, user, Path(path).parent) if url.scheme == "https" else None
    except OSError as error:
        raise BadCredentials(f"{path}: {error}") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadCredentials(f"{path}: {error!r}") from error
    fixed = user.get("token")
    token = _of_file(Path(path).parent / user["tokenFile"]) if user.get("tokenFile") else lambda: fixed
    space = namespace or chosen.get("namespace") or "default"
    return ApiServer(url.hostname, port, url.path.rstrip("/"), space, tls, token)


def _of_file(path: Path) -> Callable[[], str]:
    return lambda: path.read_text(encoding="ascii").strip()


def _named(entries: Any, name: str, part: str, path: str) -> dict[str, Any]:
    for entry in entries or []:
        if entry.get("name") == name:
            return dict(entry[part] or {})
    raise BadCredentials(f"{path}: no {part} called {name!r}")


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _pem(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode("ascii") or None)
    pair = [_pem(user, name, folder) for name in ("client-certificate", "client-key")]
    if any(pair):
        if not all(pair):
            raise ValueError("client-certificate and client-key go together")
        # OpenSSL reads a certificate with its key from a file only.
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"\n".join(pair))
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _pem(entry: dict[str, Any], name: str, folder: Path) -> bytes:
    """What is inline wins over what is in a file, as in client-go. Relative paths begin at the kubeconfig."""
    if inline := entry.get(f"{name}-data"):
        return base64.b64decode(inline)
    return (folder / entry[name]).read_bytes() if entry.get(name) else b""

"""Proving who we are, again and again: tokens rotate and exec plugins' tokens expire while a drill runs."""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import structlog
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.exec_provider import ExecProvider
from kubernetes.aio.config.kube_config import ConfigNode

from chaosrunner.cluster.memory_files import file_of
from chaosrunner.errors import UserError

log = structlog.get_logger()

TOKEN_FILE_PERIOD = 60.0
"""Seconds between two readings of a token file, as in client-go; the kubelet renews a projected token well before it
expires."""

EXPIRY_MARGIN = 5.0
"""Seconds before it expires at which a token is no longer used, if another can be had."""


class Credentials(Protocol):
    """One way to authenticate."""

    async def prepare(self) -> None:
        """Read what the first request needs, certificates too. Raises UserError if that fails."""

    async def authorization(self) -> str | None:
        """The Authorization header's value at this moment; None without one. A refresh that fails leaves the old
        one in place: the server will say what it thinks of it."""

    async def renew(self) -> bool:
        """After a 401: get new credentials. True if they differ from the old ones, so that a retry makes sense.

        Raises UserError where there are none to be had.
        """


class LoaderCredentials:
    """What the client's loader does: static tokens, passwords, client certificates, OIDC and GCP."""

    def __init__(self, loader: Any, configuration: Any) -> None:
        self._loader = loader
        self._configuration = configuration

    async def prepare(self) -> None:
        try:
            await self._loader.load_and_set(self._configuration)
        except (ConfigException, ValueError, OSError) as error:
            raise UserError(f"kubeconfig: {error}") from error

    async def authorization(self) -> str | None:
        token: str | None = self._configuration.api_key.get("BearerToken")
        return token

    async def renew(self) -> bool:
        before = await self.authorization()
        await self.prepare()
        return await self.authorization() != before


class TokenFile:
    """A token in a file that somebody else keeps fresh: read again once a minute, when it is about to expire, and
    after a 401."""

    def __init__(self, path: Path, rest: Credentials | None) -> None:
        self._path = path
        self._rest = rest
        self._token = ""
        self._read_at = -TOKEN_FILE_PERIOD
        self._expires: float | None = None

    async def prepare(self) -> None:
        if self._rest is not None:
            await self._rest.prepare()
        self._read()

    async def authorization(self) -> str | None:
        expiring = self._expires is not None and time.time() >= self._expires - EXPIRY_MARGIN
        if expiring or time.monotonic() - self._read_at >= TOKEN_FILE_PERIOD:
            try:
                self._read()
            except UserError as error:
                log.warning("token file cannot be read again", error=str(error))
        return f"Bearer {self._token}"

    async def renew(self) -> bool:
        before = self._token
        self._read()
        return self._token != before

    def _read(self) -> None:
        try:
            self._token = self._path.read_text().strip()
        except OSError as error:
            raise UserError(f"token file {self._path} cannot be read: {error}") from error
        self._read_at = time.monotonic()
        self._expires = expiry(self._token)


def expiry(token: str) -> float | None:
    """When a token says that it expires, unix seconds (`exp` of a JSON Web Token, RFC 7519 section 4.1.4); None for one
    that does not say, or is no such token. Nothing is verified: that is for the server to do."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None


class ExecPlugin:
    """A credential plugin: a command that prints an ExecCredential with a token, a client certificate, or both.

    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
    """

    def __init__(self, spec: dict[str, Any], folder: Path, configuration: Any, rest: Credentials) -> None:
        spec = dict(spec)
        command = str(spec.get("command", ""))
        if os.sep in command and not Path(command).is_absolute():
            # A relative path is relative to the kubeconfig, a bare name is looked up in PATH.
            spec["command"] = str(folder / command)
        self._spec = spec
        self._configuration = configuration
        self._rest = rest
        self._token: str | None = None
        self._expires: float | None = None

    async def prepare(self) -> None:
        await self._rest.prepare()
        await self._run()

    async def authorization(self) -> str | None:
        if self._expires is not None and time.time() >= self._expires - EXPIRY_MARGIN:
            try:
                await self._run()
            except UserError as error:
                log.warning("token has expired and cannot be renewed", error=str(error))
        return f"Bearer {self._token}" if self._token else None

    async def renew(self) -> bool:
        await self._run()
        return True

    async def _run(self) -> None:
        command = self._spec.get("command")
        try:
            status = await ExecProvider(ConfigNode("exec", self._spec)).run()
        except (ConfigException, OSError) as error:
            hint = self._spec.get("installHint")
            raise UserError(f"credential plugin {command!r}: {error}" + (f"\n{hint}" if hint else "")) from error
        self._token = status.get("token")
        expires = status.get("expirationTimestamp")
        self._expires = datetime.fromisoformat(expires).timestamp() if expires else None
        certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
        if certificate and key:
            self._configuration.cert_file = file_of(certificate.encode())
            self._configuration.key_file = file_of(key.encode())
        elif not self._token:
            raise UserError(f"credential plugin {command!r} printed neither a token nor a client certificate")
        log.debug("credential plugin ran", command=command, expires=expires)

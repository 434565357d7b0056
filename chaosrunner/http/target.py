"""Where requests go, and how they look on the wire."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from chaosrunner.errors import UserError

_VALUE = re.compile(r"[^\r\n\0]*")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_KEPT = 64
"""Heads that are kept, ready to be sent."""

_CONNECTION_FIELDS = {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te"}
"""What HTTP/2 does not have (RFC 9113, section 8.2.2)."""

Fields = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy."""

    host: str
    port: int
    authorization: str | None

    @classmethod
    def of(cls, address: str) -> Proxy:
        """Raises UserError where the address is not http://[user:password@]host[:port]."""
        url = httpx.URL(check_url(address))
        if url.scheme != "http":
            raise UserError(f"{address!r} is not an http:// proxy")
        return cls(url.raw_host.decode("ascii"), url.port or 80, _login(url))


class Target:
    """A base URL and the header fields that all requests to it have.

    Raises UserError for an address or a header of no use.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], proxy: Proxy | None = None) -> None:
        self._base = check_url(base_url)
        url = httpx.URL(self._base)
        self.secure = url.scheme == "https"
        self.host = url.raw_host.decode("ascii")
        self.port = url.port or (443 if self.secure else 80)
        self.authority = url.netloc.decode("ascii")
        self._headers = {name.lower(): value for name, value in headers.items()}
        if (login := _login(url)) is not None:
            self._headers.setdefault("authorization", login)
        self._origin = b""
        if proxy is not None and not self.secure:  # the request names its target, RFC 9112, section 3.2.2
            self._origin = b"http://" + self.authority.encode("ascii")
            if proxy.authorization is not None:
                self._headers["proxy-authorization"] = proxy.authorization
        # The mapping stays referenced, or its id would be another's one day.
        self._heads: dict[tuple[str, str, int], tuple[Mapping[str, str] | None, bytes]] = {}

    def path(self, path: str) -> bytes:
        """The request target of a path below the base URL, with what may not be in one percent-encoded."""
        return httpx.URL(self._base + path).raw_path

    def fields(self, headers: Mapping[str, str] | None) -> Fields:
        """Header fields of a request, names in lower case, those about the message's framing and the host apart."""
        merged = self._headers | {name.lower(): value for name, value in (headers or {}).items()}
        fields: Fields = []
        for name, value in merged.items():
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise UserError(f"the request header {name!r} has a name or a value that no header may have")
            fields.append((name.encode("ascii"), value.strip().encode()))
        return fields

    def request(self, method: str, path: str, headers: Mapping[str, str] | None, content: bytes | None) -> bytes:
        """A whole HTTP/1.1 request. Its head is made once for each mapping of headers, which must not change."""
        key = (method, path, id(headers))
        kept = self._heads.get(key)
        if kept is None or kept[0] is not headers:
            if len(self._heads) >= _KEPT:
                self._heads.clear()
            kept = self._heads[key] = headers, self._head(method, path, headers)
        if content is not None:
            return b"%scontent-length: %d\r\n\r\n%s" % (kept[1], len(content), content)
        return kept[1] + (b"content-length: 0\r\n\r\n" if method in ("POST", "PUT", "PATCH") else b"\r\n")

    def _head(self, method: str, path: str, headers: Mapping[str, str] | None) -> bytes:
        lines = [b"%s %s%s HTTP/1.1" % (method.encode("ascii"), self._origin, self.path(path))]
        fields = self.fields(headers)
        if not any(name == b"host" for name, _ in fields):
            lines.append(b"host: %s" % self.authority.encode("ascii"))
        lines += [b"%s: %s" % field for field in fields]
        return b"\r\n".join([*lines, b""])

    def http2_fields(self, method: str, path: str, headers: Mapping[str, str] | None, content: bytes | None) -> Fields:
        """The header fields of an HTTP/2 request (RFC 9113, section 8.3.1)."""
        fields = [(name, value) for name, value in self.fields(headers) if name not in _CONNECTION_FIELDS]
        named = next((value for name, value in fields if name == b"host"), self.authority.encode("ascii"))
        if content is not None:
            fields.append((b"content-length", b"%d" % len(content)))
        return [
            (b":method", method.encode("ascii")),
            (b":scheme", b"https" if self.secure else b"http"),
            (b":authority", named),
            (b":path", self.path(path)),
            *((name, value) for name, value in fields if name != b"host"),
        ]


def _login(url: httpx.URL) -> str | None:
    """The value of an Authorization header for the user that a URL names."""
    if not url.userinfo:
        return None
    return f"Basic {base64.b64encode(f'{url.username}:{url.password}'.encode()).decode()}"


def check_url(base_url: str) -> str:
    """The base URL without its last slash. Raises UserError where it is none."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise UserError(f"{base_url!r} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"{base_url!r} is not an http:// or https:// URL with a host")
    return base_url.rstrip("/")


def tls_context(ca: str | None, insecure: bool, *, http2: bool = False) -> ssl.SSLContext:
    """Certificates are checked against the system's authorities, or `ca` (PEM file); `insecure` checks nothing."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot read the CA file {ca}: {error}") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"] if http2 else ["http/1.1"])
    return context

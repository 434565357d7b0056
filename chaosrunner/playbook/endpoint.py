"""Where the probes send their requests, and where alert states are asked."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic.json_schema import WithJsonSchema

from chaosrunner.playbook.base import FilePath, Model, PositiveDuration, Text, mistake, reader
from chaosrunner.playbook.requests import HeaderName
from chaosrunner.playbook.secret import Secret
from chaosrunner.timeline.redact import is_sensitive


def _header_kind(value: Any) -> str:
    return "secret" if isinstance(value, dict | Secret) else "text"


HeaderValue = Annotated[Annotated[str, Tag("text")] | Annotated[Secret, Tag("secret")], Discriminator(_header_kind)]


def _hide(headers: Any) -> Any:
    if not isinstance(headers, dict):
        return headers
    return {
        name: {"value": value} if isinstance(value, str) and is_sensitive(str(name)) else value
        for name, value in headers.items()
    }


Headers = Annotated[
    dict[HeaderName, HeaderValue],
    reader(_hide),
]
"""Header name to text, or to a credential; text under a name like Authorization counts as a credential."""


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise mistake(f'"{value}" is no URL', "like https://gateway.example.com")
    if parts.username is not None or parts.password is not None:
        raise mistake("a URL with credentials ends up in logs", "use api_key or headers with {env: NAME}")
    if parts.query or parts.fragment:
        raise mistake("the URL is a base to which paths are added; it has no query and no fragment")
    return value.rstrip("/")


Url = Annotated[str, AfterValidator(_url)]


def resolve_headers(headers: dict[str, str | Secret]) -> dict[str, str]:
    """Headers with their credentials, read now. Raises `UserError` where one cannot be had."""
    return {name: value.resolve() if isinstance(value, Secret) else value for name, value in headers.items()}


def _read_port(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    if isinstance(value, str) and re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        return int(value) if value.isdigit() and 1 <= int(value) <= 65535 else value
    raise ValueError("expected a port number from 1 to 65535, or the name of a port of the Service, like http")


class Replicas(Model):
    """How probes with `target: replicas` reach each replica by its own address. Headers, `api_key` and what a request
    asks for are the endpoint's; there is no path before that of the API, and no proxy but the one given here."""

    port: (
        Annotated[
            int | str,
            reader(_read_port),
            WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string"}]}),
        ]
        | None
    ) = None
    """Number of the port at the Pods, or the name that the workload's Service gives it; the Service's only port where
    absent."""
    scheme: Literal["http", "https"] = "http"
    """Whether the replicas speak TLS themselves."""
    host: Text | None = None
    """Host header of the requests and, with `https`, the name that the certificate must have, and not the Pod's
    address; the host of `endpoint.url` where absent, as a gateway passes it on."""
    family: Literal["IPv4", "IPv6"] | None = None
    """Which address of a Pod with two; its first (`status.podIP`) where absent."""
    credentials: bool = True
    """Whether `api_key` and other credentials among the endpoint's headers are sent to the replicas too."""
    ca: FilePath | None = None
    """File of CA certificates instead of the endpoint's `ca`; relative to the drill's file."""
    insecure: bool | None = None
    """Do not verify the replicas' certificates; as for the endpoint where absent."""
    http2: bool = False
    """Speak HTTP/2 to the replicas."""
    proxy: Url | None = None
    """HTTP proxy that reaches the Pods, where this machine does not."""

    @model_validator(mode="after")
    def _consistent(self) -> Replicas:
        if self.ca is not None and self.insecure:
            raise mistake("ca and insecure exclude each other")
        return self


class Endpoint(Model):
    """Where the probes send their requests."""

    url: Url | None = None
    """Base URL of the gateway or Service; a rehearsal uses the lab's."""
    pod_header: Text | None = None
    """Response header that names the serving Pod (its name or address); without it losses cannot be placed."""
    api_key: Secret | None = None
    """Sent as `Authorization: Bearer ...`."""
    headers: Headers = Field(default_factory=dict)
    """More request headers."""
    ca: FilePath | None = None
    """File of CA certificates to trust instead of the system's; relative to the drill's file."""
    insecure: bool = False
    """Do not verify the server's certificate."""
    http2: bool = False
    """Speak HTTP/2, over TLS or, by prior knowledge, without. Needs the package `h2` (`chaosrunner[http2]`)."""
    proxy: Url | None = None
    """HTTP proxy between, `http://host:port`; none is taken from the environment."""
    model: Text | None = None
    """Model asked for where a probe names none."""
    replicas: Replicas = Replicas()
    """For probes with `target: replicas`: how each replica is reached by its own address."""

    @model_validator(mode="after")
    def _consistent(self) -> Endpoint:
        if self.ca is not None and self.insecure:
            raise mistake("ca and insecure exclude each other")
        return self


class Prometheus(Model):
    """Where alert states are asked."""

    url: Url | None = None
    """Base URL; a rehearsal uses the lab's alert source."""
    interval: PositiveDuration = 5.0
    """Time between two polls."""
    headers: Headers = Field(default_factory=dict)
    """Request headers."""
    rules: bool = True
    """Ask /api/v1/rules too, which tells rules that could not be evaluated from alerts that are not firing."""
    ca: FilePath | None = None
    """File of CA certificates to trust instead of the system's; relative to the drill's file."""
    insecure: bool = False
    """Do not verify the server's certificate."""

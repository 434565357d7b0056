"""Which cluster, as whom: kubectl's rules for finding a kubeconfig, applied with the official client's loader.

Order (https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/): the file given
explicitly; else the files of `KUBECONFIG`, merged, where the first to set a value wins; else `~/.kube/config`; else,
inside a Pod, its service account.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from kubernetes.aio.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger

from chaosrunner.cluster.credentials import Credentials, ExecPlugin, LoaderCredentials, TokenFile
from chaosrunner.cluster.memory_files import without_data
from chaosrunner.errors import UserError

CONNECT = 5.0
"""Longest wait for a connection where nobody says how long, seconds: it is asked for again anyway, and an API server
that is away is to be noticed soon."""

LONGEST_CONNECT = 30.0
"""Longest wait for a connection whatever is said, seconds: the limit of kubectl's dialer (client-go, transport)."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What kubectl's flags of the same names say; everything left out follows kubectl's rules.

    kubectl has no flag for a connection alone: its `--request-timeout` is for the whole request, the connection
    included.
    """

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    as_user: str | None = None
    as_groups: tuple[str, ...] = ()
    request_timeout: float = 30.0
    """Seconds for a whole request, 0 for no limit. An eviction may take 10 s inside the API server (it retries a
    conflicting budget 20 times at 500 ms), so keep it above that."""
    connect_timeout: float = CONNECT
    """Seconds for a connection, within the request's."""


@dataclass(slots=True, kw_only=True)
class Loaded:
    """A cluster's address, our way to prove who we are, and where we are by default."""

    context: str
    cluster: str
    """The cluster's name in the kubeconfig; `in-cluster` where there is none."""
    namespace: str
    configuration: Any
    credentials: Credentials
    impersonate: list[tuple[str, str]]


def load(config: ClusterConfig, environ: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> Loaded:
    """Find and read the configuration.

    Raises UserError, with what to mend, when a file, a context or what it refers to is missing or malformed.
    """
    configuration = Configuration()
    # kubectl does not insist on RFC 5280's optional extensions, which Python does from 3.13 on.
    configuration.disable_strict_ssl_verification = True
    paths = _paths(config.kubeconfig, environ)
    try:
        if paths:
            return _from_files(config, paths, configuration)
        if config.context is None and "KUBERNETES_SERVICE_HOST" in environ:
            return _in_cluster(config, configuration, environ, account)
    except ConfigException as error:
        raise UserError(f"kubeconfig: {error}") from error
    if "KUBERNETES_SERVICE_HOST" in environ:
        raise UserError(
            f"no kubeconfig found that could have context {config.context!r}: inside a Pod the context is in-cluster"
        )
    raise UserError(
        "no kubeconfig found: give --kubeconfig, set KUBECONFIG, or create ~/.kube/config (and not inside a Pod)"
    )


def _paths(explicit: str | None, environ: Mapping[str, str]) -> list[Path]:
    """The files to read. An explicit one must exist; of the others, missing ones are passed over, as kubectl does."""
    if explicit is not None:
        path = Path(explicit).expanduser()
        if not path.is_file():
            raise UserError(f"kubeconfig {path} does not exist")
        return [path]
    listed = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if not listed:
        listed = [str(Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config")]
    return [path for part in listed if _there(path := Path(part))]


def _there(path: Path) -> bool:
    """Whether a file is there, as far as we may look: the home of somebody else has none for us."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _from_files(config: ClusterConfig, paths: Sequence[Path], configuration: Any) -> Loaded:
    documents = {path: document for path in paths if (document := _read(path))}
    if not documents:
        raise UserError(f"kubeconfig {', '.join(map(str, paths))} is empty")
    # The client's merger lets the last file's current-context win; kubectl lets the first.
    current = next((name for d in documents.values() if (name := d.get("current-context"))), None)
    merged = KubeConfigMerger(os.pathsep.join(map(str, documents))).config
    names = [str(node["name"]) for node in merged.value["contexts"]]
    name = config.context or current
    if name is None:
        raise UserError(f"no current-context is set; choose one with --context: {', '.join(names) or 'none defined'}")
    if name not in names:
        raise UserError(f"context {name!r} does not exist{_did_you_mean(name, names)}")
    context = merged["contexts"].get_with_name(name)["context"]
    cluster = merged["clusters"].get_with_name(context["cluster"])
    if not cluster["cluster"].safe_get("server"):
        raise UserError(f"cluster {context['cluster']!r} of context {name!r} has no server")
    configuration.host = cluster["cluster"]["server"].rstrip("/")
    # As Go's HTTP client has it, proxies of the environment are never used for this machine itself.
    configuration.client_session_kwargs = {"trust_env": not _is_local(configuration.host)}
    user_name = context.safe_get("user")
    node = merged["users"].get_with_name(user_name, safe=True) if user_name else None
    user: dict[str, Any] = dict((node.value.get("user") if node else None) or {})
    path = Path(str(node.path)) if node else paths[0]
    if user_name and node is None:
        raise UserError(f"user {user_name!r} of context {name!r} is not defined in {', '.join(map(str, paths))}")
    execution, token_file = user.pop("exec", None), user.pop("tokenFile", None)
    try:
        user, cluster_fields = without_data(user), without_data(cluster["cluster"].value)
    except ValueError as error:
        raise UserError(f"kubeconfig: a certificate or key of context {name!r} is no base64: {error}") from error
    loader = KubeConfigLoader(
        ConfigNode(
            "kube-config",
            {
                "current-context": name,
                "contexts": [{"name": name, "context": {"cluster": context["cluster"], "user": "user"}}],
                "clusters": [
                    ConfigNode("cluster", {"name": context["cluster"], "cluster": cluster_fields}, str(cluster.path))
                ],
                "users": [ConfigNode("user", {"name": "user", "user": user or {"": ""}}, str(path))],
            },
            str(path),
        ),
        config_base_path=None,
    )
    credentials: Credentials = LoaderCredentials(loader, configuration)
    if execution:
        credentials = ExecPlugin(execution, path.parent, configuration, credentials)
    elif token_file:
        credentials = TokenFile(path.parent / token_file, credentials)
    return Loaded(
        context=name,
        cluster=str(context["cluster"]),
        namespace=config.namespace or context.safe_get("namespace") or "default",
        configuration=configuration,
        credentials=credentials,
        impersonate=_impersonate(config, user),
    )


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"kubeconfig {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"kubeconfig {path} is not YAML: {error}") from error
    if document is not None and not isinstance(document, dict):
        raise UserError(f"kubeconfig {path} is not a mapping")
    return document


def _in_cluster(config: ClusterConfig, configuration: Any, environ: Mapping[str, str], account: Path) -> Loaded:
    token = account / "token"
    if not token.is_file():
        raise UserError(f"no ServiceAccount token at {token}: let the Pod have one (automountServiceAccountToken)")
    InClusterConfigLoader(str(token), str(account / "ca.crt"), try_refresh_token=False, environ=environ).load_and_set(
        configuration
    )
    return Loaded(
        context="in-cluster",
        cluster="in-cluster",
        namespace=config.namespace or namespace_of(account) or "default",
        configuration=configuration,
        credentials=TokenFile(token, None),
        impersonate=_impersonate(config, {}),
    )


def namespace_of(account: Path = SERVICE_ACCOUNT) -> str | None:
    """The namespace of the Pod in which this runs, by the folder of its ServiceAccount's token; None where there is
    none."""
    try:
        return (account / "namespace").read_text().strip() or None
    except OSError:
        return None


def _impersonate(config: ClusterConfig, user: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Impersonation headers; the flags replace what the kubeconfig's user says (`as`, `as-groups`, `as-uid`).

    https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
    """
    name = config.as_user or user.get("as")
    groups = config.as_groups or tuple(user.get("as-groups") or ())
    if groups and not name:
        raise UserError("impersonating a group needs a user to impersonate as well (--as)")
    headers = [("Impersonate-User", str(name))] if name else []
    headers += [("Impersonate-Group", str(group)) for group in groups]
    if not config.as_user and user.get("as-uid"):
        headers.append(("Impersonate-Uid", str(user["as-uid"])))
    return headers


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {', '.join(names)}" if names else "; none is defined"

"""The lab's keys and certificates: two authorities, a certificate a component, kubeconfigs for all who need one.

Names and groups are those by which Kubernetes' own roles know its components
(https://kubernetes.io/docs/setup/best-practices/certificates/).
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chaosrunner.lab.real.network import API_SERVICE, CONTROL_PLANE, Node
from chaosrunner.lab.real.state import State

CONTEXT = "lab"
SERVER = f"https://{CONTROL_PLANE}:6443"

_DAYS = 365
_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def write(state: State, nodes: Sequence[Node]) -> None:
    """Make all keys, certificates and kubeconfigs of a new lab."""
    state.pki.mkdir(mode=0o700, exist_ok=True)
    cluster, etcd = (_authority(state.pki / name, name) for name in ("ca", "etcd-ca"))
    local = ["127.0.0.1", CONTROL_PLANE]
    _issue(state.pki / "etcd", etcd, "etcd", addresses=local, names=["localhost"])
    _issue(state.pki / "etcd-client", etcd, "kube-apiserver")
    _issue(state.pki / "apiserver", cluster, "kube-apiserver", addresses=[*local, API_SERVICE], names=_SERVER_NAMES)
    _issue(state.pki / "kubelet-client", cluster, "kube-apiserver-kubelet-client", "system:masters")
    for node in nodes:
        _issue(
            state.pki / f"kubelet-{node.name}",
            cluster,
            f"system:node:{node.name}",
            "system:nodes",
            addresses=[node.address],
            names=[node.name],
        )
    for name, user, group in (
        ("kube-controller-manager", "system:kube-controller-manager", None),
        ("kube-scheduler", "system:kube-scheduler", None),
        ("kube-proxy", "system:kube-proxy", None),
        ("admin", "admin", "system:masters"),
    ):
        _issue(state.pki / name, cluster, user, group)
    _write_key(state.pki / "sa.key", key := _key())
    public = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (state.pki / "sa.pub").write_bytes(key.public_key().public_bytes(*public))

    for node in nodes:
        _write_kubeconfig(state, state.pki / f"kubelet-{node.name}.kubeconfig", certificate=f"kubelet-{node.name}")
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
        _write_kubeconfig(state, state.pki / f"{name}.kubeconfig", certificate=name)
    _write_kubeconfig(state, state.kubeconfig, certificate="admin")


def write_token_kubeconfig(state: State, path: Path, token: str, namespace: str) -> None:
    """A kubeconfig for the bearer of a ServiceAccount's token."""
    _write(path, _kubeconfig(state, {"token": token}, namespace))


def _write_kubeconfig(state: State, path: Path, *, certificate: str) -> None:
    data = {
        "client-certificate-data": _encoded(state.pki / f"{certificate}.crt"),
        "client-key-data": _encoded(state.pki / f"{certificate}.key"),
    }
    _write(path, _kubeconfig(state, data, "default"))


def _kubeconfig(state: State, user: dict[str, str], namespace: str) -> dict[str, Any]:
    """A kubeconfig of one context that needs no other file. It is JSON, which is YAML too."""
    cluster = {"server": SERVER, "certificate-authority-data": _encoded(state.pki / "ca.crt")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace}}],
        "current-context": CONTEXT,
    }


def _write(path: Path, config: dict[str, Any]) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1) + "\n")


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _authority(path: Path, name: str) -> _Authority:
    key = _key()
    subject = _name(name)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    _write_pair(path, certificate, key)
    return _Authority(certificate, key)


def _issue(
    path: Path,
    authority: _Authority,
    user: str,
    group: str | None = None,
    *,
    addresses: Sequence[str] = (),
    names: Sequence[str] = (),
) -> None:
    """A certificate for a client, and for a server too where it has addresses."""
    key = _key()
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if addresses else [])]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name(user, group), authority.certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(signer, critical=False)
    )
    if addresses:
        found: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        found += [x509.DNSName(name) for name in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=False)
    _write_pair(path, builder.sign(authority.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _name(user: str, group: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _write_pair(path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    path.with_name(f"{path.name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(path.with_name(f"{path.name}.key"), key)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )

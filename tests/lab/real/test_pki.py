"""Keys and certificates of a real lab, read back as the components read them."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chaosrunner.lab.real import network, pki
from chaosrunner.lab.real.state import State


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "lab")
    state.folder.mkdir()
    pki.write(state, network.nodes(2))
    return state


def certificate(state: State, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((state.pki / f"{name}.crt").read_bytes())


def named(certificate: x509.Certificate) -> tuple[str, str | None]:
    user = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    groups = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    return str(user), groups[0] if groups else None


# https://kubernetes.io/docs/reference/access-authn-authz/node/ and .../rbac/#core-component-roles
@pytest.mark.parametrize(
    ("name", "user", "group"),
    [
        ("kubelet-node1", "system:node:node1", "system:nodes"),
        ("kubelet-infra", "system:node:infra", "system:nodes"),
        ("kube-controller-manager", "system:kube-controller-manager", None),
        ("kube-scheduler", "system:kube-scheduler", None),
        ("kube-proxy", "system:kube-proxy", None),
        ("admin", "admin", "system:masters"),
    ],
)
def test_each_component_has_the_name_that_kubernetes_roles_know(
    state: State, name: str, user: str, group: str | None
) -> None:
    found = certificate(state, name)
    assert named(found) == (user, group)
    found.verify_directly_issued_by(certificate(state, "ca"))
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.CLIENT_AUTH in usage


def test_etcd_trusts_nobody_whom_only_the_cluster_trusts(state: State) -> None:
    certificate(state, "etcd-client").verify_directly_issued_by(certificate(state, "etcd-ca"))
    with pytest.raises(ValueError):
        certificate(state, "admin").verify_directly_issued_by(certificate(state, "etcd-ca"))


def test_the_api_server_is_known_by_each_of_its_addresses(state: State) -> None:
    names = certificate(state, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"10.200.0.1", "10.96.0.1", "127.0.0.1"}
    assert "kubernetes.default.svc.cluster.local" in names.get_values_for_type(x509.DNSName)


def test_the_keys_of_service_accounts_belong_together(state: State) -> None:
    private = load_pem_private_key((state.pki / "sa.key").read_bytes(), None)
    public = load_pem_public_key((state.pki / "sa.pub").read_bytes())
    assert private.public_key() == public  # type: ignore[comparison-overlap]


def test_a_kubeconfig_needs_no_other_file_and_is_private(state: State, tmp_path: Path) -> None:
    config = json.loads(state.kubeconfig.read_text())
    user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
    for name, data in (("crt", user["client-certificate-data"]), ("key", user["client-key-data"])):
        (tmp_path / name).write_bytes(base64.b64decode(data))
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    assert cluster["server"] == "https://10.200.0.1:6443"


def test_nobody_else_may_read_a_key(state: State) -> None:
    secret = [state.kubeconfig, *state.pki.glob("*.key"), *state.pki.glob("*.kubeconfig")]
    assert len(secret) > 10
    assert [path for path in secret if path.stat().st_mode & 0o077] == []

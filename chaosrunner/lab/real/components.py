"""The programs of the lab and their flags: control plane here, what runs on a node in `node`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chaosrunner.lab.real.binaries import Binaries
from chaosrunner.lab.real.network import CONTROL_PLANE, SERVICES, Node
from chaosrunner.lab.real.state import State

ISSUER = "https://kubernetes.default.svc.cluster.local"
"""Who signs ServiceAccount tokens, and for whom they are good."""

NODE_GRACE = 8
"""Seconds of silence after which a node counts as lost, and the length of its Lease."""
NODE_HEARTBEAT = 2
"""Seconds between two heartbeats of a node."""

ETCD = "etcd"
API_SERVER = "kube-apiserver"

_ETCD_CLIENTS = "https://127.0.0.1:2379"
_ETCD_PEERS = "https://127.0.0.1:2380"


@dataclass(frozen=True)
class Component:
    """A program that the keeper runs. `node`: in whose network; the control plane's own where absent."""

    name: str
    command: Sequence[str]
    node: Node | None = None

    @property
    def is_runtime(self) -> bool:
        """Whether it is a node's containerd."""
        return self.name.startswith("containerd@")

    @property
    def whole_command(self) -> list[str]:
        return self.node.inside(self.command) if self.node else list(self.command)


def control_plane(state: State, binaries: Binaries) -> list[Component]:
    """etcd, API server, controller manager and scheduler, in the order of their start."""
    pki = state.pki
    kubernetes = str(binaries.kubernetes)
    etcd_tls = [
        f"--cert-file={pki}/etcd.crt",
        f"--key-file={pki}/etcd.key",
        f"--trusted-ca-file={pki}/etcd-ca.crt",
        "--client-cert-auth",
        f"--peer-cert-file={pki}/etcd.crt",
        f"--peer-key-file={pki}/etcd.key",
        f"--peer-trusted-ca-file={pki}/etcd-ca.crt",
        "--peer-client-cert-auth",
    ]
    return [
        Component(
            ETCD,
            [
                kubernetes,
                "etcd",
                f"--data-dir={state.folder}/etcd",
                # A lab outlives its processes at most, never its machine.
                "--unsafe-no-fsync",
                f"--listen-client-urls={_ETCD_CLIENTS}",
                f"--advertise-client-urls={_ETCD_CLIENTS}",
                f"--listen-peer-urls={_ETCD_PEERS}",
                f"--initial-advertise-peer-urls={_ETCD_PEERS}",
                f"--initial-cluster=default={_ETCD_PEERS}",
                *etcd_tls,
            ],
        ),
        Component(
            API_SERVER,
            [
                kubernetes,
                "kube-apiserver",
                f"--etcd-servers={_ETCD_CLIENTS}",
                f"--etcd-cafile={pki}/etcd-ca.crt",
                f"--etcd-certfile={pki}/etcd-client.crt",
                f"--etcd-keyfile={pki}/etcd-client.key",
                "--secure-port=6443",
                "--bind-address=0.0.0.0",
                f"--advertise-address={CONTROL_PLANE}",
                f"--tls-cert-file={pki}/apiserver.crt",
                f"--tls-private-key-file={pki}/apiserver.key",
                f"--client-ca-file={pki}/ca.crt",
                f"--kubelet-certificate-authority={pki}/ca.crt",
                f"--kubelet-client-certificate={pki}/kubelet-client.crt",
                f"--kubelet-client-key={pki}/kubelet-client.key",
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-issuer={ISSUER}",
                f"--service-account-key-file={pki}/sa.pub",
                f"--service-account-signing-key-file={pki}/sa.key",
                f"--service-cluster-ip-range={SERVICES}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
            ],
        ),
        Component(
            "kube-controller-manager",
            [
                kubernetes,
                "kube-controller-manager",
                f"--kubeconfig={pki}/kube-controller-manager.kubeconfig",
                f"--service-account-private-key-file={pki}/sa.key",
                f"--root-ca-file={pki}/ca.crt",
                "--use-service-account-credentials",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--node-monitor-period=1s",
                f"--node-monitor-grace-period={NODE_GRACE}s",
            ],
        ),
        Component(
            "kube-scheduler",
            [
                kubernetes,
                "kube-scheduler",
                f"--kubeconfig={pki}/kube-scheduler.kubeconfig",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
            ],
        ),
    ]

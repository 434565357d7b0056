"""What runs on a node: containerd, kubelet and kube-proxy, with their configuration files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from chaosrunner.lab.manifests import INFRA_LABEL, INFRA_TAINT
from chaosrunner.lab.real import cgroups
from chaosrunner.lab.real.binaries import Binaries
from chaosrunner.lab.real.components import NODE_GRACE, NODE_HEARTBEAT, Component
from chaosrunner.lab.real.network import DNS_SERVICE, PODS, Node
from chaosrunner.lab.real.state import State


def components(state: State, binaries: Binaries, node: Node, pause: str) -> list[Component]:
    """Write the node's configuration; return its programs in the order of their start. `pause`: an image."""
    folder = state.node(node.name)
    for name in ("cni", "kubelet", "plugins", "pod-logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "containerd.toml").write_text(_containerd(state, binaries, node, pause))
    _write(folder / "cni" / "10-lab.conflist", _cni(folder, node))
    _write(folder / "kubelet.json", _kubelet(state, node))
    _write(folder / "kube-proxy.json", _proxy(state, node))
    (folder / "resolv.conf").touch()
    labels = ",".join(f"{key}={value}" for key, value in INFRA_LABEL.items()) if node.is_infra else ""
    kubelet = [
        str(binaries.kubernetes),
        "kubelet",
        f"--kubeconfig={state.pki}/kubelet-{node.name}.kubeconfig",
        f"--config={folder}/kubelet.json",
        f"--root-dir={folder}/kubelet",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        *([f"--node-labels={labels}"] if labels else []),
        "--v=2",
    ]
    proxy = [str(binaries.kubernetes), "kube-proxy", f"--config={folder}/kube-proxy.json"]
    return [
        Component(f"containerd@{node.name}", [str(binaries.containerd), "-c", f"{folder}/containerd.toml"], node),
        Component(f"kubelet@{node.name}", kubelet, node),
        Component(f"kube-proxy@{node.name}", proxy, node),
    ]


def _containerd(state: State, binaries: Binaries, node: Node, pause: str) -> str:
    folder = state.node(node.name)
    disabled = ["snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper", "nri.v1.nri"]
    return f"""\
version = 3
root = "{folder}/containerd"
state = "{folder}/containerd-state"
disabled_plugins = [{", ".join(f'"io.containerd.{name}"' for name in disabled)}]
[grpc]
  address = "{state.containerd(node.name)}"
[plugins.'io.containerd.internal.v1.opt']
  path = "{folder}/opt"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE runc may not make a process less likely to be killed than itself.
  restrict_oom_score_adj = true
  # Its profile would be loaded into the machine's kernel, and stay.
  disable_apparmor = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{binaries.folder}"]
  conf_dir = "{folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{shutil.which("runc")}"
  SystemdCgroup = false
"""


def _cni(folder: Path, node: Node) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": f"{folder}/addresses",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {"cniVersion": "1.0.0", "name": "lab", "plugins": [bridge]}


def _kubelet(state: State, node: Node) -> dict[str, Any]:
    folder = state.node(node.name)
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{state.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{state.pki}/kubelet-{node.name}.crt",
        "tlsPrivateKeyFile": f"{state.pki}/kubelet-{node.name}.key",
        "containerRuntimeEndpoint": f"unix://{state.containerd(node.name)}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{state.name}/{node.name}",
        "enforceNodeAllocatable": ["none"],
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": {"imagefs.available": "100Mi", "nodefs.available": "100Mi", "memory.available": "50Mi"},
        # Images are imported, not pulled: one that is collected would be gone for good.
        "imageGCHighThresholdPercent": 100,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{folder}/resolv.conf",
        "podLogsDir": f"{folder}/pod-logs",
        "volumePluginDir": f"{folder}/plugins",
        "nodeStatusUpdateFrequency": f"{NODE_HEARTBEAT}s",
        "nodeLeaseDurationSeconds": NODE_GRACE,
        "registerWithTaints": [INFRA_TAINT] if node.is_infra else [],
    }
    if not cgroups.is_unified():
        config["failCgroupV1"] = False
    return config


def _proxy(state: State, node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": node.name,
        "clusterCIDR": PODS,
        "clientConnection": {"kubeconfig": f"{state.pki}/kube-proxy.kubeconfig"},
        # The machine's limits of connections are not ours to change.
        "conntrack": {"maxPerCore": 0},
        "nftables": {"minSyncPeriod": "50ms"},
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")

"""Traffic sources: what they send, how they read what comes back, and how they judge it. No Kubernetes in here."""

from chaosrunner.probes.attempt import Expect
from chaosrunner.probes.once import probe_once
from chaosrunner.probes.replicas import Replica, Replicas
from chaosrunner.probes.run import run_probe
from chaosrunner.probes.self_check import self_check
from chaosrunner.probes.spec import Limits, Overrides, ProbeSpec, Shape
from chaosrunner.probes.tap import Tap

__all__ = [
    "Expect",
    "Limits",
    "Overrides",
    "ProbeSpec",
    "Replica",
    "Replicas",
    "Shape",
    "Tap",
    "probe_once",
    "run_probe",
    "self_check",
]

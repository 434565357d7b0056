"""Steps of a playbook, one module a subject: what is aimed at, what is done, what is waited for."""

from chaosrunner.playbook.steps.command import Command
from chaosrunner.playbook.steps.controller import RolloutRestart, Scale
from chaosrunner.playbook.steps.network import EFFECTS, Network, Networks, Peer, PodSet
from chaosrunner.playbook.steps.nodes import Cordon, Drain, Taint, Uncordon
from chaosrunner.playbook.steps.process import Freeze, Kill, ProcessFault
from chaosrunner.playbook.steps.step import LASTING, STEPS, Heal, Step
from chaosrunner.playbook.steps.takes import DeletePod, Evict, PodFault
from chaosrunner.playbook.steps.targets import NodeTarget, Pick, PodSource, PodTarget, Trigger
from chaosrunner.playbook.steps.waiting import Baseline, Hold, OnceExpect, ProbeOnce, Wait

__all__ = [
    "EFFECTS",
    "LASTING",
    "STEPS",
    "Baseline",
    "Command",
    "Cordon",
    "DeletePod",
    "Drain",
    "Evict",
    "Freeze",
    "Heal",
    "Hold",
    "Kill",
    "Network",
    "Networks",
    "NodeTarget",
    "OnceExpect",
    "Peer",
    "Pick",
    "PodFault",
    "PodSet",
    "PodSource",
    "PodTarget",
    "ProbeOnce",
    "ProcessFault",
    "RolloutRestart",
    "Scale",
    "Step",
    "Taint",
    "Trigger",
    "Uncordon",
    "Wait",
]

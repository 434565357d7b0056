"""cordon and uncordon: whether the scheduler may put Pods on a node."""

from __future__ import annotations

from chaosrunner.cluster.resources import NODES, Object
from chaosrunner.faults.setting import Setting
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Field

POINTER = "/spec/unschedulable"


class Cordon(Setting):
    """Marks nodes unschedulable. A node that is already so is left alone, and stays so when the drill ends."""

    name = "cordon"
    done = "cordoned"
    resource = NODES
    desired = True

    def field(self, obj: Object) -> Field:
        return Field(path=POINTER, previous=fields.get(obj, POINTER), desired=self.desired)


class Uncordon(Cordon):
    """Marks nodes schedulable. Where this run cordoned the node, that is the undo of the cordon."""

    name = "uncordon"
    done = "uncordoned"
    desired = False

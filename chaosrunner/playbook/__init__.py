"""Playbooks and drills: models, loading, parameters, expressions, validation.

`load_drill` gives a `BoundDrill`, `validate` tells everything that is wrong with a file and where.
"""

from chaosrunner.playbook.load import BoundDrill, load_drill, load_playbook, validate
from chaosrunner.playbook.models import Drill, Playbook
from chaosrunner.playbook.problems import PlaybookError, Problem

__all__ = ["BoundDrill", "Drill", "Playbook", "PlaybookError", "Problem", "load_drill", "load_playbook", "validate"]

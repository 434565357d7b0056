"""Playbooks and drills: models, loading, parameters, expressions, validation.

`load_drill` gives a `BoundDrill`, `validate` tells everything that is wrong with a file and where.

Of the models: plain times are seconds (float). Field names are the keys of the YAML; where a key is a Python keyword
or has a hyphen, the attribute is `for_`, `from_`, `delete_pod`, `probe_once`. Every docstring below a field is also
its description in the JSON Schema that editors show.
"""

from chaosrunner.playbook.drill import Drill
from chaosrunner.playbook.load import BoundDrill, load_drill, load_playbook, validate
from chaosrunner.playbook.playbook import Playbook
from chaosrunner.playbook.problems import PlaybookError, Problem

__all__ = ["BoundDrill", "Drill", "Playbook", "PlaybookError", "Problem", "load_drill", "load_playbook", "validate"]

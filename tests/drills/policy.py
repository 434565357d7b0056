"""What a drill comes to whose NetworkPolicy nobody enforces, whichever lab it is rehearsed on."""

from __future__ import annotations

import re
from pathlib import Path

from chaosrunner.timeline import rows
from tests.drills.rehearsal import Rehearsal

SHIPPED = Path(__file__).parents[2] / "drills" / "lab-grey-replica.yaml"


def drill(folder: Path) -> str:
    """A shipped drill with another driver; its path."""
    text, count = re.subn(r"^drivers: .*$", "drivers: {network: network-policy}", SHIPPED.read_text(), flags=re.M)
    assert count == 1
    path = folder / "policy.yaml"
    path.write_text(text)
    return str(path)


def check(found: Rehearsal) -> None:
    facts = found.facts
    assert facts.verdict == "inconclusive"
    assert "the fault did not bite" in str(facts.reason)
    assert "the policy is not enforced" in str(facts.reason)
    assert "did_not_bite" in {finding.code for finding in facts.findings}
    assert [row.event for row in found.of(rows.Journal)] == ["intent", "applied", "undone"]
    effects = [(row.event, row.by) for row in found.of(rows.Effect)]
    assert effects == [("not_bitten", "requests"), ("healed", "network-policy")]
    assert facts.lost_requests == []
    created = [
        row for row in found.of(rows.Action) if row.action == "create_network_policy" and row.event == "answered"
    ]
    assert [row.status for row in created] == [201]

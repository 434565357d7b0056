"""Kills runs at random instants, lets a guardian or `recover` undo, and compares the cluster with what it was before.

    python -m tests.torture --runs 500 --seed 1
    python -m tests.torture --runs 500 --seed 1 --only 137

Every run goes by its seed and number, so that one that failed can be tried again alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from chaosrunner import logs
from tests.torture.kinds import KINDS, REAL
from tests.torture.runs import Came, Torture
from tests.torture.world import embedded, real


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--only", type=int, help="only the run of this number")
    parser.add_argument("--kinds", help="only these kinds of drills, with commas")
    parser.add_argument(
        "--abandon",
        action="store_true",
        help="kill every guardian too and recover only when the faults should have ended by themselves",
    )
    parser.add_argument("--lab", choices=("embedded", "real"), default="embedded")
    parser.add_argument("--state", type=Path, default=Path("/var/lib/lab-torture"), help="state folder of the real lab")
    parser.add_argument("--keep", type=Path, help="folder for the recordings; a temporary one where absent")
    given = parser.parse_args()
    logs.configure(level="error")
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        folder = given.keep or Path(temporary)
        real_one = given.lab == "real"
        every = REAL if real_one else KINDS
        kinds = (
            given.kinds.split(",") if given.kinds else [k.name for k in every.values() if k.heals or not given.abandon]
        )
        with real(folder / "lab", given.state) if real_one else embedded(folder / "lab") as lab:
            torture = Torture(lab, folder, given.seed, kinds, abandon=given.abandon)
            numbers = [given.only] if given.only is not None else range(given.first, given.first + given.runs)
            came: list[Came] = []
            began = time.monotonic()
            for number in numbers:
                came.append(torture.one(number))
                _tell(came[-1])
            _sum(came, torture.residue(), time.monotonic() - began)
    return 0 if all(one.good for one in came) else 1


def _tell(one: Came) -> None:
    plan = one.plan
    line = {
        "run": plan.number,
        "kind": plan.kind.name,
        "ended": one.ended,
        "by": one.by,
        "journal": one.states,
        "near": one.near,
        "ms_since": None if one.since is None else round(1000 * one.since, 1),
        "foreign": one.foreign,
        "seconds": round(one.seconds, 2),
        "recovery": round(one.recovery, 2),
        "seconds_after_own_end": [round(ended.after, 2) for ended in one.ended_by_itself if ended.seen],
        "left": one.left,
        "late": one.late,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _sum(came: list[Came], residue: int, seconds: float) -> None:
    killed = [one for one in came if not one.ended]
    recoveries = [one.recovery for one in killed]
    left_alone = [ended for one in killed for ended in one.ended_by_itself]
    seen = [ended.after for ended in left_alone if ended.seen]
    text = {
        "runs": len(came),
        "killed": len(killed),
        "ended_before": len(came) - len(killed),
        "within_50_ms_of_a_changing_call": Counter(one.near for one in killed if one.near),
        "share_of_these": round(sum(one.near is not None for one in killed) / max(1, len(killed)), 2),
        "with_guardian": sum(one.by == "recover" for one in killed),
        "undone_by": Counter(one.by for one in came),
        "journal_at_death": Counter(state for one in killed for state in one.states),
        "faults_left_to_their_own_end": len(left_alone),
        "of_these_seen_in_the_target": len(seen),
        "of_these_most_seconds_after_own_end": round(max(seen), 2) if seen else None,
        "changed_by_others": sum(one.foreign for one in came),
        "left_behind": sum(bool(one.left) for one in came),
        "late": sum(bool(one.late) for one in came),
        "residue_ephemeral_containers": residue,
        "recovery_median_s": round(median(recoveries), 2) if recoveries else None,
        "recovery_max_s": round(max(recoveries), 2) if recoveries else None,
        "kinds": Counter(one.plan.kind.name for one in came),
        "seconds": round(seconds),
    }
    sys.stdout.write(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

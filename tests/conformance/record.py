"""Writes the answers of a lab to the file that both labs are compared with: `python -m tests.conformance.record STATE`.

STATE is the state folder of a real lab that stands. To look at the embedded lab's answers instead, let the pytest
option `--basetemp` be and read the differences that `test_answers.py` shows.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaosrunner.lab.real.syscalls import enter_network
from tests.conformance.scripts import SCRIPTS, Json, Script
from tests.labs import Lab, RealLab

FILE = Path(__file__).parents[1] / "data" / "conformance" / "answers.json"


def answers(lab: Lab, names: list[str] | None = None, workers: int = 4) -> dict[str, dict[str, Json]]:
    """Run scripts side by side; the answers by script and label."""

    def run(name: str) -> dict[str, Json]:
        script = Script(lab)
        SCRIPTS[name](script)
        return script.answers

    chosen = names or list(SCRIPTS)
    with ThreadPoolExecutor(workers) as pool:
        return dict(zip(chosen, pool.map(run, chosen), strict=True))


def main() -> None:
    state = Path(sys.argv[1])
    ready = json.loads((state / "ready.json").read_text())
    enter_network(Path(ready["network"]))
    lab = RealLab(state, ready)
    found = answers(lab, sys.argv[2:])
    lab.close()
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    whole = {name: (before | found)[name] for name in SCRIPTS if name in before | found}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Runs every benchmark, one after the other: `python -m benchmarks [NAME...]`. Nothing else should run meanwhile."""

from __future__ import annotations

import subprocess
import sys

ALL = ("analysis", "watch", "drill", "rows", "probe")


def main() -> None:
    wanted = sys.argv[1:] or list(ALL)
    if unknown := set(wanted) - set(ALL):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(ALL)}")
    for name in wanted:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()

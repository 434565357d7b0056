"""What the manifest says of a run when it begins."""

from __future__ import annotations

import platform
from importlib.metadata import version

import msgspec

from chaosrunner import __version__
from chaosrunner.engine import traffic
from chaosrunner.engine.prepare import Prepared
from chaosrunner.journal import process
from chaosrunner.timeline import manifest as manifests

PACKAGES = ("anyio", "httpx", "msgspec", "pandas", "pyarrow", "pydantic")
"""Whose versions a recording keeps, beside the Kubernetes client's."""


def manifest_of(prepared: Prepared, lab: str | None) -> manifests.Manifest:
    """The first manifest. `lab`: which lab stands in for the environment, None on a real cluster."""
    bound, plan, cluster = prepared.bound, prepared.plan, prepared.cluster
    drill, playbook = bound.drill, bound.playbook
    owner = process.current()
    return manifests.Manifest(
        run=prepared.run,
        drill=drill.metadata.name,
        playbook=playbook.metadata.name,
        anchor=prepared.clock.anchor_wall,
        lab=lab,
        versions=package_versions() | prepared.server_version,
        host=manifests.Host(hostname=owner.host, pid=owner.pid, started=owner.started, platform=platform.platform()),
        context=cluster.context,
        server=cluster.server,
        url=drill.endpoint.url,
        workload=plan.workload,
        candidates=plan.targets,
        ready_endpoints=plan.ready_endpoints,
        parameters=bound.parameters,
        tags=sorted({*drill.metadata.tags, *playbook.metadata.tags}),
        probes=[
            traffic.describe(probe, prepared.specs[probe.name], playbook.warm_streams) for probe in playbook.probes
        ],
        steps=[
            manifests.StepInfo(index=index, step=step.kind, name=step.title)
            for index, step in enumerate(playbook.steps)
        ],
        checks=[
            manifests.Check(
                expression=str(check.check),
                name=check.name,
                confidence=None if check.confidence is None else round(check.confidence),
                probe=check.probe,
            )
            for check in playbook.checks
        ],
        sources=bound.sources,
        plan=msgspec.to_builtins(plan),
    )


def package_versions() -> dict[str, str]:
    """Whose version a recording keeps."""
    found = {"chaosrunner": __version__, "python": platform.python_version()}
    return found | {name: version(name) for name in PACKAGES} | {"kubernetes (package)": version("kubernetes")}

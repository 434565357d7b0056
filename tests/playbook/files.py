"""Small files that tests change."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

PLAYBOOK = """\
apiVersion: chaosrunner.dev/v1
kind: Playbook
metadata: {name: small}
parameters:
  concurrency: {type: integer, default: 4, minimum: 1, maximum: 64, description: streams in flight}
  patience: {type: duration, default: 600s}
probes:
  - name: chat
    openai: {max_tokens: 128, prompt: "Count from {{ nonce }}."}
    load: {closed: {concurrency: "${concurrency}"}}
steps:
  - baseline: {for: 30s, until: "success_rate >= 0.99"}
  - evict: {pods: 1, when: "in_flight(target) >= 1", within: 30s}
  - wait: {until: replacement.warm, timeout: "${patience}"}
checks:
  - "loss_on_victim == 0"
"""

DRILL = """\
apiVersion: chaosrunner.dev/v1
kind: Drill
metadata: {name: small-drill}
playbook: small.yaml
context: staging
namespace: default
workload: {selector: app=chat, service: chat}
endpoint: {url: "http://chat.example.com", pod_header: x-pod}
parameters: {concurrency: 2}
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    """`text` with each `old` replaced by `new`; each must be there."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def write(folder: Path, playbook: str = PLAYBOOK, drill: str = DRILL) -> Path:
    """Writes both files, and returns the drill's path."""
    (folder / "small.yaml").write_text(dedent(playbook), encoding="utf-8")
    path = folder / "drill.yaml"
    path.write_text(dedent(drill), encoding="utf-8")
    return path

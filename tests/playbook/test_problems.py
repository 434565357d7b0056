"""Bad files, and exactly what is said about each."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.playbook import validate

from .files import DRILL, PLAYBOOK, changed, write

Changes = tuple[tuple[str, str], ...]


def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [str(problem) for problem in validate(file)]


def test_the_small_files_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    assert said(tmp_path, monkeypatch, "small.yaml") == []
    assert said(tmp_path, monkeypatch, "drill.yaml") == []


STEP = "  - evict: {pods: 1, when"
OPENAI = 'openai: {max_tokens: 128, prompt: "Count from {{ nonce }}."}'
CHECK = '  - "loss_on_victim == 0"\n'
CLOSED = '{closed: {concurrency: "${concurrency}"}}'
CONCURRENCY = (
    "  concurrency: {type: integer, default: 4, minimum: 1, maximum: 64, description: streams in flight}\n", ""
)  # fmt: skip

PROBES = "probes:\n"
DIRECT = "probes:\n  - {name: direct, target: replicas, openai: {prompt: x, max_tokens: 128}}\n"

BAD_PLAYBOOKS: list[tuple[Changes, list[str]]] = [
    # shape
    ((("name: small", "nam: small"),), [
        '3:11: "name" is missing',
        '3:12: unknown key "nam" (did you mean "name"?)']),
    ((("checks:", "check:"),), ['15:1: unknown key "check" (did you mean "checks"?)']),
    ((("warm", "WARM"),), ['14:19: unknown metric "replacement.WARM" (did you mean "replacement.warm"?)']),
    ((("metadata: {name: small}", "metadata: small"),), ['3:11: expected a mapping, got "small"']),
    ((("name: small", "name: -small"),), ['3:18: "-small" is not allowed here (letters, digits, -, _ and . only)']),
    ((("max_tokens: 128", "max_tokens: yes"),), ['9:26: expected a whole number, got "yes"']),
    ((("max_tokens: 128", "max_tokens: 1e3"),), ["9:26: expected a whole number, got 1000.0"]),
    ((("max_tokens: 128", "max_tokens: 0"),), ["9:26: expected a number of at least 1, got 0"]),
    ((("max_tokens: 128", "max_tokens: '128'"),), ['9:26: expected a whole number, got "128"']),
    ((("max_tokens: 128", "fixed: 1"),), [
        '9:14: unknown key "fixed" (known: model, max_tokens, prompt, messages, prompts, unique, temperature, body, '
        "api, ignore_eos, min_tokens)"]),
    ((("max_tokens: 128", "ignore_eos: yes"),), ['9:26: expected true or false, got "yes" (write true)']),
    ((("max_tokens: 128", "model: 8"),), ["9:21: expected text, got 8 (put it in quotes)"]),
    ((("max_tokens: 128", "api: response"),), [
        '9:19: expected one of: completions, chat, responses; got "response" (did you mean "responses"?)']),
    ((("max_tokens: 128", "min_tokens: 200"),), ["9:13: min_tokens 200 is above max_tokens 128"]),
    ((("max_tokens: 128", "messages: [{role: user, content: hi}]"),), ["9:13: prompt and messages exclude each other"]),
    ((('prompt: "Count from {{ nonce }}."', 'body: {}'),), [
        '8:5: nothing to send: prompt is missing (like prompt: "Count from {{ nonce }}.")']),
    (((", prompt", ", prompt: x, prompt"),), ['9:42: "prompt" is given twice (first in line 9)']),
    ((("probes:\n", "probes: []\nunknown:\n"),), [
        "7:9: must not be empty",
        '8:1: unknown key "unknown" (known: apiVersion, kind, metadata, description, parameters, probes, steps, abort, '
        "checks, warm_streams)"]),
    ((("    openai:", "    http: {path: /, expect: {status: 20}}\n    openai:"),), [
        "9:38: expected an HTTP status like 200, or a list of them"]),
    ((("    openai:", "    http: {path: /}\n    openai:"),), [
        "8:5: a probe has exactly one of openai, anthropic, sse, json_lines, http; found openai and http"]),
    # target
    ((("  - name: chat\n", "  - name: chat\n    target: replica\n"),), [
        '9:13: expected one of: endpoint, replicas; got "replica" (did you mean "replicas"?)']),
    ((("  - name: chat\n", "  - name: chat\n    target: replicas\n"),), [
        "9:13: every probe goes to the replicas directly, so what the service gives its users is not measured "
        "(add a probe without target)"]),
    (((PROBES, DIRECT), (CHECK, '  - {check: "time_to_serve <= 1m", probe: direct}\n')), [
        "17:43: probe: does nothing for time_to_serve (leave it out)"]),
    (((PROBES, DIRECT), (CHECK, "  - routing_delay <= 5s\n")), []),
    (((CHECK, "  - routing_delay <= 5s\n"),), [
        "16:5: routing_delay is never known: no probe asks the replicas directly (add a probe with target: replicas)"]),
    (((PROBES, DIRECT), (CHECK, '  - "p99(chunk_gap) < 1s"\n'),
      ("  - name: chat\n", "  - name: chat\n    record_chunks: false\n")), [
        "18:5: p99(chunk_gap) is never known: record_chunks is false"]),
    (((PROBES, DIRECT.replace("128", "256")), (CHECK, '  - "replacement.tokens >= 200"\n')), [
        '17:5: replacement.tokens >= 200 never holds: no probe asks for more than 128 tokens']),
    (((PROBES, DIRECT), (STEP, "  - probe-once: {probe: direct}\n" + STEP)), [
        '14:25: probe "direct" goes to the replicas directly, and one request to one of them '
        "(name a probe of the endpoint)"]),
    # load
    (((CLOSED, "{}"), CONCURRENCY), [
        "9:11: load has exactly one of closed, open; found none (like closed: {concurrency: 4})"]),
    ((("{closed: {concurrency", "{open: {stages: [{rps: 5, for: 1s}]}, closed: {concurrency"),), [
        "10:11: load has exactly one of closed, open; found closed and open (like closed: {concurrency: 4})"]),
    ((("${concurrency}\"", "${concurrency}\", pause: 1s, jitter: 2s"),), [
        "10:20: jitter 2s is longer than the pause 1s (a pause lasts from pause - jitter to pause + jitter)"]),
    (((CLOSED, "{open: {stages: [{rps: 0, for: 1s}, {rps: 0, to: 0, for: 1s}]}}"), CONCURRENCY), [
        "9:18: no stage sends anything (give one an rps above 0)"]),
    (((CLOSED, "{open: {stages: [{rps: -1, for: 1s}]}}"), CONCURRENCY), [
        "9:34: expected a number of at least 0.0, got -1"]),
    (((CLOSED, "{open: {stages: [{rps: 5}], max_in_flight: 0, arrivals: uniform}}"), CONCURRENCY), [
        '9:28: "for" is missing',
        "9:54: expected a number of at least 1, got 0",
        '9:67: expected one of: poisson, constant; got "uniform"']),
    ((("    load:", "    workers: 0\n    load:"),), [
        "10:14: expected a number of at least 1, got 0"]),
    (((CLOSED, "{closed: {concurrency: 3}}\n    workers: 4"), CONCURRENCY), [
        "7:5: 4 workers, but at most 3 in flight (a worker has one request in flight or more: lower workers, or raise "
        "the load)"]),
    (((CLOSED, "{open: {stages: [{rps: 5, for: 1s}], max_in_flight: 7}}\n    workers: 8"), CONCURRENCY), [
        "7:5: 8 workers, but at most 7 in flight (a worker has one request in flight or more: lower workers, or raise "
        "the load)"]),
    ((("    load:", "    cancel_after: {chunks: 2, time: 1s}\n    load:"),), [
        "10:19: cancel_after has exactly one of chunks, time; found chunks and time (like {chunks: 20})"]),
    ((("    load:", "    cancel_after: {chunks: 0, share: 120%}\n    load:"),), [
        "10:28: expected a number of at least 1, got 0",
        "10:38: expected a percentage above 0 and at most 100, like 50%"]),
    (((OPENAI, "http: {path: /}\n    cancel_after: {chunks: 2}"),), [
        "8:5: an answer that is no stream has no chunks (write cancel_after: {time: ...})"]),
    # headers
    ((("    load:", "    headers: {Authorization: x}\n    load:"),), [
        "10:14: Authorization is a credential, which no playbook holds (give it in the drill's endpoint.headers)"]),
    ((("    load:", "    headers: {x-tenant: '{{ tenant }}'}\n    load:"),), [
        '10:25: unknown template "tenant" (known: nonce, request, probe, worker)']),
    # prompts
    ((("prompt: \"Count from {{ nonce }}.\"", "prompts: missing.txt"),), [
        "9:40: missing.txt cannot be read: [Errno 2] No such file or directory: 'missing.txt'"]),
    ((("prompt:", "prompts: a.txt, prompt:"),), ["9:13: prompt and prompts exclude each other"]),
    # durations
    ((("for: 30s", "for: 1:30"),), ['12:21: "1:30" is no duration; write it like 500ms, 30s, 10m or 1h30m']),
    ((("for: 30s", "for: -3"),), ["12:21: a duration cannot be negative"]),
    ((("for: 30s", "for: 0s"),), ["12:21: the duration must be longer than 0s"]),
    ((("for: 30s", "for: on"),), ['12:21: "on" is no duration; write it like 500ms, 30s, 10m or 1h30m']),
    ((("for: 30s", "for: true"),), ["12:21: expected a duration like 500ms, 30s or 1h30m"]),
    # steps
    ((("  - wait:", "  - wiat:"),), [
        '14:5: unknown key "wiat" (did you mean "wait"?)']),
    ((("  - wait:", "    wait:"),), [
        "13:5: a step has exactly one of baseline, evict, delete-pod, cordon, uncordon, drain, network, freeze, kill, "
        "taint, scale, rollout-restart, command, heal, wait, hold, probe-once; "
        "found evict and wait"]),
    (((STEP, "  - bogus\n" + STEP),), [
        '13:5: unknown key "bogus" (known: name, baseline, evict, delete-pod, cordon, uncordon, drain, network, '
        "freeze, kill, taint, scale, rollout-restart, command, heal, wait, hold, probe-once)"]),
    ((("pods: 1", "pods: 0"),), ['13:19: expected one, all, a whole number above 0, or a percentage like "50%"']),
    ((("pods: 1", 'pods: "150%"'),), ["13:19: expected a percentage above 0 and at most 100, like 50%"]),
    ((("pods: 1", "expect: acepted"),), ['13:21: unknown answer "acepted"; did you mean "accepted"?']),
    ((("pods: 1", "expect: 42"),), [
        "13:21: expected an HTTP status like 429 or a class of answers like blocked_by_budget"]),
    ((("pods: 1", "pick: newst"),), [
        '13:19: expected one of: most_in_flight, least_in_flight, random, oldest, newest; got "newst" '
        '(did you mean "newest"?)']),
    ((("pods: 1", "from: {selector: ''}"),), [
        "13:30: the selector is empty; an empty selector matches everything, name the labels"]),
    ((("pods: 1", "from: {}"),), ["13:19: from has exactly one of selector, node, expression; found none"]),
    ((("pods: 1", "grace_period: 500ms"),), ["13:27: Kubernetes knows grace periods in whole seconds only"]),
    (((STEP, "  - delete-pod: {force: true, grace_period: 5}\n" + STEP),), [
        "13:17: force means a grace period of 0 (leave grace_period out)"]),
    (((STEP, "  - cordon: {node: a, nodes: 2}\n" + STEP),), [
        "13:13: node names the node; nodes, of and selector choose one (keep one of the two)"]),
    (((STEP, "  - uncordon:\n" + STEP),), ["13:14: no earlier step cordons a node (add a cordon step before it)"]),
    (((STEP, "  - drain: {of: cordoned}\n" + STEP),), [
        "13:12: no earlier step cordons a node (add a cordon step before it)"]),
    (((STEP, "  - wait: {until: time_to_serve <= 5s}\n" + STEP),), [
        "13:19: time_to_serve is never known before Pods were taken away (wait after a fault)"]),
    ((("  - baseline: {for: 30s", "  - hold: {for: 30s}\n" + STEP + ": endpoints_back}\n  - baseline: {for: 30s"),), [
        "13:12: a fault before any baseline: no fault is sent to a service that was not seen healthy "
        "(begin with a baseline step)",
        "14:15: warning: a baseline after a fault does not show the service at rest"]),
    ((('when: "in_flight(target) >= 1", ', ""),), [
        '13:30: warning: "within" without "when" waits for nothing (add "when")']),
    ((("within: 30s", "dry_run: true, retry_for: 5s"), (CHECK, '  - "incomplete_200 == 0"\n')), [
        '13:80: warning: a dry run takes nothing away, so "retry_for" does nothing',
        "14:19: replacement.warm is never known before Pods were taken away (wait after a fault)"]),
    ((("within: 30s", "dry_run: true"), ("  - wait: {until: replacement.warm,", "  - wait: {until: endpoints_back,")), [
        "16:5: no step takes or hits a Pod, so loss_on_victim is never known (add a fault, or remove the check)"]),
    (((STEP, "  - probe-once: {probe: chta}\n" + STEP),), ['13:25: unknown probe "chta" (did you mean "chat"?)']),
    (((STEP, "  - probe-once: {probe: chat, expect: {}}\n" + STEP),), [
        "13:39: expect names a status, an outcome, or both"]),
    (((STEP, "  - probe-once: {probe: chat, expect: {outcome: completed}}\n" + STEP),), [
        '13:49: unknown outcome "completed"; did you mean "complete"?']),
    (((STEP, "  - probe-once: {probe: chat, messages: [{role: user, content: hi}]}\n" + STEP),), [
        '13:41: probe "chat" sends completions (use prompt)']),
    (((STEP, "  - probe-once: {probe: chat, prompt: '{{ nonc }}'}\n" + STEP),), [
        '13:39: unknown template "nonc" (did you mean "nonce"?)']),
    # names
    ((("steps:", "  - {name: chat, sse: {path: /events}}\nsteps:"),), [
        '11:12: "chat" is also the name of number 1 of probes']),
    ((("  - baseline:", "  - name: evict\n    baseline:"), (STEP, "  - name: evict\n    evict: {pods: 1, when")), [
        '14:11: "evict" is also the name of number 1 of steps']),
    # templates
    ((("{{ nonce }}", "{{ nonse }}"),), ['9:51: unknown template "nonse" (did you mean "nonce"?)']),
    # expressions
    ((('"success_rate >= 0.99"', "success_rate >= 99"),), [
        "12:49: success_rate is a share between 0 and 1, 99 is above it (write 99%)"]),
    ((('"success_rate >= 0.99"', "true"),), [
        '12:33: expected an expression (write it as a string, like "success_rate >= 0.99")']),
    ((('"success_rate >= 0.99"', '"in_flight(target) > 0"'),), [
        '12:33: "target" has a meaning only in "when" and "from" of a fault (write in_flight)']),
    (((CHECK, '  - {check: exposed >= 1, confidence: 95}\n'),), [
        "16:39: only a comparison of success_rate has a confidence interval"]),
    (((CHECK, '  - {check: success_rate >= 99%, confidence: 0}\n'),), [
        "16:46: expected a percentage above 0 and at most 100, like 50%"]),
    (((CHECK, '  - {check: success_rate >= 99%, probe: chatt}\n'),), [
        '16:41: unknown probe "chatt" (did you mean "chat"?)']),
    # what is not about requests is the same for every probe
    (((CHECK, '  - {check: time_to_serve <= 5s, probe: chat}\n'),), [
        "16:41: probe: does nothing for time_to_serve (leave it out)"]),
    (((CHECK, '  - {check: success_rate >= 99% and endpoints_back and restarts == 0, probe: chat}\n'),), [
        "16:78: probe: does nothing for endpoints_back (take it into a check of its own)",
        "16:78: probe: does nothing for restarts (take it into a check of its own)"]),
    (((CHECK, '  - {check: p99(ttft) <= 5s and exposed >= 1 and in_flight == 0, probe: chat}\n'),), []),
    # TTFT alone calls a stream good that stands still
    ((("    load:", "    slo: {ttft: 2s}\n    load:"),), [
        "10:17: warning: a stream that stands still after its first token counts as good (add chunk_gap)"]),
    ((("    load:", "    slo: {ttft: 2s, e2e: 9s}\n    load:"),), []),
    ((("    load:", "    slo: {ttft: 2s, chunk_gap: 1s}\n    load:"),), []),
    ((("    load:", "    slo: {chunk_gap: 1s}\n    load:"),), []),
    (((CHECK, '  - goodput > 5\n'),), ["16:5: no probe says what a good request is (give the probe an slo)"]),
    (((CHECK, '  - replacement.tokens >= 129\n'),), [
        "16:5: replacement.tokens >= 129 never holds: no probe asks for more than 128 tokens"]),
    (((CHECK, '  - p99(chunk_gap) < 1s\n'), ("    load:", "    record_chunks: false\n    load:")), [
        "17:5: p99(chunk_gap) is never known: record_chunks is false"]),
    (((CHECK, '  - p99(tpot) < 1s\n'), (OPENAI, "http: {path: /}")), [
        "16:5: p99(tpot) is never known: it takes an openai or anthropic probe"]),
    (((CHECK, '  - p99(ttft) < 1s\n'), (OPENAI, "http: {path: /}")), [
        "16:5: p99(ttft) is never known: no probe streams"]),
    (((STEP, "  - delete-pod: {when"), (CHECK, '  - evictions(accepted) == 1\n')), [
        "16:5: no step evicts a Pod, so there are no evictions to count"]),
    ((("checks:\n" + CHECK, ""),), ["3:11: warning: there are no checks, so nothing can fail (add checks)"]),
    # parameters
    ((("${concurrency}", "${concurency}"),), [
        '5:3: warning: parameter "concurrency" is used nowhere (remove it)',
        '10:35: unknown parameter "concurency" (did you mean "concurrency"?)']),
    ((("${patience}", "${patience"),), [
        "14:47: ${ is never closed (write ${name}, or $${ for the characters themselves)"]),
    ((("default: 4", "default: four"),), ['5:41: expected a whole number, like 4; got "four"']),
    ((("default: 4", "default: 65"),), ["5:41: 65 is above the maximum 64"]),
    ((("maximum: 64", "maximum: 0"), ("default: 4, ", "")), ["5:41: minimum is above maximum"]),
    ((("type: duration, default: 600s", "type: boolean, default: false, minimum: 1"),), [
        "6:54: a boolean has no minimum"]),
    ((("type: duration", "type: time"),), [
        '6:20: expected one of: string, integer, number, boolean, duration, percent; got "time"']),
    ((("type: integer, default: 4", "type: integer, enum: [4, five]"),), [
        '5:42: expected a whole number, like 4; got "five"']),
    ((("concurrency: {type", "con-currency: {type"),), [
        '5:3: "con-currency" is not allowed here (letters, digits and _ only)',
        '10:35: unknown parameter "concurrency" (did you mean "con-currency"?)']),
    # several at once, each once
    ((("pods: 1", "pod: 1"), ("for: 30s", "fro: 30s"), ("loss_on_victim", "los_on_victim")), [
        '12:16: unknown key "fro" (did you mean "for"?)',
        '13:13: unknown key "pod" (did you mean "pods"?)',
        '16:6: unknown metric "los_on_victim" (did you mean "loss_on_victim"?)']),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), BAD_PLAYBOOKS, ids=lambda value: str(value)[:60])
def test_bad_playbooks(changes: Changes, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, playbook=changed(PLAYBOOK, *changes))
    assert said(tmp_path, monkeypatch, "small.yaml") == [f"small.yaml:{line}" for line in expected]


BAD_DRILLS: list[tuple[Changes, Changes, list[str]]] = [
    ((("endpoint: {url", "endpiont: {url"),), (), [
        "drill.yaml:8:1: unknown key \"endpiont\" (did you mean \"endpoint\"?)"]),
    ((("playbook: small.yaml", "playbook: smal.yaml"),), (), [
        'drill.yaml:4:11: no such file: smal.yaml (did you mean "small.yaml"?)']),
    ((("playbook: small.yaml", "playbook: evict-one-replic"),), (), [
        'drill.yaml:4:11: no playbook is named "evict-one-replic" (did you mean "evict-one-replica"?)']),
    ((("playbook: small.yaml\n", ""),), (), ['drill.yaml:1:1: "playbook" is missing']),
    ((("concurrency: 2", "concurency: 2"),), (), [
        'drill.yaml:9:14: unknown parameter "concurency" (did you mean "concurrency"?)']),
    ((("concurrency: 2", "concurrency: two"),), (), [
        'drill.yaml:9:27: concurrency: expected a whole number, like 4; got "two" (streams in flight)']),
    ((("concurrency: 2", "concurrency: 65"),), (), [
        "drill.yaml:9:27: concurrency: 65 is above the maximum 64 (streams in flight)"]),
    ((("parameters: {concurrency: 2}\n", ""),), (("default: 4, ", ""),), [
        'drill.yaml:1:1: parameter "concurrency" of the playbook has no value '
        "(add concurrency: VALUE under parameters, or give -p concurrency=VALUE)"]),
    ((("selector: app=chat", "selector: ''"),), (), [
        "drill.yaml:7:22: the selector is empty; an empty selector matches everything, name the labels"]),
    ((("service: chat", "controller: chat"),), (), [
        'drill.yaml:7:44: "chat" is not allowed here (like deployment/chat)']),
    ((("http://chat", "chat"),), (), [
        'drill.yaml:8:17: "chat.example.com" is no URL (like https://gateway.example.com)']),
    ((("http://chat", "http://me:pw@chat"),), (), [
        "drill.yaml:8:17: a URL with credentials ends up in logs (use api_key or headers with {env: NAME})"]),
    ((("pod_header: x-pod", "api_key: sk-1"),), (), [
        "drill.yaml:8:53: expected a reference to a credential, not the credential "
        "(write {env: NAME} or {file: PATH})"]),
    ((("pod_header: x-pod", "headers: {x: {environment: A}}"),), (), [
        'drill.yaml:8:58: unknown key "environment" (known: env, file, value)']),
    (((", pod_header: x-pod", ""),), (), [
        "drill.yaml:8:11: warning: no response header names the serving Pod, so losses cannot be placed on the victim "
        "(give endpoint.pod_header)",
        "small.yaml:13:28: warning: in_flight(target) can only be known if the URL reaches a single Pod directly: no "
        "response header names the serving Pod, so the step may never fire (give endpoint.pod_header in the drill)"]),
    ((('url: "http://chat.example.com", ', ""),), (), [
        "drill.yaml:8:11: neither an endpoint to run against nor a lab to rehearse on (give endpoint.url, or lab)"]),
    # limits
    ((("parameters:", "limits: {max_pods: 1}\nparameters:"),), (("pods: 1", "pods: 2"),), [
        "drill.yaml:9:20: step 2 (evict) of the playbook takes 2 Pods, max_pods is 1"]),
    ((("parameters:", "limits: {max_percent: 30%}\nparameters:"),), (("pods: 1", 'pods: "50%"'),), [
        "drill.yaml:9:23: step 2 (evict) of the playbook takes 50% of the Pods, max_percent is 30%"]),
    ((("parameters:", "limits: {max_percent: 30}\nparameters:"),), (("pods: 1", "pods: all"),), [
        "drill.yaml:9:23: step 2 (evict) of the playbook takes 100% of the Pods, max_percent is 30%"]),
    ((), ((STEP, "  - drain: {nodes: 2}\n" + STEP),), [
        "drill.yaml:1:1: step 2 (drain) of the playbook takes 2 nodes, max_nodes is 1"]),
    ((("parameters:", "limits: {deadline: 20s}\nparameters:"),), (), [
        "drill.yaml:9:20: baseline and hold alone take 30s, the deadline is 20s"]),
    # 30 s + 120 s of baseline, 30 s for exposure, 600 s of patience
    ((("parameters:", "limits: {deadline: 12m}\nparameters:"),), (), [
        "drill.yaml:9:20: warning: with all they may wait the steps take 13m, the deadline is 12m "
        "(a longer one, or a run that should fail is aborted instead)"]),
    ((("parameters:", "limits: {deadline: 13m}\nparameters:"),), (), []),
    ((("parameters:", "limits: {deadline: 13m}\nparameters:"),),
     (('when: "in_flight(target) >= 1", within: 30s', "retry_for: 31s"),), [
        "drill.yaml:9:20: warning: with all they may wait the steps take 13m1s, the deadline is 13m "
        "(a longer one, or a run that should fail is aborted instead)"]),
    ((("parameters:", "limits: {deadline: 1h, max_nodes: 6}\nparameters:"),),
     ((STEP, "  - drain: {nodes: 5}\n" + STEP),), [
        "drill.yaml:9:20: warning: with all they may wait the steps take 1h3m, the deadline is 1h "
        "(a longer one, or a run that should fail is aborted instead)"]),
    ((("parameters:", "limits: {namespaces: [prod]}\nparameters:"),), (), [
        'drill.yaml:9:22: limits.namespaces leaves out "default", where the workload is']),
    # what the playbook asks and the drill cannot answer: the place is the playbook's
    (((", service: chat", ""),), ((CHECK, "  - endpoints_back\n"),), [
        "small.yaml:16:5: endpoints_back is never known: the drill names no Service "
        "(give workload.service in the drill)"]),
    ((), ((CHECK, "  - not alert_fired(\"Slow\")\n"),), [
        'small.yaml:16:5: alert_fired("Slow") is never known: the drill names no Prometheus '
        "(give prometheus.url in the drill)"]),
    ((("parameters:", "lab: {alerts: {rules: [{name: Slowly, expr: ready_endpoints < 1}]}}\nparameters:"),),
     ((CHECK, "  - not alert_fired(\"Slow\")\n"),), [
        'small.yaml:16:5: the lab has no alert "Slow" (did you mean "Slowly"?)']),
    # probes of replicas
    ((('pod_header: x-pod', 'pod_header: x-pod, replicas: {port: 0}'),), ((PROBES, DIRECT),), [
        "drill.yaml:8:80: expected a port number from 1 to 65535, or the name of a port of the Service, like http"]),
    ((('pod_header: x-pod', 'pod_header: x-pod, replicas: {ca: a.pem, insecure: true}'),), ((PROBES, DIRECT),), [
        "drill.yaml:8:73: ca and insecure exclude each other"]),
    (((", service: chat", ""),), ((PROBES, DIRECT),), [
        'drill.yaml:8:11: probe "direct" goes to the replicas, and without a Service nothing tells their port '
        "(give endpoint.replicas.port as a number, or workload.service)"]),
    (((", service: chat", ""), ('pod_header: x-pod', 'pod_header: x-pod, replicas: {port: 8000}')),
     ((PROBES, DIRECT),), []),
    (((", pod_header: x-pod", ""),),
     ((PROBES, DIRECT), ("in_flight(target)", "in_flight"), (CHECK, "  - incomplete_200 == 0\n")), [
        "drill.yaml:8:11: warning: no response header names the serving Pod, so how late the gateway sends to a "
        "replica is not known (give endpoint.pod_header)"]),
    ((('"http://chat.example.com"', '"https://chat.example.com", api_key: {env: KEY}'),), ((PROBES, DIRECT),), [
        "drill.yaml:8:11: warning: the endpoint's credentials, which it gets over TLS, go to the replicas in the clear "
        "(say endpoint.replicas.credentials: true if they are meant to, false if the gateway checks them)"]),
    ((('"http://chat.example.com"', '"https://chat.example.com", api_key: {env: KEY}, replicas: {credentials: true}'),),
     ((PROBES, DIRECT),), []),
    # a mistake inside the playbook, reached through a drill
    ((), (("pods: 1", "pod: 1"),), ['small.yaml:13:13: unknown key "pod" (did you mean "pods"?)']),
    ((("concurrency: 2", "patience: 0s"),), (), [
        "small.yaml:14:46: the duration must be longer than 0s (the value comes from ${patience})"]),
    # both at once
    ((("namespace:", "namspace:"),), (("pods: 1", "pod: 1"),), [
        'drill.yaml:6:1: unknown key "namspace" (did you mean "namespace"?)',
        'small.yaml:13:13: unknown key "pod" (did you mean "pods"?)']),
]  # fmt: skip


@pytest.mark.parametrize(("drill", "playbook", "expected"), BAD_DRILLS, ids=lambda value: str(value)[:60])
def test_bad_drills(
    drill: Changes, playbook: Changes, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, changed(PLAYBOOK, *playbook), changed(DRILL, *drill))
    assert said(tmp_path, monkeypatch, "drill.yaml") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n", "1:1: expected a Drill: a mapping with apiVersion, kind, metadata"),
        ("a: 1\n", '1:1: "kind" is missing (add kind: Drill)'),
        ("kind: Dril\n", '1:7: unknown kind "Dril" (did you mean "Drill"?)'),
        ("kind: Pod\n", '1:7: unknown kind "Pod" (Playbook and Drill are known)'),
        ("kind: Drill\n", '1:1: "apiVersion" is missing (add apiVersion: chaosrunner.dev/v1)'),
        ("kind: Drill\napiVersion: v1\n", '2:13: unknown apiVersion "v1" (write chaosrunner.dev/v1)'),
        ("kind: Drill\napiVersion: [1]\n", '2:13: unknown apiVersion "[1]" (write chaosrunner.dev/v1)'),
    ],
)
def test_files_of_no_known_kind(text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert said(tmp_path, monkeypatch, "a.yaml") == [f"a.yaml:{expected}"]

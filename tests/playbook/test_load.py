from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.errors import UserError
from chaosrunner.playbook import PlaybookError, load_drill, load_playbook, validate
from chaosrunner.playbook.expressions import parse
from chaosrunner.playbook.steps import Baseline, Evict, Wait

from .files import DRILL, PLAYBOOK, changed, write


def test_a_drill_has_its_playbook_with_every_parameter_in_place(tmp_path: Path) -> None:
    bound = load_drill(write(tmp_path), {"patience": "1h30m"})
    assert bound.parameters == {"concurrency": 2, "patience": 5400.0}
    assert bound.playbook.probes[0].load.closed.concurrency == 2
    baseline, evict, wait = (step.body for step in bound.playbook.steps)
    assert isinstance(baseline, Baseline)
    assert (baseline.for_, baseline.until) == (30.0, parse("success_rate >= 0.99"))
    assert isinstance(evict, Evict)
    assert (str(evict.pods), evict.within, evict.expect, evict.pick) == ("1", 30.0, "accepted", "most_in_flight")
    assert isinstance(wait, Wait)
    assert wait.timeout == 5400.0
    assert [step.kind for step in bound.playbook.steps] == ["baseline", "evict", "wait"]
    assert bound.sources == {"drill.yaml": DRILL, "small.yaml": PLAYBOOK}
    bound.check_environment()


def test_the_command_line_wins_over_the_drill_and_the_drill_over_the_default(tmp_path: Path) -> None:
    drill = write(tmp_path)
    assert load_playbook(tmp_path / "small.yaml").probes[0].load.closed.concurrency == 4
    assert load_drill(drill).playbook.probes[0].load.closed.concurrency == 2
    assert load_drill(drill, {"concurrency": "8"}).playbook.probes[0].load.closed.concurrency == 8


def test_a_playbook_by_itself_takes_values_too(tmp_path: Path) -> None:
    write(tmp_path)
    playbook = load_playbook(tmp_path / "small.yaml", {"concurrency": "8"})
    assert playbook.probes[0].load.closed.concurrency == 8
    with pytest.raises(PlaybookError, match='did you mean "concurrency"'):
        load_playbook(tmp_path / "small.yaml", {"concurency": "8"})
    with pytest.raises(PlaybookError, match="-p concurrency=0"):
        load_playbook(tmp_path / "small.yaml", {"concurrency": "0"})


TYPES = """\
apiVersion: chaosrunner.dev/v1
kind: Playbook
metadata: {name: small}
parameters:
  text: {type: string, default: "a b"}
  count: {type: integer, default: 4}
  number: {type: number, default: 0.5}
  flag: {type: boolean, default: false}
  time: {type: duration, default: 90}
  share: {type: percent, default: "50%"}
  concurrency: {type: integer, default: 1}
probes:
  - name: chat
    openai:
      prompt: "${text} ${count} ${number} ${flag} ${time} ${share} $${text} $5 {text} ${concurrency}"
      body:
        {text: "${text}", count: "${count}", number: "${number}", flag: "${flag}", time: "${time}", share: "${share}"}
steps: [{hold: {for: 1s}}]
checks: ["success_rate >= ${share}", "zero_ready_seconds <= ${time}"]
"""


def test_a_reference_takes_the_type_of_its_parameter_and_spells_itself_inside_text(tmp_path: Path) -> None:
    bound = load_drill(write(tmp_path, playbook=TYPES))
    openai = bound.playbook.probes[0].openai
    assert openai is not None
    assert openai.prompt == "a b 4 0.5 false 1m30s 50% ${text} $5 {text} 2"
    assert openai.body == {"text": "a b", "count": 4, "number": 0.5, "flag": False, "time": 90.0, "share": "50%"}
    assert [str(check.check) for check in bound.playbook.checks] == [
        "success_rate >= 50%",
        "zero_ready_seconds <= 1m30s",
    ]


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"count": "-7"}, -7), ({"number": "1e3"}, 1000.0), ({"flag": "true"}, True), ({"time": "2"}, 2.0),
        ({"time": "1h"}, 3600.0), ({"share": "99.9 %"}, "99.9%"), ({"text": "5"}, "5"), ({"text": ""}, ""),
    ],
)  # fmt: skip
def test_values_of_the_command_line_are_read_by_type(given: dict[str, str], value: object, tmp_path: Path) -> None:
    (name,) = given
    found = load_drill(write(tmp_path, playbook=TYPES), given).parameters[name]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cuont": "1"}, '-p cuont=1: unknown parameter "cuont" (did you mean "count"?)'),
        ({"count": "1.5"}, '-p count=1.5: expected a whole number, like 4; got "1.5"'),
        ({"count": ""}, '-p count=: expected a whole number, like 4; got ""'),
        ({"number": "nan"}, '-p number=nan: expected a number, like 0.5; got "nan"'),
        ({"flag": "yes"}, '-p flag=yes: expected true or false, like true or false; got "yes"'),
        ({"time": "-1s"}, '-p time=-1s: "-1s" is no duration; write it like 500ms, 30s, 10m or 1h30m'),
        ({"share": "0.5"}, '-p share=0.5: "0.5" is no percentage; write it like 50% or 99.9%'),
        ({"lab.startup": "soon"}, '-p lab.startup=soon: "soon" is no duration; write it like 500ms, 30s, 10m or 1h30m'),
        ({"lab.start": "1s"}, '-p lab.start=1s: unknown key "start" (did you mean "startup"?)'),
        ({"lab.nodes.x": "1"}, "-p lab.nodes.x=1: lab.nodes is no mapping"),
        ({"lab.nodes": "[1"}, "-p lab.nodes=[1:1:3: no YAML"),
    ],
)
def test_mistakes_of_the_command_line_are_told_as_such(given: dict[str, str], said: str, tmp_path: Path) -> None:
    drill = write(tmp_path, playbook=TYPES, drill=changed(DRILL, ("parameters:", "lab: {nodes: 2}\nparameters:")))
    with pytest.raises(PlaybookError) as caught:
        load_drill(drill, given)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_missing_value_may_come_from_the_command_line(tmp_path: Path) -> None:
    playbook = changed(PLAYBOOK, ("default: 600s", "minimum: 1s"))
    drill = write(tmp_path, playbook)
    with pytest.raises(PlaybookError, match='parameter "patience" of the playbook has no value'):
        load_drill(drill)
    assert load_drill(drill, {"patience": "5s"}).parameters["patience"] == 5.0
    assert validate(tmp_path / "small.yaml") == []  # the playbook by itself is good


def test_lab_settings_of_the_command_line(tmp_path: Path) -> None:
    drill = write(tmp_path, drill=changed(DRILL, ("parameters:", "lab: {startup: 5s}\nparameters:")))
    given = {"lab.startup": "500ms", "lab.warmup.standstill": "1s", "lab.replicas": "4", "lab.anti_affinity": "true"}
    lab = load_drill(drill, given).drill.lab
    assert lab is not None
    assert lab.spec() == {"startup": 0.5, "warmup": {"standstill": 1.0}, "replicas": 4, "anti_affinity": True}


def test_a_drill_for_the_lab_alone_rehearses_and_does_not_run(tmp_path: Path) -> None:
    text = changed(DRILL, ('url: "http://chat.example.com", ', ""), ("context: staging\n", ""))
    lab = changed(text, ("parameters:", "lab: {replicas: 2}\nparameters:"))
    bound = load_drill(write(tmp_path, drill=lab))
    bound.check_lab()
    with pytest.raises(UserError, match=r"names no endpoint\.url.*rehearse"):
        bound.check_environment()


def test_no_context_is_guessed(tmp_path: Path) -> None:
    bound = load_drill(write(tmp_path, drill=changed(DRILL, ("context: staging\n", ""))))
    with pytest.raises(UserError, match="no context is guessed"):
        bound.check_environment()
    bound.check_environment(context="other")
    with pytest.raises(UserError, match="no lab section"):
        bound.check_lab()


def test_warnings_do_not_keep_a_drill_from_running(tmp_path: Path) -> None:
    bound = load_drill(write(tmp_path, drill=changed(DRILL, (", pod_header: x-pod", ""))))
    assert [problem.severity for problem in bound.warnings] == ["warning", "warning"]


def test_the_wrong_kind_of_file_is_refused(tmp_path: Path) -> None:
    drill = write(tmp_path)
    with pytest.raises(PlaybookError, match="this is a Drill, expected a Playbook"):
        load_playbook(drill)
    with pytest.raises(PlaybookError, match="this is a Playbook, expected a Drill"):
        load_drill(tmp_path / "small.yaml")


def test_a_drill_finds_its_playbook_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drill = write(tmp_path)
    monkeypatch.chdir("/")
    assert load_drill(drill).playbook.metadata.name == "small"


def test_names_are_looked_for_in_the_working_directory_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_playbook("drain-node").metadata.tags == ["drain", "node", "streaming"]
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "drain-node.yaml").write_text(PLAYBOOK)
    assert load_playbook("drain-node").metadata.name == "small"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lab-drain-nod", 'no drill is named "lab-drain-nod" (did you mean "lab-drain-node"?)'),
        ("./nowhere/x.yaml", "no such file: ./nowhere/x.yaml"),
    ],
)
def test_unknown_names(name: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_drill(name)
    assert str(caught.value) == said
    assert caught.value.exit_code == 2


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_drill(f"{tmp_path}/")

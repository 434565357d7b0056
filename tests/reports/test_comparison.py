"""The comparison as people read it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from chaosrunner.analysis.comparison import Comparison, compare
from chaosrunner.analysis.reading import Reading
from chaosrunner.reports.comparison import headline, sections
from chaosrunner.reports.markdown import markdown
from chaosrunner.reports.terminal import render
from chaosrunner.timeline.manifest import Probe
from tests.analysis.sides import of_kubernetes, of_real_drill, of_reference, reading
from tests.analysis.tape import Tape, time
from tests.analysis.test_comparison import story
from tests.analysis.test_direct import Story


def written(a: Reading, b: Reading, width: int = 80) -> str:
    found = compare(a, b)
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
    render(console, headline(found), sections(found, a.facts, b.facts))
    return stream.getvalue()


def section(text: str, title: str) -> list[str]:
    """Lines of one section, without its title."""
    return text.partition(f"\n{title}")[2].partition("\n\n")[0].splitlines()[1:]


def test_a_recording_beside_itself_says_so_in_one_line() -> None:
    text = written(of_reference(), of_reference())
    assert text.startswith("SAME: both failed; the same outcomes in each phase; the same transitions\n")
    assert section(text, "Differences in what was run") == [
        "  none: the same drill, playbook, parameters, versions and Pods"
    ]
    assert "only A" not in text
    assert "\nOrder" not in text
    assert "chance" not in text


def test_what_differs_is_said_first() -> None:
    text = written(reading(story().rows), reading(story(lost=0, leaves=3.5).rows), 120)
    first = text.splitlines()[0]
    assert first.startswith("DIFFERENT: both passed; other outcomes in baseline; 2 transitions of one side only")
    outcomes = section(text, "Outcomes by phase")
    assert [line.split() for line in outcomes if "aborted" in line] == [["aborted", "2", "–", "only", "A"]]
    (loss,) = [line for line in section(text, "Shares") if "lost on the victim" in line]
    assert "100 % (34.2…100)" in loss
    assert loss.endswith("beyond chance")
    timeline = section(text, "Timelines")
    (gone,) = [line for line in timeline if line.startswith("  victim: gone")]
    assert (gone.split()[2], gone.split()[4], gone.split()[6]) == ("+1.500", "+3.500", "+2.000")
    alone = [line.split()[-2:] for line in timeline if "aborted" in line]
    assert alone == [["only", "A"], ["only", "A"]]


def turned() -> tuple[Reading, Reading]:
    def tape(ready: float, gone: float) -> Reading:
        made = Tape()
        made.pod(0.1, "a", "LISTED", ready=True)
        made.evict(10.0, "a")
        made.pod(10.1, "a", ready=True, deletion_time=time(40), deletion_grace=30.0)
        made.pod(10.2, "b", "ADDED", phase="Pending", created_time=time(10))
        made.pod(10.0 + ready, "b", ready=True)
        made.pod(10.0 + gone, "a", "DELETED", ready=False, deletion_time=time(40), deletion_grace=30.0)
        made.end(30.0)
        return reading(made.rows)

    return tape(3.0, 6.0), tape(6.0, 3.0)


def test_an_order_that_is_turned_is_told_once() -> None:
    lines = section(written(*turned(), 120), "Order")
    assert lines == [
        "  victim: not Ready, gone: in A after, in B before",
        "    replacement: scheduled, initialized, Ready",
    ]


def test_roles_have_numbers_only_where_there_are_several() -> None:
    made = Tape()
    for name in ("x", "y"):
        made.pod(0.1, name, "LISTED", ready=True)
    for at, name in ((10.0, "x"), (11.0, "y")):
        made.evict(at, name)
        made.pod(at + 0.1, name, "DELETED", ready=False, deletion_time=time(at + 30), deletion_grace=30.0)
    made.pod(12.0, "z", "ADDED", ready=False, created_time=time(12))
    made.end(30.0)
    found = reading(made.rows)
    lines = [line.split(":")[0].strip() for line in section(written(found, found), "Timelines")[1:]]
    assert {"victim 1", "victim 2", "fault 1", "fault 2", "replacement"} <= set(lines)
    assert "victim" not in lines


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_its_terminal(width: int) -> None:
    sides = [of_reference(), of_real_drill(), of_kubernetes(begin=6.29), reading(story().rows), *turned()]
    for a, b in zip(sides, [*sides[1:], sides[0]], strict=True):
        text = written(a, b, width)
        assert max(map(len, text.splitlines())) <= width
        assert all(line == line.rstrip() for line in text.splitlines())


def test_without_a_fault_it_says_from_where_times_count() -> None:
    text = written(of_kubernetes(begin=200.0, until=12.0), of_reference())
    assert "no fault was sent in A: times are from the start of the recording" in text


def test_as_markdown() -> None:
    a, b = of_reference(), of_real_drill()
    found: Comparison = compare(a, b)
    text = markdown("a and b", headline(found), sections(found, a.facts, b.facts))
    assert text.startswith("# a and b\n\n**DIFFERENT: ")
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) >= 8
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1


def test_long_lists_of_differences_are_cut_and_two_playbooks_are_not_compared_line_by_line() -> None:
    def side(playbook: str, count: int) -> Reading:
        parameters = {f"p{number}": f"{playbook}{number}" for number in range(count)}
        lines = "\n".join(f"line {number} of {playbook}" for number in range(20))
        sources = {"d.yaml": f"kind: Drill\n{lines}", "p.yaml": f"kind: Playbook\n{lines}"}
        return reading(story().rows, playbook=playbook, parameters=parameters, sources=sources)

    shown = section(written(side("one", 30), side("two", 30)), "Differences in what was run")
    assert sum(line.startswith("  parameters.") for line in shown) == 23
    assert "  and 7 more; the JSON output has them" in shown
    assert "  lines of the drill's file that only one side has" in shown
    assert not [line for line in shown if "playbook's file" in line]
    assert shown[-1] == "    and 28 more; the JSON output has them"


def test_replicas_that_were_asked_directly_are_matched_by_role() -> None:
    def asked(at: float, name: str) -> Reading:
        """The gateway comes to the replacement at that time; the gateway is late at the victim's end on one side."""
        tape = Story()
        for sent in (9.0, 9.5):
            tape.direct("old", sent, sent + 0.3, headers=sent + 0.05)
        tape.direct("old", 10.3, 10.4, "connect_refused")
        tape.direct("other", 11.0, 11.3)
        tape.life("new", 13.0, "listens")
        tape.direct("new", 13.1, 13.2, "http_error", status=503)
        tape.direct("new", 14.0, 14.6)
        tape.pod(15.0, "new", ready=True, ip="10.0.0.9")
        tape.endpoints(15.1, old=False, other=True, new=True)
        tape.direct("new", 16.0, 16.5)
        if name == "late":
            tape.through("old", 11.9, 12.0, "http_error", status=503)
        tape.through("new", at, at + 0.5)
        tape.end(30.0)
        probes = [
            Probe(name="chat", dialect="completions", pod_header="x-pod"),
            Probe(name="direct", dialect="completions", target="replicas"),
        ]
        return reading(tape.rows, drill=name, probes=probes)

    late, quick = asked(18.0, "late"), asked(15.5, "quick")
    rows = [line.split("  ") for line in section(written(late, quick, 140), "Replicas, asked directly by direct")]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["A", "B", "B − A"],
        ["victim: answered", "2 of 3 (1 connect_refused)", "2 of 3 (1 connect_refused)"],
        ["victim: sent to after it stopped", "1, 1 lost", "0"],
        ["replacement: answered", "1 of 1", "1 of 1"],
        ["replacement: served, after the fault", "4.000 s", "4.000 s", "+0.000 s"],
        ["replacement: routing delay", "4.000 s", "1.500 s", "-2.500 s"],
        ["others: answered", "1 of 1", "1 of 1"],
    ]
    pairs = {pair.role: pair for pair in compare(late, quick).direct}
    assert list(pairs) == ["victim 1", "replacement 1", "others"]
    assert pairs["victim 1"].a is not None
    assert pairs["victim 1"].a.outcomes == {"complete": 2, "connect_refused": 1}
    for side, ids in ((late, pairs["victim 1"].evidence.a), (quick, pairs["victim 1"].evidence.b)):
        refused = side.picture.direct.requests
        assert ids == refused.ids(refused.is_outcome("connect_refused"))
    # A side that did not ask them has none; where nobody did there is no such section.
    (title,) = [line for line in written(late, of_reference(), 100).splitlines() if "asked directly" in line]
    alone = section(written(late, of_reference(), 100), title)
    assert alone[1].split()[-1] == alone[5].split()[-2] == alone[6].split()[-1] == "–"
    assert "asked directly" not in written(of_reference(), of_reference())

"""What people see of an answer, frame by frame."""

from __future__ import annotations

from chaosrunner.cli.frames import said


def test_the_text_of_an_event() -> None:
    assert said(b'{"choices":[{"delta":{"content":"a"}},{"text":"b"}],"delta":"c","id":"x"}') == "abc"
    assert said(b"[DONE]") == said(b"\xff") == ""


def test_no_nesting_breaks_it() -> None:
    for depth in (*range(200, 1010), 200_000):
        assert said(b'{"text":' + b"[" * depth + b"]" * depth + b"}") == ""

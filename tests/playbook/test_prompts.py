"""Files of prompts: what is read, and what is said about a bad line."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaosrunner.engine import traffic
from chaosrunner.errors import UserError
from chaosrunner.playbook import load_drill, validate
from chaosrunner.playbook.prompts import Entry, read_prompts

from .files import PLAYBOOK, changed, write

PROMPT = 'prompt: "Count from {{ nonce }}."'


def read(folder: Path, text: str, name: str = "p.jsonl", *, chat: bool = True) -> list[Entry]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_prompts(str(path), chat=chat)


def test_lines(tmp_path: Path) -> None:
    entries = read(tmp_path, 'one\r\n\n {"prompt": "two"} \n', "p.txt")
    assert [entry.prompt for entry in entries] == ["one", ' {"prompt": "two"} ']


def test_json_lines(tmp_path: Path) -> None:
    message = {"role": "user", "content": "hi\u2028there"}
    entries = read(
        tmp_path, '{"prompt":"a","max_tokens":7}\n{"messages":[{"role":"user","content":"hi\u2028there"}]}\n'
    )
    assert entries == [Entry(prompt="a", max_tokens=7), Entry(messages=[message])]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "no prompt in it"),
        ('{"prompt": "a"}\nplain', "p.jsonl:2: JSON is malformed"),
        ('{"prompt": "a", "max_token": 3}', "p.jsonl:1: Object contains unknown field `max_token`"),
        ('{"max_tokens": 3}', "p.jsonl:1: needs exactly one of prompt, messages"),
        ('{"prompt": "a", "messages": []}', "p.jsonl:1: needs exactly one of"),
        ('{"messages": []}', "p.jsonl:1: each message is like"),
        ('{"messages": [{"content": "x"}]}', "p.jsonl:1: each message is like"),
        ('{"prompt": "a", "max_tokens": 0}', "p.jsonl:1: max_tokens must be 1 or more"),
        ("\udcff", "cannot be read"),
    ],
)
def test_bad_files(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(line.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=said):
        read_prompts(str(tmp_path / "p.jsonl"), chat=True)


def test_messages_are_for_chats(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"p\.jsonl:1: messages belong to a chat"):
        read(tmp_path, '{"messages": [{"role": "user", "content": "x"}]}', chat=False)


def test_a_playbook_names_the_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "max_tokens": 300}\n{"prompt": ""}\n{"prompt": "b"\n')
    playbook = changed(PLAYBOOK, (PROMPT, "prompts: p.jsonl"), ("loss_on_victim == 0", "replacement.tokens >= 300"))
    drill = write(tmp_path, playbook=playbook)
    problem = validate(tmp_path / "small.yaml")[0]
    assert (problem.line, problem.column) == (9, 40)
    assert "p.jsonl:3: " in problem.message

    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "max_tokens": 300}\n{"prompt": ""}\n')
    bound = load_drill(drill)
    spec = traffic.spec_of(bound.playbook.probes[0], bound.drill.endpoint, seed="")
    assert [(entry.prompt, entry.max_tokens) for entry in spec.shapes[0].prompts] == [("a", 300), ("", None)]

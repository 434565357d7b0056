"""Credentials are sent, and never told: in no file of a recording, no log line, no report."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.engine import drills
from tests.engine.lab import Lab

pytestmark = pytest.mark.lab

KEY = "sk-b2c1a0f9-not-for-you"
TEAM = 'team/pa"ss\\word'
PROMETHEUS = "prom-77aa-not-for-you"


class Echo(BaseHTTPRequestHandler):
    """Tells every header that it got, as careless proxies do: whole, and without the scheme."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        values = [value for _, value in self.headers.items()]
        self.seen += values
        told = " ".join([*values, *(value.split()[-1] for value in values)])
        body = json.dumps({"error": {"message": f"refused: {told}", "type": "auth", "code": 401}}).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def echo() -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Echo,), {"seen": seen}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def test_credentials_that_a_server_echoes_are_in_no_file_log_or_report(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_KEY", KEY)
    monkeypatch.setenv("TEAM", TEAM)
    (tmp_path / "token").write_text(PROMETHEUS)
    baseline = {"baseline": {"for": "700ms", "until": "requests >= 3", "timeout": "5s"}}
    once = {"probe-once": {"probe": "chat", "expect": {"status": 200}}}
    timelines = tmp_path / "timelines"
    with echo() as (url, seen):
        endpoint = {
            "url": url,
            "api_key": {"env": "CHAT_KEY"},
            "headers": {"x-team": {"env": "TEAM"}, "x-region": "namespace"},
        }
        prometheus = {"url": url, "interval": "200ms", "headers": {"x-scope": {"file": "token"}}}
        drill = drills.write(tmp_path, lab, [baseline, once], endpoint=endpoint, prometheus=prometheus)
        where = ["--kubeconfig", lab.kubeconfig, "--timelines", str(timelines)]
        code, out, err = drills.invoke("--log-level", "debug", "run", str(drill), *where, "--yes", "-o", "json")
    assert code == 1, err
    sent = " ".join(seen)
    assert all(secret in sent for secret in (KEY, TEAM, PROMETHEUS))  # they were sent, and told back
    files = [path for path in timelines.rglob("*") if path.is_file()]
    assert {"manifest.json", "rows.jsonl", "journal.jsonl", "report.json", "requests.parquet", "events.parquet"} == {
        path.name for path in files
    }
    texts = {path.name: path.read_bytes() for path in files} | {"stdout": out.encode(), "stderr": err.encode()}
    for secret in (KEY, TEAM, PROMETHEUS):
        for form in (secret, json.dumps(secret)[1:-1]):
            assert [name for name, text in texts.items() if form.encode() in text] == []
    assert b"refused: " in texts["rows.jsonl"]
    # A header that is no credential is an ordinary word, which must not be torn out of the recording.
    assert b'"namespace"' in texts["manifest.json"]
    for shown in ("text", "markdown"):
        code, out, err = drills.invoke("report", "latest", "--timelines", str(timelines), "-o", shown)
        assert code == 0
        assert not any(secret in out + err for secret in (KEY, TEAM, PROMETHEUS))

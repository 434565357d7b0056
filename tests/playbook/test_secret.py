from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from chaosrunner.errors import UserError
from chaosrunner.playbook import load_drill
from chaosrunner.playbook.endpoint import Endpoint, resolve_headers
from chaosrunner.playbook.secret import Secret

from .files import DRILL, changed, write


def test_a_credential_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret(env="CHAOS_KEY")
    monkeypatch.setenv("CHAOS_KEY", " k3y\n")
    assert secret.resolve() == "k3y"
    monkeypatch.setenv("CHAOS_KEY", " ")
    with pytest.raises(UserError, match="CHAOS_KEY is empty"):
        secret.resolve()
    monkeypatch.delenv("CHAOS_KEY")
    with pytest.raises(UserError, match="CHAOS_KEY is not set"):
        secret.resolve()


def test_a_credential_file_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    secret = Secret(file=str(file))
    with pytest.raises(UserError, match="cannot be read"):
        secret.resolve()
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        assert secret.resolve() == token


def test_a_credential_never_shows() -> None:
    endpoint = Endpoint.model_validate(
        {"api_key": {"value": "s3cret"}, "headers": {"Authorization": "Bearer s3cret", "routing-strategy": "random"}}
    )
    for shown in (repr(endpoint), str(endpoint), endpoint.model_dump_json(), str(endpoint.model_dump())):
        assert "s3cret" not in shown
        assert "random" in shown
    assert endpoint.api_key is not None
    assert endpoint.api_key.resolve() == "s3cret"
    assert resolve_headers(endpoint.headers) == {"Authorization": "Bearer s3cret", "routing-strategy": "random"}


@pytest.mark.parametrize("given", [{}, {"env": "A", "file": "b"}, "s3cret", {"env": "not a name"}, {"value": 5}])
def test_what_is_no_reference_is_refused_without_showing_it(given: object) -> None:
    with pytest.raises(ValidationError) as caught:
        Endpoint.model_validate({"api_key": given})
    assert "s3cret" not in str(caught.value)


def test_the_kept_sources_show_no_credential_and_files_are_beside_the_drill(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file")
    text = changed(
        DRILL,
        (
            "endpoint: {",
            "endpoint: {api_key: {value: s3cret-1}, headers: {Authorization: 'Bearer s3cret-2', "
            "x-a: {value: s3cret-3}, x-b: {file: token}, x-c: plain}, ca: ca.pem, ",
        ),
    )
    bound = load_drill(write(tmp_path, drill=text))
    kept = json.dumps([bound.sources, bound.drill.model_dump(mode="json"), bound.parameters])
    assert "s3cret" not in kept
    assert "plain" in kept
    assert bound.drill.endpoint.ca == str(tmp_path / "ca.pem")
    assert resolve_headers(bound.drill.endpoint.headers) == {
        "Authorization": "Bearer s3cret-2", "x-a": "s3cret-3", "x-b": "from-file", "x-c": "plain",
    }  # fmt: skip

"""What counts as a credential, and that every room masks it in the same way."""

from __future__ import annotations

import pytest

from chaosrunner.playbook.endpoint import Endpoint
from chaosrunner.playbook.secret import Secret
from chaosrunner.timeline.redact import MASK, Redactor, is_sensitive, mask_schemes, sensitive_values


def test_values_of_headers() -> None:
    headers = {"X-Auth-Token": "t0ps3cret", "accept": "text/plain", "Authorization": "Token abcdef", "x-api-key": ""}
    assert sensitive_values(headers) == {"t0ps3cret", "Token abcdef", "abcdef"}
    redactor = Redactor(sensitive_values(headers))
    text = "t0ps3cret text/plain Token abcdef, plain abcdef"
    assert redactor.text(text) == f"{MASK} text/plain {MASK}, plain {MASK}"


def test_credentials_of_others() -> None:
    assert mask_schemes("bearer xyz.1 Basic dXNlcg== basics") == f"bearer {MASK} Basic {MASK} basics"
    assert mask_schemes(f"Bearer {MASK}") == f"Bearer {MASK}"


@pytest.mark.parametrize("name", ["X-Credential", "Ocp-Apim-Subscription-Key", "Cookie", "authorization", "x-trace"])
def test_one_list_of_names(name: str) -> None:
    """What a drill holds as a credential is what a probe keeps out of its rows."""
    endpoint = Endpoint.model_validate({"url": "http://chat.example", "headers": {name: "s3cret-value"}})
    assert isinstance(endpoint.headers[name], Secret) == is_sensitive(name) == (name != "x-trace")
    assert sensitive_values({name: "s3cret-value"}) == ({"s3cret-value"} if name != "x-trace" else set())

"""What a name, a label and an annotation may look like, worded as k8s.io/apimachinery/pkg/util/validation does."""

from __future__ import annotations

import re
from collections.abc import Iterator

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
_NAME_PART = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_NAME_PART})?"
_MUST = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_PART_RULE = f"{_MUST} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME_PART}')"
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL}')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)


def of_object(text: str) -> Iterator[str]:
    """What is wrong with the name of an object, or of a part before a slash."""
    if len(text) > 253:
        yield "must be no more than 253 characters"
    elif not re.fullmatch(_SUBDOMAIN, text):
        yield _SUBDOMAIN_RULE


def of_container(text: str) -> Iterator[str]:
    if len(text) > 63:
        yield "must be no more than 63 bytes"
    elif not re.fullmatch(LABEL, text):
        yield _LABEL_RULE


def of_key(text: str) -> Iterator[str]:
    """What is wrong with the key of a label or an annotation."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        optional = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield f"a valid label key {_PART_RULE} {optional}"
        return
    if slash:
        yield from (f"prefix part {why}" for why in of_object(prefix))
    if not name:
        yield "name part must be non-empty"
    if len(name) > 63:
        yield "name part must be no more than 63 bytes"
    elif not re.fullmatch(_NAME_PART, name):
        yield f"name part {_PART_RULE}"


def of_value(text: str) -> Iterator[str]:
    """What is wrong with the value of a label."""
    if len(text) > 63:
        yield "must be no more than 63 bytes"
    elif not re.fullmatch(_VALUE, text):
        example = f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
        yield f"a valid label must be an empty string or {_MUST.removeprefix('must ')} {example}"

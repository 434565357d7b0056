"""A JSON Patch (RFC 6902) reader for tests: add, remove and test on objects, as the API server applies them."""

from __future__ import annotations

import copy
from typing import Any


class TestFailed(Exception):
    """A `test` operation did not hold: nothing was applied."""

    __test__ = False


def apply(obj: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    patched = copy.deepcopy(obj)
    for operation in operations:
        *parents, last = [t.replace("~1", "/").replace("~0", "~") for t in operation["path"].split("/")[1:]]
        at = patched
        for token in parents:
            at = at[token]
        match operation["op"]:
            case "add":
                at[last] = operation["value"]
            case "remove":
                del at[last]
            case "test":
                if at[last] != operation["value"]:
                    raise TestFailed(operation["path"])
    return patched

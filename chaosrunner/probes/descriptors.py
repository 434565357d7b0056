"""Room for as many connections as a load may need."""

from __future__ import annotations

import resource

from chaosrunner.errors import UserError

OTHERS = 128
"""Descriptors for all that is no connection of a probe: watches, files, the interpreter's own."""


def make_room(connections: int) -> None:
    """Raise this process's own limit of descriptors so far that `connections` fit, and what it starts inherits it.

    Raises UserError where the system does not allow so many.
    """
    needed = connections + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError):
        raise UserError(
            f"up to {connections} requests in flight take {needed} file descriptors, and the system allows this "
            f"process {hard}; raise the limit (ulimit -Hn {needed}), or lower concurrency or max_in_flight"
        ) from None

"""Finds what runs left, of whatever machine, by what the cluster's objects themselves tell."""

from __future__ import annotations

from chaosrunner.cluster.resources import (
    DEPLOYMENTS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    STATEFUL_SETS,
    Object,
    Resource,
    meta,
)
from chaosrunner.cluster.session import ApiError, Cluster
from chaosrunner.errors import UserError
from chaosrunner.journal import fields, injected
from chaosrunner.journal.journal import Connection, Entry, Injected
from chaosrunner.timeline import rows

LOOKED_AT = (NODES, DEPLOYMENTS, STATEFUL_SETS, NETWORK_POLICIES, PODS)
"""Kinds that faults change or make."""


async def annotated(
    cluster: Cluster, connection: Connection, *, only: tuple[Resource, ...] = LOOKED_AT
) -> tuple[list[Entry], list[str]]:
    """Entries as the undo notes on objects of all namespaces tell them, newest first, and what could not be looked at.

    Who may not list a kind in all namespaces looks into the connection's alone. Raises Unreachable, and UserError where
    nothing can be listed at all.
    """
    entries: list[Entry] = []
    unseen: list[str] = []
    seen = False
    for resource in only:
        try:
            objects, where = await _listed(cluster, resource, connection.namespace)
        except ApiError as error:
            if error.answer.status != 404:  # a server without that kind has none of it
                unseen.append(str(error))
            continue
        seen = True
        if where is not None:
            unseen.append(f"{resource.plural} of other namespaces than {where}")
        for obj in objects:
            entries += [_entry(note, obj, resource, connection) for note in _notes(obj, resource)]
    if not seen and unseen:
        raise UserError(unseen[0])
    return sorted(entries, key=lambda entry: entry.wall, reverse=True), unseen


async def _listed(cluster: Cluster, resource: Resource, namespace: str | None) -> tuple[list[Object], str | None]:
    """All objects, or those of the one namespace that may be seen. Raises ApiError."""
    try:
        return (await cluster.list(resource)).items, None
    except ApiError as error:
        if error.answer.status != 403 or namespace is None or not resource.namespaced:
            raise
    return (await cluster.list(resource, namespace)).items, namespace


def _notes(obj: Object, resource: Resource) -> list[fields.Note]:
    found = fields.notes_of(obj)
    if resource is PODS:
        found += [note for note in injected.notes(obj) if not _ended(obj, note)]
    return found


def _ended(pod: Object, note: fields.Note) -> bool:
    """Whether an ephemeral container has ended what it did, or another one has."""
    if not isinstance(note.made, Injected):
        return True
    found = injected.status(pod, note.made.container)
    over = found.phase == "terminated" and (found.exit_code in (0, 2) or note.made.target_container is not None)
    return over or injected.healed(pod, note.made) is not None


def _entry(note: fields.Note, obj: Object, resource: Resource, connection: Connection) -> Entry:
    about = meta(obj)
    name, namespace = str(about["name"]), about.get("namespace")
    target = rows.Target(kind=resource.kind, name=name, namespace=namespace, uid=about.get("uid"))
    return fields.entry(note, target, resource.path(namespace, name), connection)

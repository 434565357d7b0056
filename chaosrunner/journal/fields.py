"""A change of fields and its undo as JSON Patches (RFC 6902): pure, objects in, operations out.

The change and the annotation that tells how to undo it are one patch, so no crash falls between them. Each patch
tests the object's uid and resourceVersion: it applies to the state that was read, or to nothing. (A `test` of a
previous value cannot say "was absent"; the resourceVersion says it of every field at once.)
"""

from __future__ import annotations

from typing import Any

import msgspec

from chaosrunner.cluster.resources import Object
from chaosrunner.journal.journal import Connection, Entry, Field, Made, State
from chaosrunner.journal.process import Process
from chaosrunner.timeline import rows

ANNOTATION = "chaosrunner.dev/undo."
"""With an entry's id behind it the annotation on an object that the entry changed or created: a `Note` as JSON. It is
enough to undo the change where the journal is lost."""

FENCE = "chaosrunner.dev/fence"
"""Annotation that is set and taken away again, only to move an object's version (see `fence`)."""

MANAGER = "chaosrunner"
"""Our fieldManager: the API server keeps, per field, who wrote it last (`metadata.managedFields`)."""

Operation = dict[str, Any]


class Note(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What the annotation holds."""

    run: str
    entry: str
    drill: str
    fault: str
    fields: tuple[Field, ...] = ()
    made: Made | None = None
    owner: Process
    wall: float
    """Unix seconds when the change was announced."""
    ends: float | None = None
    """Unix seconds at which the target takes it back by itself."""


class Decision(msgspec.Struct, kw_only=True, frozen=True):
    """What is to be done about an entry. Without operations `state` is final; with some, it holds once they applied."""

    state: State
    operations: list[Operation] = []
    detail: str | None = None


def get(obj: Object, pointer: str) -> Any:
    """The value at a JSON pointer, None where it or a parent is absent."""
    value: Any = obj
    for token in _tokens(pointer):
        if not isinstance(value, dict) or token not in value:
            return None
        value = value[token]
    return value


def same(one: Any, other: Any) -> bool:
    """Equality as the API has it: an optional boolean that is false is not stored, so false and absent are one."""
    return one == other or (one in (None, False) and other in (None, False))


def value(obj: Object, field: Field) -> Any:
    """The field's value; of an element of a list, the one that its keys identify; None where it is absent."""
    found = get(obj, field.path)
    if not field.keys:
        return found
    index = _index(found, field)
    return None if index is None else found[index]


def notes_of(obj: Object) -> list[Note]:
    """The undo annotations of an object, oldest first, without those that we cannot read."""
    found = []
    for name, raw in (get(obj, "/metadata/annotations") or {}).items():
        if name.startswith(ANNOTATION):
            try:
                found.append(msgspec.json.decode(raw, type=Note))
            except (msgspec.DecodeError, TypeError):
                continue
    return sorted(found, key=lambda note: note.wall)


def noted(obj: Object, entry: Entry) -> bool:
    """Whether the object carries this entry's annotation."""
    return annotation(entry) in (get(obj, "/metadata/annotations") or {})


def annotation(entry: Entry) -> str:
    """Name of an entry's annotation."""
    return ANNOTATION + entry.entry


def note(entry: Entry) -> str:
    """Value of an entry's annotation."""
    made = Note(
        run=entry.run,
        entry=entry.entry,
        drill=entry.drill,
        fault=entry.fault,
        fields=entry.fields,
        made=entry.made,
        owner=entry.owner,
        wall=entry.wall,
        ends=entry.ends,
    )
    return msgspec.json.encode(made).decode()


def change(obj: Object, entry: Entry) -> list[Operation]:
    """The patch that makes `entry`'s change on `obj` and annotates it."""
    annotate: list[Operation] = (
        [{"op": "add", "path": _annotation_path(annotation(entry)), "value": note(entry)}]
        if get(obj, "/metadata/annotations") is not None
        else [{"op": "add", "path": "/metadata/annotations", "value": {annotation(entry): note(entry)}}]
    )
    changes = [_assign(obj, field, field.desired) for field in entry.fields]
    return [*_unchanged(obj), *(op for op in changes if op is not None), *annotate]


def undo(obj: Object, entry: Entry, state: State) -> Decision:
    """How to undo `entry`, whose last state is `state`, on `obj` as it is now.

    A field goes back to its previous value only if it still is as this entry left it: it has the desired value,
    our annotation is on the object (or, where something stripped it, the API server names us as the only writer
    of the field) and nobody else is named as its writer.
    """
    if entry.target.uid is not None and get(obj, "/metadata/uid") != entry.target.uid:
        return Decision(state="already_undone", detail="undone_by_removal: another object has this name now")
    ours = noted(obj, entry)
    restore: list[Operation] = []
    restored: list[str] = []
    foreign: list[str] = []
    for field in entry.fields:
        now = value(obj, field)
        if same(now, field.previous):
            continue
        # An atomic list has one writer for all of its elements: that says nothing about ours.
        writers = {MANAGER} if field.keys else _managers(obj, field.path)
        others = sorted(writers - {MANAGER})
        proven = ours or (state != "intent" and writers == {MANAGER} and not _noted_since(obj, entry, field))
        if proven and same(now, field.desired) and not others:
            operation = _assign(obj, field, field.previous)
            restore += [operation] if operation is not None else []
            restored.append(field.path)
        else:
            foreign.append(f"{field.path} is {now!r}" + (f", written by {', '.join(others)}" if others else ""))
    if ours:
        restore.append(_drop_annotation(obj, annotation(entry)))
    final: State
    if foreign:
        final = "changed_by_others" if ours or state != "intent" else "not_applied"
    elif restored:
        final = "undone"
    else:
        final = "already_undone" if ours or state != "intent" else "not_applied"
    detail = "; ".join(foreign) or None
    if foreign and restored:
        detail = f"left as others want it: {detail}; put back: {', '.join(restored)}"
    return Decision(state=final, operations=[*_unchanged(obj), *restore] if restore else [], detail=detail)


def fence(obj: Object, entry: Entry) -> list[Operation]:
    """A change that harms nothing, but moves the object's version: a patch of `entry` that is still on its way tests
    the version that it was made for, and is refused from then on."""
    path = "/metadata/annotations"
    if get(obj, path) is None:
        return [*_unchanged(obj), {"op": "add", "path": path, "value": {FENCE: entry.entry}}]
    return [*_unchanged(obj), {"op": "add", "path": _annotation_path(FENCE), "value": entry.entry}]


def unfence(obj: Object) -> list[Operation]:
    """Takes the fence away again; nothing where there is none."""
    if FENCE not in (get(obj, "/metadata/annotations") or {}):
        return []
    return [*_unchanged(obj), _drop_annotation(obj, FENCE)]


def command(entry: Entry) -> str:
    """The kubectl command by which a person can do what undo could not."""
    kind, name = entry.target.kind.lower(), entry.target.name
    merge: dict[str, Any] = {"metadata": {"annotations": {annotation(entry): None}}}
    by_hand = []
    for field in entry.fields:
        if field.keys:
            by_hand.append(f"and put {_identity(field)} of {field.path} back to {field.previous!r}")
            continue
        *parents, last = _tokens(field.path)
        at = merge
        for token in parents:
            at = at.setdefault(token, {})
        at[last] = field.previous
    patch = msgspec.json.encode(merge).decode()
    words = [*kubectl(entry), "patch", kind, name, "--type=merge", f"-p '{patch}'"]
    return "; ".join([" ".join(words), *by_hand])


def kubectl(entry: Entry) -> list[str]:
    """kubectl with the flags that reach an entry's cluster and namespace."""
    flags = []
    if entry.connection.kubeconfig:
        flags.append(f"--kubeconfig {entry.connection.kubeconfig}")
    if entry.connection.context:
        flags.append(f"--context {entry.connection.context}")
    if entry.target.namespace:
        flags.append(f"--namespace {entry.target.namespace}")
    return ["kubectl", *flags]


def entry(note: Note, target: rows.Target, resource: str, connection: Connection) -> Entry:
    """The entry that an annotation tells of; the connection is the reader's own."""
    return Entry(
        entry=note.entry,
        run=note.run,
        drill=note.drill,
        fault=note.fault,
        target=target,
        resource=resource,
        fields=note.fields,
        made=note.made,
        connection=connection,
        owner=note.owner,
        wall=note.wall,
        ends=note.ends,
    )


def _unchanged(obj: Object) -> list[Operation]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": get(obj, "/metadata/uid")},
        {"op": "test", "path": "/metadata/resourceVersion", "value": get(obj, "/metadata/resourceVersion")},
    ]


def _assign(obj: Object, field: Field, wanted: Any) -> Operation | None:
    """The operation that gives the field this value; None where there is nothing to do."""
    if not field.keys:
        if wanted is not None:
            return {"op": "add", "path": field.path, "value": wanted}  # RFC 6902 4.1: `add` replaces what is there
        return {"op": "remove", "path": field.path} if get(obj, field.path) is not None else None
    elements = get(obj, field.path)
    index = _index(elements, field)
    if wanted is None:
        if index is None:
            return None
        return {"op": "remove", "path": field.path if len(elements) == 1 else f"{field.path}/{index}"}
    if index is not None:
        return {"op": "replace", "path": f"{field.path}/{index}", "value": wanted}
    if elements is None:
        return {"op": "add", "path": field.path, "value": [wanted]}
    return {"op": "add", "path": f"{field.path}/-", "value": wanted}


def _index(elements: Any, field: Field) -> int | None:
    """Position of the list's element that the field is; None where there is none."""
    identity = field.desired if field.desired is not None else field.previous
    for index, element in enumerate(elements if isinstance(elements, list) else []):
        if all(element.get(key) == identity.get(key) for key in field.keys):
            return index
    return None


def _identity(field: Field) -> str:
    identity = field.desired if field.desired is not None else field.previous
    return "/".join(str(identity.get(key)) for key in field.keys)


def _noted_since(obj: Object, entry: Entry, field: Field) -> bool:
    """Whether another change of ours to the same field is on the object."""
    return any(
        other.entry != entry.entry and any(f.path == field.path and f.keys == field.keys for f in other.fields)
        for other in notes_of(obj)
    )


def _annotation_path(name: str) -> str:
    return "/metadata/annotations/" + name.replace("~", "~0").replace("/", "~1")


def _drop_annotation(obj: Object, name: str) -> Operation:
    last = set(get(obj, "/metadata/annotations")) == {name}
    return {"op": "remove", "path": "/metadata/annotations" if last else _annotation_path(name)}


def _managers(obj: Object, pointer: str) -> set[str]:
    """Who wrote the field last, by managedFields (FieldsV1: each key of the path prefixed with `f:`)."""
    found = set()
    for managed in get(obj, "/metadata/managedFields") or []:
        at = managed.get("fieldsV1", {})
        for token in _tokens(pointer):
            at = at.get(f"f:{token}") if isinstance(at, dict) else None
        if at is not None and managed.get("manager"):
            found.add(managed["manager"])
    return found


def _tokens(pointer: str) -> list[str]:
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]

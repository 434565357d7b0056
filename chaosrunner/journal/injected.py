"""Ephemeral containers that make an effect in a Pod: how they are put there, seen, and their effect ended before time.

An ephemeral container cannot be taken out of a Pod again. Its effect is ended by a second one beside it, which needs no
right to execute commands; both stay in the Pod's object, terminated, as long as the Pod lives. As the subresource takes
no annotations, the container itself carries the undo, in its environment.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import anyio
import msgspec

from chaosrunner.cluster.actions import causes_of, change
from chaosrunner.cluster.resources import Object, finished, meta
from chaosrunner.cluster.session import JSON_PATCH, Answer, ApiError, Cluster
from chaosrunner.journal import fields
from chaosrunner.journal.journal import Entry, Injected, State
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Emit

START = 30.0
"""How long an ephemeral container may take to start, seconds after its intent: the agent in it does nothing later."""

UNDO = "CHAOSRUNNER_UNDO"
"""Variable in a container's environment: the `Note` that tells how to undo what it does."""

HEALING = START + 10.0
"""How long one try to heal waits until the containers have ended, seconds."""

LATE = 1.0
"""How long a call that was announced may still be on its way to the API server after its sender died, seconds."""

ENDING = 3.0
"""How long after its time limit a container may still seem to run: it began later than it was asked to, and the kubelet
looks once a second; seconds."""

POLL = 0.25
"""Seconds between two looks at a Pod."""

CONFLICTS = 20
"""How often a Pod may change between read and patch."""

HEALERS = 3
"""How many containers one try may spend on healing."""


class Status(NamedTuple):
    """How an ephemeral container is."""

    phase: Literal["absent", "waiting", "running", "terminated"]
    """absent: the Pod has none of that name. waiting: also where its kubelet has not told of it yet."""
    reason: str = ""
    message: str = ""
    """Of a terminated one what its agent said last, if it did."""
    exit_code: int | None = None

    @property
    def said(self) -> dict[str, Any]:
        """The agent's last event (`event`, `text`, ...); empty where its message is none."""
        return event(self.message)

    def text(self) -> str:
        """In words."""
        if self.phase == "terminated":
            return str(self.said.get("text") or self.message or self.reason or "ended") + f" (exit {self.exit_code})"
        return ": ".join(filter(None, (self.reason or self.phase, self.message)))


def event(line: str) -> dict[str, Any]:
    """An event that the agent told; empty where the line is none."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def status(pod: Object, name: str) -> Status:
    """How the Pod's ephemeral container of this name is."""
    if not any(one.get("name") == name for one in containers(pod)):
        return Status("absent")
    told = (pod.get("status") or {}).get("ephemeralContainerStatuses") or []
    state = next((one.get("state") or {} for one in told if one.get("name") == name), {})
    if ended := state.get("terminated"):
        code = ended.get("exitCode")
        return Status("terminated", ended.get("reason") or "", (ended.get("message") or "").strip(), code)
    if "running" in state:
        return Status("running")
    waiting = state.get("waiting") or {}
    return Status("waiting", waiting.get("reason") or "", waiting.get("message") or "")


def containers(pod: Object) -> list[dict[str, Any]]:
    """The Pod's ephemeral containers, somebody else's too."""
    return (pod.get("spec") or {}).get("ephemeralContainers") or []


def container(
    name: str,
    arguments: Sequence[str],
    *,
    image: str,
    pull_policy: str,
    capabilities: Sequence[str] = (),
    target: str | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    """An ephemeral container that runs the agent. `target`: the container whose processes it shall see."""
    made: dict[str, Any] = {
        "name": name,
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": list(arguments),
        # As root, since capabilities are given to nobody else; whatever the Pod itself says, with no others than these.
        "securityContext": {
            "runAsUser": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": list(capabilities)},
        },
    }
    if note is not None:
        made["env"] = [{"name": UNDO, "value": note}]
    if target is not None:
        made["targetContainerName"] = target
    return made


def patch(pod: Object, added: dict[str, Any]) -> list[fields.Operation]:
    """JSON Patch for the Pod's `ephemeralcontainers`, which applies to the Pod as it was read, or not at all."""
    place = "/spec/ephemeralContainers"
    add: fields.Operation = (
        {"op": "add", "path": f"{place}/-", "value": added}
        if containers(pod)
        else {"op": "add", "path": place, "value": [added]}
    )
    metadata = meta(pod)
    tests = [{"op": "test", "path": f"/metadata/{key}", "value": metadata[key]} for key in ("uid", "resourceVersion")]
    return [*tests, add]


async def inject(
    cluster: Cluster,
    emit: Emit,
    target: rows.Target,
    resource: str,
    pod: Object,
    added: dict[str, Any],
    action: str,
    *,
    step: int | None = None,
    undo: bool = False,
) -> Answer:
    """Puts an ephemeral container into a Pod that was read before; 409 or 422 where it changed since. With rows.

    `resource`: the Pod's path. Raises Unreachable.
    """
    return await change(
        cluster,
        emit,
        action,
        target,
        "PATCH",
        f"{resource}/ephemeralcontainers",
        patch(pod, added),
        content_type=JSON_PATCH,
        query={"fieldManager": fields.MANAGER},
        step=step,
        undo=undo,
    )


def late(answer: Answer) -> bool:
    """Whether a patch was refused because its object has changed since it was read. A JSON Patch whose test fails is
    answered 422 as an invalid object is, but names no field (apiserver/pkg/endpoints/handlers/patch.go)."""
    return answer.status == 409 or (answer.status == 422 and not causes_of(answer))


def notes(pod: Object) -> list[fields.Note]:
    """The undo of each ephemeral container of ours in a Pod, oldest first, for where the journal is not at hand."""
    found = []
    for one in containers(pod):
        for variable in one.get("env") or []:
            if variable.get("name") == UNDO:
                try:
                    found.append(msgspec.json.decode(variable.get("value") or "", type=fields.Note))
                except msgspec.DecodeError:
                    continue
    return sorted(found, key=lambda note: note.wall)


async def undo(cluster: Cluster, entry: Entry, state: State, emit: Emit) -> fields.Decision:
    """Ends the effect of an entry's container, if it has not ended by itself. Raises Unreachable and ApiError."""
    made = entry.made
    assert isinstance(made, Injected)
    began = anyio.current_time()
    healers, detail = 0, "its container has not ended"
    while anyio.current_time() - began < HEALING:
        pod = await _look(cluster, entry)
        if pod is None:
            return fields.Decision(state="already_undone", detail="undone_by_removal: the Pod is gone")
        found = status(pod, made.container)
        if found.phase == "absent":
            # The intent is known, the call's end is not: it may arrive yet.
            if state != "intent" or anyio.current_time() - began > LATE:
                return fields.Decision(state="not_applied", detail="no container was put into the Pod")
        elif over := _over(entry, made, found, healed=healers > 0):
            return over
        elif found.phase == "waiting":
            # There is nothing to heal yet; a healer that came first would leave what comes then.
            detail = f"its container may start yet: {found.text()}"
        elif anyio.current_time() - began > ENDING or not _is_ending(entry, found):
            healer = _healer(pod, made)
            now = status(pod, healer)
            if now.phase == "terminated" and now.exit_code == 0 and found.phase == "terminated":
                return fields.Decision(state="undone", detail=now.text())
            if now.phase == "absent":
                if healers == HEALERS:
                    return fields.Decision(state="undo_failed", detail=detail)
                healers += await _heal(cluster, entry, made, pod, healer, emit)
            detail = f"its container: {found.text()}; the one that ends it: {now.text()}"
        await anyio.sleep(POLL)
    return fields.Decision(state="undo_failed", detail=detail)


def _over(entry: Entry, made: Injected, found: Status, *, healed: bool) -> fields.Decision | None:
    """The decision about a container that has nothing left to undo; None where something may be."""
    if found.phase == "waiting" and time.time() > entry.wall + START:
        return fields.Decision(
            state="not_applied", detail=f"its container never started ({found.text()}); it would do nothing by now"
        )
    if found.phase != "terminated":
        return None
    if found.exit_code == 2:
        return fields.Decision(state="not_applied", detail=found.text())
    if found.exit_code == 0:
        return fields.Decision(state="undone" if healed else "already_undone", detail=found.text())
    if made.target_container is not None:
        # ptrace(2): what a tracer held goes on when it ends, however it does.
        return fields.Decision(
            state="undone" if healed else "already_undone",
            detail=f"its agent has ended ({found.text()}), and the kernel lets go what it held",
        )
    return None


def _is_ending(entry: Entry, found: Status) -> bool:
    """Whether the effect is ending by itself these seconds."""
    return found.phase == "running" and entry.ends is not None and time.time() > entry.ends - START


def _healer(pod: Object, made: Injected) -> str:
    """Name of the container that heals: one that is there and has not failed, else the next."""
    number = 1
    while True:
        name = f"{made.container}-heal" + (f"-{number}" if number > 1 else "")
        found = status(pod, name)
        if found.phase != "terminated" or found.exit_code == 0:
            return name
        number += 1


def healed(pod: Object, made: Injected) -> str | None:
    """What the container that healed a network said; None where none did."""
    found = status(pod, _healer(pod, made))
    return found.text() if found.phase == "terminated" else None


async def _heal(cluster: Cluster, entry: Entry, made: Injected, pod: Object, name: str, emit: Emit) -> bool:
    """Puts the container that heals into the Pod; False where the Pod changed since it was read."""
    added = container(
        name,
        ["heal", "--entry", entry.entry],
        image=made.image,
        pull_policy=made.pull_policy,
        capabilities=["NET_ADMIN"] if made.target_container is None else [],
        target=made.target_container,
    )
    answer = await inject(cluster, emit, entry.target, entry.resource, pod, added, f"undo_{entry.fault}", undo=True)
    if not answer.ok and not late(answer):
        raise ApiError("heal", answer)
    return answer.ok


async def _look(cluster: Cluster, entry: Entry) -> Object | None:
    """The entry's Pod; None where it is gone, or will run nothing any more."""
    answer = await cluster.request("GET", entry.resource)
    if answer.status == 404:
        return None
    if not answer.ok:
        raise ApiError("read", answer)
    pod = answer.body
    other = entry.target.uid is not None and meta(pod).get("uid") != entry.target.uid
    return None if other or finished(pod) else pod


def command(entry: Entry) -> str:
    """What a person types to end the effect."""
    made = entry.made
    assert isinstance(made, Injected)
    words = ["kubectl", "debug", "-n", entry.target.namespace or "default", entry.target.name, f"--image={made.image}"]
    if made.target_container is None:
        words.append("--profile=netadmin")
    else:
        words += ["--profile=general", f"--target={made.target_container}"]
    return shlex.join([*words, "--attach=false", "--", "/agent", "heal", "--entry", entry.entry])

"""A workload on a real lab: one that goes with this process, or one that stays until the lab ends."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from chaosrunner.errors import UserError
from chaosrunner.lab.manifests import NAMESPACE, SYSTEM_NAMESPACE, Places
from chaosrunner.lab.real import outside, syscalls, workload
from chaosrunner.lab.real.api import Api, ApiError, NotAvailable, Unreachable
from chaosrunner.lab.real.owners import Owned, inherit, owning
from chaosrunner.lab.real.state import State
from chaosrunner.lab.spec import LabSpec
from chaosrunner.lab.workload.toxiproxy import PATH as TOXIPROXY

Tell = Callable[[str], None]


class _Ended(BaseException):
    """This process was told to end; raised wherever it is, so that whatever began is undone."""


def up(
    state: State, nodes: int, spec: LabSpec | None, tell: Tell, *, until_stdin_closes: bool = False
) -> dict[str, Any]:
    """Bring up a lab that stays, with a workload on it if there is a spec; returns what there is to tell.

    `until_stdin_closes`: whoever holds the other end of stdin is gone, if it closes before the lab is up, and the lab
    goes too. Raises as `outside.up`, and NotUp if the workload does not come to serve; the lab is then ended again.
    """
    if until_stdin_closes:
        _end_with_stdin()
    told = outside.up(state, nodes, tell)
    try:
        if spec is None:
            return told
        with _as_not_up(state):
            api = _enter(state, told)
            places, log = _places(state, NAMESPACE, SYSTEM_NAMESPACE), _log(state, NAMESPACE)
            # The workload outlives this process, and so must whoever keeps its log.
            namespaces = [places.namespace, places.system_namespace]
            outside.ask(state, do="note", namespaces=namespaces, requests=str(places.requests), log=str(log))
            with workload.serving(api, spec, places, log=log, tell=tell, stays=True) as found:
                line = _ready_line(told, found)
                state.tell(line)  # `status` tells of the workload too
                return line
    except BaseException:
        # The logs stay, for whoever wants to know why; another lab that may stand there by now does too.
        if state.keeper() == told["pid"]:
            outside.end(state)
        raise


def serve(state: State, spec: LabSpec, tell: Tell, answer: Callable[[Any], None], *, until_stdin_closes: bool) -> None:
    """Serve a workload until SIGINT or SIGTERM, on the lab that stands at `state` or on one that ends with it.

    Raises as `up`.
    """
    _end_when_told(until_stdin_closes)
    try:
        with ExitStack() as stack:
            if state.keeper() is None:
                # On a lab of its own the namespaces have their plain names.
                owned = Owned(NAMESPACE, SYSTEM_NAMESPACE)
                told = stack.enter_context(_own_lab(state, spec, tell))
            else:
                run = secrets.token_hex(3)
                owned = Owned(f"{NAMESPACE}-{run}", f"{SYSTEM_NAMESPACE}-{run}")
                told = outside.standing(state)
                if told["temporary"]:
                    raise UserError(f"the lab at {state.folder} is another rehearsal's; name another one by --state")
            with _as_not_up(state):
                api = _enter(state, told)
                _clear_abandoned(api, state, tell)
                places, log = _places(state, *owned), _log(state, owned.namespace)
                with (
                    owning(state.owners, owned, left_by=(workload.NotRemoved, Unreachable, ApiError)),
                    workload.noted(api, owned, places.requests, log=log, events=state.events),
                    workload.serving(api, spec, places, log=log, tell=tell, stays=told["temporary"]) as found,
                ):
                    answer(_ready_line(told, found))
                    threading.Event().wait()
    except _Ended:
        pass


def _clear_abandoned(api: Api, state: State, tell: Tell) -> None:
    """Remove the workloads that others left here who were killed. One that does not go is left to the next."""
    try:
        for left in inherit(state.owners):
            tell(f"removing the workload in {left.namespace}, whose rehearsal was killed")
            workload.remove(api, _places(state, *left), force=True)
    except workload.NotRemoved as error:
        tell(str(error))


@contextmanager
def _own_lab(state: State, spec: LabSpec, tell: Tell) -> Iterator[dict[str, Any]]:
    """A lab for the length of the block. It dies with this process, also if that is killed."""
    owner, held = os.pipe()
    told = outside.up(state, spec.nodes, tell, owner=owner)
    try:
        yield told
    except outside.NotUp:
        outside.end(state)
        raise
    except BaseException:
        tell("ending the lab")
        outside.down(state)
        raise
    finally:
        os.close(held)
        os.close(owner)


def _end_when_told(until_stdin_closes: bool) -> None:
    def end(number: int, frame: Any) -> None:
        # Once is enough: what is undone now is not to be interrupted.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise _Ended

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    if until_stdin_closes:
        _end_with_stdin()


def _end_with_stdin() -> None:
    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _enter(state: State, told: dict[str, Any]) -> Api:
    """Enter the lab's network."""
    syscalls.enter_network(Path(told["network"]))
    return Api.of_kubeconfig(state.kubeconfig)


def _places(state: State, namespace: str, system_namespace: str) -> Places:
    image = outside.image(state, "workload")
    return Places.real(image, state.requests / namespace, namespace, system_namespace)


def _log(state: State, namespace: str) -> Path:
    return state.folder / f"instants-{namespace}.jsonl"


def _ready_line(told: dict[str, Any], found: workload.Serving) -> dict[str, Any]:
    return told | {
        "namespace": found.namespace,
        "url": found.url,
        "service": found.service,
        "prometheus": found.prometheus,
        "toxiproxy": found.url + TOXIPROXY,
        "gateway": {"selector": "app=gateway", "namespace": found.system_namespace},
        "pod_header": found.pod_header,
        "log": str(found.log),
    }


@contextmanager
def _as_not_up(state: State) -> Iterator[None]:
    """Whatever keeps a workload from serving is the same to whoever started it."""
    try:
        yield
    except (ApiError, Unreachable, NotAvailable, workload.NotRemoved, OSError) as error:
        raise outside.NotUp(f"the workload does not serve: {error} (logs: {state.logs})") from error

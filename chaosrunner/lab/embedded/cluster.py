"""The embedded lab put together: store, API server, controllers, node agents, workload, a small control endpoint."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
import structlog
from aiohttp import web

from chaosrunner.errors import UserError
from chaosrunner.lab import manifests
from chaosrunner.lab.embedded import errors
from chaosrunner.lab.embedded.access import ADMIN, Access
from chaosrunner.lab.embedded.admission import PortAdmission
from chaosrunner.lab.embedded.agent.addresses import PerPod, Shared, addresses
from chaosrunner.lab.embedded.agent.containers import Container
from chaosrunner.lab.embedded.agent.logs import LogOptions
from chaosrunner.lab.embedded.agent.node import AgentSettings, NodeAgent
from chaosrunner.lab.embedded.agent.processes import Processes
from chaosrunner.lab.embedded.api import ApiServer, serve
from chaosrunner.lab.embedded.controllers.accounts import NamespaceDefaultsController
from chaosrunner.lab.embedded.controllers.deployment import DeploymentController
from chaosrunner.lab.embedded.controllers.disruption import DisruptionController
from chaosrunner.lab.embedded.controllers.endpointslice import EndpointSliceController
from chaosrunner.lab.embedded.controllers.nodes import NodeController, TaintEvictionController
from chaosrunner.lab.embedded.controllers.objects import owned
from chaosrunner.lab.embedded.controllers.podgc import PodGarbageCollector
from chaosrunner.lab.embedded.controllers.queue import Controller
from chaosrunner.lab.embedded.controllers.replicaset import ReplicaSetController
from chaosrunner.lab.embedded.controllers.scheduler import Scheduler
from chaosrunner.lab.embedded.resources import STORED
from chaosrunner.lab.embedded.selectors import parse_fields
from chaosrunner.lab.embedded.store import ApiError, Store
from chaosrunner.lab.instants import TAIL_SECONDS, Instants
from chaosrunner.lab.manifests import NAMESPACE, SYSTEM_NAMESPACE, Places
from chaosrunner.lab.objects import is_ready
from chaosrunner.lab.spec import LabSpec
from chaosrunner.lab.workload.toxics import STREAMS
from chaosrunner.lab.workload.toxiproxy import PATH as TOXIPROXY

log = structlog.get_logger()

CONTEXT = "lab"
INFRA = "infra"
_HISTORY = 20_000
_CUT = [
    {"name": f"node-cut-{stream}", "type": "latency", "stream": stream, "attributes": {"latency": 10**9}}
    for stream in STREAMS
]
"""Toxics on the links to the Pods of a node that is cut off. They are silent until it is healed and then go on, as TCP
makes connections do over a cable that was pulled; a toxic `timeout` would end them."""
_ANSWER = aiohttp.ClientTimeout(5.0)


class Lab:
    """A running lab. `store` is for those in the same process; everybody else uses the API.

    url: the API server's address with an administrator's token in its path. control: see `_control`.
    """

    def __init__(
        self, spec: LabSpec, state: Path, store: Store, instants: Instants, agents: dict[str, NodeAgent], places: Places
    ) -> None:
        self.spec = spec
        self.state = state
        self.store = store
        self.agents = agents
        self.places = places
        self.kubeconfig = state / "kubeconfig"
        self.alerts = ""
        self.url = ""
        self.control = ""
        self._instants = instants

    def ready_line(self) -> dict[str, Any]:
        """What the lab prints when it is ready."""
        return {
            "kubeconfig": str(self.kubeconfig),
            "context": CONTEXT,
            "state": str(self.state),
            "nodes": list(self.agents),
            "namespace": NAMESPACE,
            "url": self.places.gateway,
            "prometheus": self.alerts,
            "toxiproxy": self.places.gateway + TOXIPROXY,
            "gateway": {"selector": "app=gateway", "namespace": self.places.system_namespace},
            "log": str(self.state / "instants.jsonl"),
            "control": self.control,
            "pod_header": self.spec.pod_header,
            "pid": os.getpid(),
        }

    async def ready(self) -> None:
        """Wait until the model's replicas and the lab's own Deployments are available."""
        needed = ((NAMESPACE, "model"), (SYSTEM_NAMESPACE, "gateway"), (SYSTEM_NAMESPACE, "alert-source"))
        changed = anyio.Event()
        stop = self.store.subscribe("pods", lambda *_: changed.set())
        try:
            while not all(self._is_available(*where) for where in needed):
                changed = anyio.Event()
                await changed.wait()
        finally:
            stop()

    async def settle(self) -> None:
        """Take the warm-up from the first replicas: a drill begins with a service that has run for a while, and only
        the replicas that come later are cold."""
        async with aiohttp.ClientSession() as session:
            for pod in self.store.list("pods", NAMESPACE):
                if pod["metadata"].get("labels", {}).get("app") != "model":
                    continue
                port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
                url = f"http://{pod['status']['podIP']}:{port}/control/settle"
                async with session.post(url, json={}) as answer:
                    answer.raise_for_status()

    def _is_available(self, namespace: str, name: str) -> bool:
        deployment = self.store.get("deployments", name, namespace)
        replicasets = owned(self.store, "replicasets", deployment)
        pods = [pod for replicaset in replicasets for pod in owned(self.store, "pods", replicaset)]
        return len([pod for pod in pods if is_ready(pod)]) >= int(deployment["spec"]["replicas"])

    # -- what the control endpoint does --------------------------------------------------------------------------------

    async def cut_node(self, name: str) -> None:
        """Cut a node off from the API server and the gateway. Its processes run on. UserError for no such node."""
        agent = self._agent(name)
        if not agent.is_cut:
            agent.cut()
            self._instants.note_node("cut", name)
            for toxic in _CUT:
                await self._on_links_to(name, "POST", "", toxic)

    async def heal_node(self, name: str) -> None:
        """Undo `cut_node`."""
        agent = self._agent(name)
        if agent.is_cut:
            agent.heal()
            self._instants.note_node("healed", name)
            for toxic in _CUT:
                await self._on_links_to(name, "DELETE", f"/{toxic['name']}")

    async def _on_links_to(self, node: str, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """Change the toxics of the gateway's links to a node's Pods; through a gateway that is away nothing comes."""
        async with aiohttp.ClientSession(self.places.gateway, timeout=_ANSWER) as session:
            for pod in self.store.list("pods", NAMESPACE, fields=parse_fields("pods", f"spec.nodeName={node}")):
                url = f"{TOXIPROXY}/proxies/{pod['metadata']['name']}/toxics{path}"
                with suppress(aiohttp.ClientConnectionError):
                    # 404 where the Pod is not behind the gateway, or not any more.
                    async with session.request(method, url, json=body):
                        pass

    def signal_container(self, namespace: str, pod: str, container: str | None, number: int) -> None:
        """Signal a running container's first process, as from outside of Kubernetes. UserError if there is none."""
        found = self.container(namespace, pod, container)
        if found is None or found.process is None or not found.is_running:
            raise UserError(f"no running container {container or ''} in pod {namespace}/{pod}")
        found.process.signal(number)

    def _agent(self, name: str) -> NodeAgent:
        if name not in self.agents:
            raise UserError(f"no node {name!r}; there are {', '.join(self.agents)}")
        return self.agents[name]

    # -- logs ----------------------------------------------------------------------------------------------------------

    def container(self, namespace: str, pod: str, name: str | None) -> Container | None:
        """The container of a Pod, the first one unless named, whichever node runs it."""
        for agent in self.agents.values():
            found = agent.container(namespace, pod, name)
            if found is not None:
                return found
        return None

    async def read_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        previous: bool,
        timestamps: bool,
        tail_lines: int | None,
        since_seconds: int | None,
        limit_bytes: int | None,
    ) -> AsyncIterator[bytes]:
        """A container's log, as `kubectl logs` asks for it. ApiError 400 when there is none."""
        found = self.container(namespace, pod, container)
        logs = found.logs if found is not None else []
        if previous and len(logs) < 2:
            raise errors.bad_request(f'previous terminated container "{container}" in pod "{pod}" not found')
        if not logs:
            raise errors.bad_request(f'container "{container}" in pod "{pod}" is waiting to start: ContainerCreating')
        options = LogOptions(
            follow=follow and not previous,
            timestamps=timestamps,
            tail=tail_lines,
            since=None if since_seconds is None else time.time() - since_seconds,
            limit=limit_bytes,
        )
        async for chunk in logs[-2 if previous else -1].read(options):
            yield chunk


@asynccontextmanager
async def run_lab(spec: LabSpec, state: Path) -> AsyncIterator[Lab]:
    """Run a lab with its workload. Yields when the workload is created; `Lab.ready` waits until it serves."""
    async with run_cluster(spec, state) as lab:
        for obj in manifests.objects(spec, lab.places):
            _create(lab.store, obj)
        yield lab


@asynccontextmanager
async def run_cluster(spec: LabSpec, state: Path) -> AsyncIterator[Lab]:
    """Run the nodes and the control plane of a lab, its files in folder `state`. At the end no process is left.

    What the caller's block raises comes out as it is, not wrapped into the group of the lab's own tasks.
    """
    state, requests = _folders(state)
    given = addresses(spec.addresses)
    store = PortAdmission(given.free_port, history=_HISTORY) if isinstance(given, Shared) else Store(history=_HISTORY)
    token = secrets.token_hex(16)
    agents: dict[str, NodeAgent] = {}
    infra_address = given.node(spec.nodes + 1)
    wanted = (manifests.GATEWAY_PORT, manifests.ALERTS_PORT, manifests.MODEL_PORT)
    gateway, alerts, model = map(given.port, wanted)
    places = Places.embedded(state / "kubeconfig", requests, infra_address, (gateway, alerts, model))
    instants = Instants(state / "instants.jsonl", requests)
    trail = (state / "audit.jsonl").open("w", buffering=1)
    for plural, changed in instants.watched().items():
        store.subscribe(plural, changed)
    lab = Lab(spec, state, store, instants, agents, places)
    lab.alerts = f"http://{infra_address}:{alerts}"
    failure: Exception | None = None
    try:
        async with (
            Processes(state / "processes").open() as processes,
            serve(
                store,
                "127.0.0.1",
                0,
                access=Access({token: ADMIN}),
                log_reader=lab.read_log,
                audit=lambda event: trail.write(json.dumps(event) + "\n"),
            ) as server,
            _control(lab) as control,
            anyio.create_task_group() as group,
        ):
            lab.url, lab.control = server.url_of(token), control
            _write_kubeconfig(lab.kubeconfig, server, token)
            _make_agents(lab, processes, given, server)
            _start(lab, group)
            try:
                yield lab
            except Exception as error:
                failure = error
            finally:
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure
    finally:
        trail.close()
        given.close()


def _folders(state: Path) -> tuple[Path, Path]:
    """The state folder as an absolute path, and within it the one that the workload logs its requests to."""
    requests = state.resolve() / "requests"
    requests.mkdir(parents=True, exist_ok=True)
    return state.resolve(), requests


def _make_agents(lab: Lab, processes: Processes, given: PerPod | Shared, server: ApiServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    entries = {name: getattr(lab.spec.kubelet, name) for name in AgentSettings.__dataclass_fields__}
    names = [*(f"node{index}" for index in range(1, lab.spec.nodes + 1)), INFRA]
    for index, name in enumerate(names, 1):
        is_infra = name == INFRA
        lab.agents[name] = NodeAgent(
            lab.store,
            name,
            given.node(index),
            root=lab.state / "pods",
            processes=processes,
            addresses=given,
            settings=AgentSettings(**entries),
            note=lab._instants.note,
            api_variables={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port},
            labels=manifests.INFRA_LABEL if is_infra else {},
            taints=[manifests.INFRA_TAINT] if is_infra else [],
        )


def _start(lab: Lab, group: anyio.abc.TaskGroup) -> None:
    """Start controllers and agents. All subscribe before the first object of the workload is created."""
    store, times = lab.store, lab.spec.kubelet
    nodes = NodeController(store, grace=times.node_grace, period=times.node_period)
    disruption = DisruptionController(store)
    controllers: list[Controller] = [
        DeploymentController(store),
        ReplicaSetController(store),
        Scheduler(store),
        EndpointSliceController(store),
        disruption,
        nodes,
        TaintEvictionController(store),
        PodGarbageCollector(store),
        NamespaceDefaultsController(store),
    ]
    for controller in controllers:
        controller.start()
        group.start_soon(controller.run)
    for agent in lab.agents.values():
        agent.register()
        agent.start(group)
        group.start_soon(agent.run)
    group.start_soon(nodes.monitor)
    group.start_soon(disruption.run_stale)
    group.start_soon(_follow_requests, lab._instants)


async def _follow_requests(instants: Instants) -> None:
    while True:
        instants.read_requests()
        await anyio.sleep(TAIL_SECONDS)


def _create(store: Store, obj: dict[str, Any]) -> None:
    """Create an object of a manifest. UserError when the lab does not know its kind or refuses it."""
    group, _, version = obj["apiVersion"].rpartition("/")
    for plural, resource in STORED.items():
        if (resource.kind, resource.group, resource.version) == (obj["kind"], group, version):
            try:
                store.create(plural, obj, namespace=obj["metadata"].get("namespace", NAMESPACE))
            except ApiError as error:
                raise UserError(f"lab.manifests: {error}") from None
            return
    raise UserError(f"lab.manifests: the embedded lab has no {obj['apiVersion']} {obj['kind']}")


def _write_kubeconfig(path: Path, server: ApiServer, token: str) -> None:
    """A kubeconfig of one context. It is JSON, which is YAML too."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": server.url_of(token)}}],
        "users": [{"name": CONTEXT, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT, "namespace": NAMESPACE}}],
        "current-context": CONTEXT,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1) + "\n")


@asynccontextmanager
async def _control(lab: Lab) -> AsyncIterator[str]:
    """Serve what no Kubernetes API offers; yields the URL.

    GET /status, POST /cut?node=N, POST /heal?node=N, POST /signal?namespace=N&pod=P[&container=C][&signal=KILL].
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        query = request.query
        try:
            match request.method, request.path:
                case "GET", "/status":
                    return web.json_response({"cut": [name for name, agent in lab.agents.items() if agent.is_cut]})
                case "POST", "/cut":
                    await lab.cut_node(query.get("node", ""))
                case "POST", "/heal":
                    await lab.heal_node(query.get("node", ""))
                case "POST", "/signal":
                    number = _signal_number(query.get("signal", "KILL"))
                    lab.signal_container(
                        query.get("namespace", NAMESPACE), query.get("pod", ""), query.get("container"), number
                    )
                case _:
                    return web.json_response({"error": "GET /status, POST /cut, /heal or /signal"}, status=404)
        except UserError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({})

    runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _signal_number(name: str) -> int:
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError:
        raise UserError(f"no signal {name!r}") from None

"""What is asked of a lab's API server: short scripts, each in a namespace of its own, every answer under a label.

The answers of a real Kubernetes 1.37 are in `tests/data/conformance/answers.json`; `test_answers.py` compares, and
`python -m tests.conformance.record` writes them anew. Pods in the scripts are bound to a node that does not exist, and
their status is written by the script: nothing depends on a kubelet, so that an answer is the same each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.labs import Answer, Client, Json, Lab

SCRIPTS: dict[str, Callable[[Script], None]] = {}
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io,application/json"
HEADERS = ("Allow", "Cache-Control", "Content-Type", "Retry-After", "Warning", "X-Content-Type-Options")


def script(function: Callable[[Script], None]) -> Callable[[Script], None]:
    SCRIPTS[function.__name__] = function
    return function


class Script:
    """A run of one script; keeps what was answered."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ns = lab.namespace("ask")
        self.answers: dict[str, Json] = {}

    def ask(
        self,
        label: str,
        method: str,
        where: str,
        body: Any = None,
        *,
        client: Client | None = None,
        briefly: bool = False,
        **options: Any,
    ) -> Answer:
        """Send a request and keep its answer under `label`, of a success only the status if `briefly`.

        `where`: see `Namespace.path`.
        """
        answer = (client or self.lab.admin).request(method, self.ns.path(where), body, **options)
        if briefly and answer.status < 300:
            self._keep(label, {"status": answer.status})
            return answer
        kept = {name: answer.headers[name] for name in HEADERS if answer.headers[name] is not None}
        kept |= {name: "present" for name in ("Audit-Id",) if answer.headers[name]}
        self._keep(label, {"status": answer.status, "headers": kept, "body": answer.body})
        return answer

    def watch(self, label: str, where: str, change: Callable[[], object] | None = None, **query: Any) -> None:
        """Watch for `timeoutSeconds`, change something meanwhile, and keep every line."""
        with self.ns.watch(where, **query) as watch:
            if change is not None:
                self.ns.until(lambda: watch.status, what="no answer to the watch")
                change()
            watch.ended.wait(30)
            lines = [_line(event) for event in watch.seen() if not _is_plain_bookmark(event)]
            kept = {name: watch.headers[name] for name in HEADERS if watch.headers[name] is not None}
            self._keep(label, {"status": watch.status, "headers": kept, "lines": lines})

    def kubectl(self, label: str, *arguments: str) -> None:
        """Keep what kubectl prints, without the log lines of its own libraries (`E1129 22:36:33.58 ...`)."""
        done = self.lab.kubectl("-n", self.ns.name, *arguments, check=False)
        told = [line for line in done.stderr.splitlines() if not re.match(r"[IWEF]\d{4} ", line)]
        self._keep(label, {"code": done.returncode, "out": done.stdout.splitlines(), "err": told})

    def _keep(self, label: str, answer: Json) -> None:
        assert label not in self.answers, f"the label {label} is there twice"
        self.answers[label] = comparable(answer, self.ns.name)

    # -- objects that the scripts need -------------------------------------------------------------------------------

    def pod(self, name: str, *, ready: bool | None = True, app: str = "chat", **spec: Any) -> Json:
        """A Pod on a node that does not exist: Running and Ready, Running and not Ready (False), or new (None)."""
        made = self.ns.create("pods", pod(name, app=app, **{"nodeName": "nowhere", **spec}))
        if ready is None:
            return made
        state = "True" if ready else "False"
        conditions = [{"type": kind, "status": state} for kind in ("Ready", "ContainersReady")]
        status = {"phase": "Running", "conditions": conditions}
        return self.ns.patch(f"pods/{name}/status", {"status": status})

    def budget(self, name: str = "chat", app: str = "chat", *, allowed: int | None = None, **spec: Any) -> None:
        """A PodDisruptionBudget, observed by its controller; with `allowed`, only when it allows so many."""
        body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": app}}, **spec}}
        self.ns.create("poddisruptionbudgets", body)

        def observed() -> bool:
            status = self.ns.get(f"poddisruptionbudgets/{name}")["status"]
            return bool(status.get("observedGeneration")) and allowed in (None, status["disruptionsAllowed"])

        self.ns.until(observed, what=f"budget {name} is not observed")


def pod(name: str, *, app: str = "chat", **spec: Any) -> Json:
    container = {"name": "main", "image": "lab/workload:1", "command": ["sleep", "60"]}
    whole = {"automountServiceAccountToken": False, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}}, "spec": whole}


def config_map(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}, "data": {"name": name}}


def deployment(name: str, replicas: int = 0, **spec: Any) -> Json:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    whole = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": whole}


def eviction(name: str, **options: Any) -> Json:
    body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return body | ({"deleteOptions": options} if options else {})


# -- what makes two answers comparable ---------------------------------------------------------------------------------

_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_VERSION = re.compile(r"(current: |in record \(|in the precondition \(|resource version: |resource version: \d+ \()\d+")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*", re.DOTALL)
_QUOTED_VERSION = re.compile(r'(resourceVersion\\*":\\*")\d+')
_ADDRESS = re.compile(r"\b10\.96\.\d+\.\d+\b")
_AGE = re.compile(r"\b\d+(ms|s|m\d*s?)\b")
_HASH = re.compile(r"\b(web|chat)-[bcdfghjklmnpqrstvwxz2456789]{8,10}\b")
_SUFFIX = re.compile(r"(?<=-)[bcdfghjklmnpqrstvwxz2456789]{5}\b")
_OWN = {"uid": "UID", "resourceVersion": "VERSION", "continue": "TOKEN", "managedFields": None}


def comparable(value: Any, namespace: str) -> Any:
    """An answer without what is no rule: identities, instants, versions, addresses, the namespace's random name."""
    if isinstance(value, dict):
        found = {}
        for key, item in value.items():
            if key in ("managedFields", "description"):
                continue
            plain = isinstance(item, str) and item not in ("", "0")
            found[_text(key, namespace)] = _OWN[key] if key in _OWN and plain else comparable(item, namespace)
        return found
    if isinstance(value, list):
        found = [comparable(item, namespace) for item in value]
        # Conditions have no order of their own: controllers add them as they come.
        is_conditions = all(isinstance(item, dict) and {"type", "status"} <= item.keys() for item in found)
        return sorted(found, key=lambda item: item["type"]) if is_conditions else found
    return _text(value, namespace) if isinstance(value, str) else value


def _text(value: str, namespace: str) -> str:
    value = value.replace(namespace, "NS")
    value = _TIME.sub("TIME", _UID.sub("UID", _PEM.sub("PEM", value)))
    value = _QUOTED_VERSION.sub(r"\1N", value)
    # Which of several bindings allows something is the real server's choice.
    value = re.sub(r"^RBAC: allowed by .*", "RBAC: allowed", value)
    value = _ADDRESS.sub("ADDRESS", _VERSION.sub(r"\1N", value))
    return _SUFFIX.sub("XXXXX", _HASH.sub(r"\1-HASH", _AGE.sub("AGE", value)))


def _is_plain_bookmark(event: Json) -> bool:
    """Bookmarks that tell nothing but a version come when they come."""
    return event.get("type") == "BOOKMARK" and "annotations" not in event["object"]["metadata"]


def _line(event: Json) -> Json:
    """Of an object in a watch only what it is; bookmarks and errors whole."""
    if "object" not in event:
        return event
    obj = event["object"]
    if event["type"] in ("BOOKMARK", "ERROR") or "metadata" not in obj or obj.get("kind") == "Table":
        return event
    meta = obj["metadata"]
    return {"type": event["type"], "kind": obj.get("kind"), "name": meta["name"], "labels": meta.get("labels", {})}


# -- reading -----------------------------------------------------------------------------------------------------------


@script
def paging(s: Script) -> None:
    for number in range(5):
        s.ns.create("configmaps", config_map(f"c{number}", half=str(number % 2)))
    where = "configmaps"
    only = {"fieldSelector": "metadata.name!=kube-root-ca.crt"}
    s.ask("all", "GET", where, query=only)
    whole = s.ask("a page", "GET", where, query={"limit": 2}).body
    token = whole["metadata"]["continue"]
    s.ask("the next page", "GET", where, query={"limit": 2, "continue": token})
    s.ask("the rest", "GET", where, query={"continue": token, **only})
    s.ask("a page by label", "GET", where, query={"limit": 1, "labelSelector": "half=0"})
    s.ask("a page by field", "GET", where, query={"limit": 1, **only})
    s.ask("a page that holds all", "GET", where, query={"limit": 100, **only})
    s.ask("a page with a version", "GET", where, query={"limit": 2, "continue": token, "resourceVersion": "1"})
    s.ask("a page with version 0", "GET", where, query={"limit": 2, "continue": token, "resourceVersion": "0"})
    s.ask("a broken token", "GET", where, query={"limit": 2, "continue": "nonsense"})
    s.ask("limit abc", "GET", where, query={"limit": "abc"})
    s.ask("limit -1", "GET", where, query={"limit": "-1", **only})
    s.ask("limit with version 0", "GET", where, query={"limit": 2, "resourceVersion": "0"})


@script
def versions(s: Script) -> None:
    for name in ("one", "two"):
        s.ns.create("leases", {"metadata": {"name": name}})
    where = "leases"
    version = s.ns.do("GET", where)["metadata"]["resourceVersion"]
    s.ns.create("leases", {"metadata": {"name": "three"}})

    def listed(label: str, **query: str) -> None:
        s.ask(label, "GET", where, query=query)

    listed("version 0", resourceVersion="0")
    listed("a version", resourceVersion=version)
    listed("not older than", resourceVersion=version, resourceVersionMatch="NotOlderThan")
    listed("exactly", resourceVersion=version, resourceVersionMatch="Exact")
    listed("exactly 0", resourceVersion="0", resourceVersionMatch="Exact")
    listed("a match without a version", resourceVersionMatch="Exact")
    listed("an unknown match", resourceVersion=version, resourceVersionMatch="Newest")
    listed("version abc", resourceVersion="abc")
    listed("version -1", resourceVersion="-1")
    listed("in the future", resourceVersion="999999999")
    listed("exactly in the future", resourceVersion="999999999", resourceVersionMatch="Exact")
    s.ask("get at a version", "GET", f"{where}/one", query={"resourceVersion": version})
    s.ask("get at version 0", "GET", f"{where}/one", query={"resourceVersion": "0"})
    s.ask("get in the future", "GET", f"{where}/one", query={"resourceVersion": "999999999"})


@script
def selectors(s: Script) -> None:
    s.ns.create("pods", pod("a", app="chat", nodeName="nowhere"))
    s.ns.create("pods", pod("b", app="other", nodeName="elsewhere"))
    s.ns.create("pods", {**pod("c", schedulerName="nobody"), "metadata": {"name": "c"}})
    names = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

    def by(kind: str, *texts: str) -> None:
        for text in texts:
            answer = s.ns.ask("GET", "pods", query={kind: text}, accept="application/json")
            if answer.status == 200:
                found = {"names": [item["metadata"]["name"] for item in answer.body["items"]]}
                s._keep(f"{kind} {text}", {"status": 200, "body": found})
            else:
                s.ask(f"{kind} {text}", "GET", "pods", query={kind: text}, accept=names)

    by(
        "labelSelector", "app", "!app", "app=chat", "app==chat", "app!=chat", "app in (chat,none)", "app notin (chat)",
        "app in (chat),app!=other", " app = chat ", "app=", "app in ()", "app in (,chat)", "app>1", "app<1", "app>x",
        "=chat", "app=chat,", ",app=chat", "app=chat=x", "app in chat", "app in (chat", "a/b/c=x", "-app=chat",
        "app=-chat", "app=" + "x" * 64, "x" * 64 + "=chat", "app=a b", "(app)", "app===chat", "!app=chat", "!",
        "example.com/app=x", "EXAMPLE.com/app=x", "app exists", "in=chat", "notin in (in)",
    )  # fmt: skip
    by(
        "fieldSelector", "metadata.name=a", "metadata.name!=a", "metadata.namespace=none", "spec.nodeName=nowhere",
        "spec.nodeName=", "spec.nodeName!=nowhere,metadata.name!=c", "status.phase=Pending", "status.phase!=Pending",
        "spec.restartPolicy=Always", "spec.schedulerName=default-scheduler", "spec.serviceAccountName=default",
        "spec.hostNetwork=false", "status.podIP=", "status.nominatedNodeName=", "spec.nope=x", "metadata.labels.app=x",
        "metadata.name", "metadata.name==a", "=a", "metadata.name=a,", "metadata.uid=x", "status.reason=",
    )  # fmt: skip
    s.ask("both", "GET", "pods", query={"labelSelector": "app", "fieldSelector": "metadata.name=none"})
    s.ask("a field of a Lease", "GET", "leases", query={"fieldSelector": "spec.holderIdentity=x"})
    s.ask("a field of an Event", "GET", "events", query={"fieldSelector": "involvedObject.name=none,type=Warning"})
    s.ask("an unknown field of an Event", "GET", "events", query={"fieldSelector": "nope=x"})
    s.ask("a field of a node", "GET", "/api/v1/nodes", query={"fieldSelector": "spec.unschedulable=true"})
    s.ask("an unknown field of a node", "GET", "/api/v1/nodes", query={"fieldSelector": "status.phase=x"})
    s.ask("a field of a ReplicaSet", "GET", "replicasets", query={"fieldSelector": "status.replicas=7"})
    s.ask("a field of a namespace", "GET", "/api/v1/namespaces", query={"fieldSelector": "status.phase=None"})
    s.ask("a field of a Secret", "GET", "secrets", query={"fieldSelector": "type=none"})


@script
def forms(s: Script) -> None:
    s.pod("a")
    s.budget(minAvailable=1)
    for label, where, accept in (
        ("a Table", "pods/a", TABLE),
        ("a Table of many", "pods", TABLE),
        ("a Table of budgets", "poddisruptionbudgets", TABLE),
        ("a Table of Leases", "leases", TABLE),
        ("a Table of nothing that there is", "pods/none", TABLE),
        ("metadata only", "pods/a", PARTIAL.format("")),
        ("metadata only of many", "pods", PARTIAL.format("List")),
        ("an unknown form", "pods/a", "application/json;as=Chart;v=v1;g=meta.k8s.io"),
        ("an unknown form or JSON", "pods/a", "application/json;as=Chart;v=v1;g=meta.k8s.io,application/json"),
        ("plain text", "pods/a", "text/plain"),
        ("anything", "leases/none", "*/*"),
        ("text or anything", "leases/none", "text/html, */*;q=0.1"),
    ):
        s.ask(label, "GET", where, accept=accept)
    for include in ("None", "Metadata", "Object", "Nonsense"):
        s.ask(f"a Table with {include}", "GET", "pods/a", accept=TABLE, query={"includeObject": include})
    s.ask("YAML", "GET", "leases/none", accept="application/yaml")


@script
def paths(s: Script) -> None:
    for label, method, where in (
        ("health", "GET", "/healthz"),
        ("ready", "GET", "/readyz"),
        ("live", "GET", "/livez"),
        ("an unknown path", "GET", "/nope"),
        ("an unknown group", "GET", "/apis/none.example"),
        ("an unknown group's version", "GET", "/apis/none.example/v1"),
        ("an unknown group's resource", "GET", "/apis/none.example/v1/things"),
        ("an unknown version", "GET", "/apis/apps/v9"),
        ("an unknown version of core", "GET", "/api/v2"),
        ("an unknown resource", "GET", "/api/v1/things"),
        ("an unknown resource here", "GET", "/api/v1/namespaces/{ns}/things"),
        ("an unknown resource of apps", "GET", "/apis/apps/v1/things"),
        ("an unknown subresource", "GET", "pods/a/nope"),
        ("an old budget", "GET", "/apis/policy/v1beta1/namespaces/{ns}/poddisruptionbudgets"),
        ("a list in no namespace", "GET", "/api/v1/namespaces/none-such/pods"),
        ("a pod of no namespace", "GET", "/api/v1/namespaces/none-such/pods/a"),
        ("a namespace that is not", "GET", "/api/v1/namespaces/none-such"),
        ("a node that is not", "GET", "/api/v1/nodes/none"),
        ("a pod that is not", "GET", "pods/none"),
        ("the status of a pod that is not", "GET", "pods/none/status"),
        ("the log of a pod that is not", "GET", "pods/none/log"),
        ("a lease that is not", "GET", "leases/none"),
        ("a pod without a namespace", "GET", "/api/v1/pods/a"),
        ("a node in a namespace", "GET", "/api/v1/namespaces/{ns}/nodes"),
        ("POST to a pod", "POST", "pods/a"),
        ("POST to all namespaces", "POST", "/api/v1/pods"),
        ("PUT to pods", "PUT", "pods"),
        ("PATCH of pods", "PATCH", "pods"),
        ("DELETE in all namespaces", "DELETE", "/api/v1/pods"),
        ("DELETE of namespaces", "DELETE", "/api/v1/namespaces"),
        ("GET of an eviction", "GET", "pods/a/eviction"),
        ("DELETE of a status", "DELETE", "pods/a/status"),
        ("HEAD", "HEAD", "pods"),
        ("a slash too many", "GET", "pods/"),
    ):
        s.ask(label, method, where, {} if method in ("POST", "PUT", "PATCH") else None)


# -- writing -----------------------------------------------------------------------------------------------------------


@script
def creating(s: Script) -> None:
    s.ask("a pod", "POST", "pods", pod("a", nodeName="nowhere"))
    s.ask("it exists", "POST", "pods", pod("a", nodeName="nowhere"))
    s.ask("a dry run", "POST", "pods", pod("dry", nodeName="nowhere"), query={"dryRun": "All"})
    s.ask("nothing of a dry run", "GET", "pods/dry")
    s.ask("a dry run of what exists", "POST", "pods", pod("a"), query={"dryRun": "All"})
    s.ask("a dry run of another kind", "POST", "pods", pod("b"), query={"dryRun": "Some"})
    unnamed = pod("x")
    unnamed["metadata"] = {"generateName": "gen-"}
    s.ask("a generated name", "POST", "configmaps", {"metadata": unnamed["metadata"]})
    s.ask("no name", "POST", "configmaps", {"metadata": {}})
    s.ask("no metadata", "POST", "configmaps", {"data": {}})
    s.ask("upper case", "POST", "configmaps", config_map("UPPER"))
    s.ask("a long name", "POST", "configmaps", config_map("x" * 254))
    s.ask("a bad label", "POST", "configmaps", config_map("bad", app="not a label"))
    s.ask("a bad label key", "POST", "configmaps", {"metadata": {"name": "bad", "labels": {"a/b/c": "x"}}})
    s.ask("a bad annotation", "POST", "configmaps", {"metadata": {"name": "bad", "annotations": {"not ok": "x"}}})
    s.ask("a label that is a number", "POST", "configmaps", {"metadata": {"name": "bad", "labels": {"a": 1}}})
    s.ask("another namespace", "POST", "configmaps", {"metadata": {"name": "x", "namespace": "default"}})
    s.ask("a namespace that is not", "POST", "/api/v1/namespaces/none-such/configmaps", config_map("x"))
    s.ask("another kind", "POST", "configmaps", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}})
    s.ask("another version", "POST", "leases", {"apiVersion": "v1", "kind": "Lease", "metadata": {"name": "x"}})
    s.ask("no kind", "POST", "configmaps", {"metadata": {"name": "bare"}})
    s.ask("an unknown field", "POST", "configmaps", {"metadata": {"name": "unknown"}, "nope": 1})
    strict = {"fieldValidation": "Strict"}
    s.ask("an unknown field, strictly", "POST", "configmaps", {"metadata": {"name": "x"}, "nope": 1}, query=strict)
    s.ask("a field twice", "POST", "configmaps", '{"metadata": {"name": "twice", "name": "twice"}}')
    s.ask("with a version", "POST", "configmaps", {"metadata": {"name": "x", "resourceVersion": "1"}})
    s.ask("with a uid", "POST", "configmaps", {"metadata": {"name": "uid", "uid": "mine"}})
    s.ask("no pod spec", "POST", "pods", {"metadata": {"name": "x"}})
    s.ask("no containers", "POST", "pods", {"metadata": {"name": "x"}, "spec": {"containers": []}})
    s.ask("no image", "POST", "pods", {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "main"}]}})
    two = [{"name": "main", "image": "x"}, {"name": "main", "image": "y"}]
    s.ask("two of a name", "POST", "pods", {"metadata": {"name": "x"}, "spec": {"containers": two}})
    s.ask(
        "a bad container name",
        "POST",
        "pods",
        {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "A_B", "image": "x"}]}},
    )
    s.ask("a grace period below 0", "POST", "pods", pod("x", terminationGracePeriodSeconds=-1), query={"dryRun": "All"})
    s.ask("a bad restart policy", "POST", "pods", pod("x", restartPolicy="Sometimes"))
    probe = {"name": "main", "image": "x", "readinessProbe": {"httpGet": {"port": 0}, "periodSeconds": -1}}
    s.ask("a bad probe", "POST", "pods", {"metadata": {"name": "x"}, "spec": {"containers": [probe]}})
    handler = {"name": "main", "image": "x", "readinessProbe": {"periodSeconds": 1}}
    s.ask("a probe of nothing", "POST", "pods", {"metadata": {"name": "x"}, "spec": {"containers": [handler]}})


@script
def bodies(s: Script) -> None:
    """Bodies that are no object, and content types."""
    good = '{"metadata": {"name": "%s"}}'
    s.ask("no body", "POST", "configmaps")
    s.ask("an empty body", "POST", "configmaps", "")
    s.ask("broken JSON", "POST", "configmaps", "{")
    s.ask("no JSON", "POST", "configmaps", "hello", content_type="application/json")
    s.ask("a list", "POST", "configmaps", "[]")
    s.ask("null", "POST", "configmaps", "null")
    s.ask("a string", "POST", "configmaps", '"x"')
    s.ask("a wrong type", "POST", "configmaps", {"metadata": "x"})
    s.ask("a wrong type within", "POST", "pods", {"metadata": {"name": "x"}, "spec": {"containers": "x"}})
    s.ask("text", "POST", "configmaps", good % "text", content_type="text/plain")
    s.ask("a form", "POST", "configmaps", good % "form", content_type="application/x-www-form-urlencoded")
    s.ask("with a charset", "POST", "configmaps", good % "charset", content_type="application/json; charset=utf-8")
    s.ask("no content type", "POST", "configmaps", good % "none", content_type=None)
    s.ask("YAML", "POST", "configmaps", "metadata:\n  name: yaml\n", content_type="application/yaml")
    s.ask("broken YAML", "POST", "configmaps", "a: [", content_type="application/yaml")
    s.ask("a patch's type", "POST", "configmaps", good % "patch", content_type="application/merge-patch+json")
    s.ask("PUT text", "PUT", "configmaps/charset", good % "charset", content_type="text/plain")
    s.ask("DELETE with a broken body", "DELETE", "configmaps/charset", "{")
    s.ask("DELETE with text", "DELETE", "configmaps/charset", "{}", content_type="text/plain")
    s.ask("PATCH with JSON", "PATCH", "configmaps/charset", {})
    s.ask("PATCH with nothing", "PATCH", "configmaps/charset", "", content_type="application/merge-patch+json")
    s.ask("PATCH with broken JSON", "PATCH", "configmaps/charset", "{", content_type="application/merge-patch+json")
    s.ask("PATCH with a list", "PATCH", "configmaps/charset", "[]", content_type="application/merge-patch+json")
    s.ask("PATCH with a string", "PATCH", "configmaps/charset", '"x"', content_type="application/merge-patch+json")
    form = "application/json-patch+json"
    s.ask("PATCH with an object as JSON patch", "PATCH", "configmaps/charset", "{}", content_type=form)
    form = "application/strategic-merge-patch+json"
    s.ask("PATCH with broken strategic", "PATCH", "configmaps/charset", "{", content_type=form)


@script
def updating(s: Script) -> None:
    made = s.ns.create("configmaps", config_map("a", app="chat"))
    body = config_map("a", app="other") | {"data": {"x": "1"}}
    s.ask("without a version", "PUT", "configmaps/a", body)
    stale = body | {"metadata": made["metadata"]}
    s.ask("a stale version", "PUT", "configmaps/a", stale)
    fresh = s.ns.get("configmaps/a")
    s.ask("the present version", "PUT", "configmaps/a", fresh | {"data": {"x": "2"}})
    s.ask("nothing changes", "PUT", "configmaps/a", s.ns.get("configmaps/a"))
    s.ask("another name", "PUT", "configmaps/a", config_map("b"))
    s.ask("no name", "PUT", "configmaps/a", {"metadata": {}})
    s.ask("another namespace", "PUT", "configmaps/a", {"metadata": {"name": "a", "namespace": "default"}})
    s.ask(
        "another uid", "PUT", "configmaps/a", {"metadata": {"name": "a", "uid": made["metadata"]["uid"][:-4] + "0000"}}
    )
    s.ask("version abc", "PUT", "configmaps/a", {"metadata": {"name": "a", "resourceVersion": "abc"}})
    s.ask("a dry run", "PUT", "configmaps/a", config_map("a", dry="run"), query={"dryRun": "All"})
    s.ask("nothing of a dry run", "GET", "configmaps/a")
    s.ask("one that is not", "PUT", "configmaps/none", config_map("none"))
    s.pod("p")
    s.ask("a pod that is not", "PUT", "pods/none", pod("none"))
    present = s.ns.get("pods/p")
    s.ask("a pod's node", "PUT", "pods/p", present | {"spec": present["spec"] | {"nodeName": "other"}})
    image = [present["spec"]["containers"][0] | {"image": "lab/workload:2"}]
    s.ask("a pod's image", "PUT", "pods/p", present | {"spec": present["spec"] | {"containers": image}})
    s.ns.create("deployments", deployment("web"))
    s.ns.until(lambda: s.ns.get("deployments/web")["status"].get("observedGeneration"))
    web = s.ns.get("deployments/web")
    other = web["spec"] | {"selector": {"matchLabels": {"app": "x"}}}
    s.ask("a Deployment's selector", "PUT", "deployments/web", web | {"spec": other})
    s.ask("a Deployment's replicas", "PUT", "deployments/web", web | {"spec": web["spec"] | {"replicas": -1}})
    s.budget(minAvailable=1)
    budget = {"metadata": {"name": "chat"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "chat"}}}}
    s.ask("a budget without a version", "PUT", "poddisruptionbudgets/chat", budget)
    s.ask("a lease that is not", "PUT", "leases/new", {"metadata": {"name": "new"}, "spec": {}})


@script
def patching(s: Script) -> None:
    s.ns.create("configmaps", config_map("a", app="chat", tier="x"))

    def patch(label: str, form: str, body: Any, where: str = "configmaps/a", **options: Any) -> None:
        s.ask(label, "PATCH", where, body, content_type=f"application/{form}-patch+json", **options)

    patch("merge", "merge", {"metadata": {"labels": {"app": None, "new": "1"}}})
    patch("merge nothing", "merge", {})
    patch("merge another name", "merge", {"metadata": {"name": "b"}})
    patch("merge another namespace", "merge", {"metadata": {"namespace": "default"}})
    patch("merge another uid", "merge", {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}})
    patch("merge a stale version", "merge", {"metadata": {"resourceVersion": "1"}})
    patch("merge a wrong type", "merge", {"metadata": {"labels": {"a": 1}}})
    patch("merge labels away", "merge", {"metadata": {"labels": None}})
    patch("merge with a dry run", "merge", {"data": {"dry": "run"}}, query={"dryRun": "All"})
    patch("merge what is not", "merge", {}, "configmaps/none")
    patch("add", "json", [{"op": "add", "path": "/data/y", "value": "1"}])
    patch("test and replace", "json", [{"op": "test", "path": "/data/y", "value": "1"},
                                       {"op": "replace", "path": "/data/y", "value": "2"}])  # fmt: skip
    patch("a test that fails", "json", [{"op": "test", "path": "/data/y", "value": "9"}])
    patch("a path that is not", "json", [{"op": "remove", "path": "/data/none"}])
    patch("replace what is not", "json", [{"op": "replace", "path": "/data/none", "value": "x"}])
    patch("add below what is not", "json", [{"op": "add", "path": "/none/x", "value": "x"}])
    patch("test what is not", "json", [{"op": "test", "path": "/data/none", "value": "x"}])
    patch("test that it is not", "json", [{"op": "test", "path": "/data/none", "value": None}])
    patch("an unknown operation", "json", [{"op": "nope", "path": "/data/x"}])
    patch("a path without a slash", "json", [{"op": "add", "path": "data", "value": {}}])
    patch("no operations", "json", [])
    patch("the version by a test", "json", [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}])
    patch("remove the name", "json", [{"op": "remove", "path": "/metadata/name"}])
    s.pod("p")
    patch(
        "strategic env",
        "strategic-merge",
        {"spec": {"containers": [{"name": "main", "image": "lab/workload:3"}]}},
        "pods/p",
    )
    patch("strategic labels", "strategic-merge", {"metadata": {"labels": {"app": "x"}}}, "pods/p")
    patch(
        "a pod's command", "strategic-merge", {"spec": {"containers": [{"name": "main", "command": ["x"]}]}}, "pods/p"
    )
    patch("a pod's status by the pod", "merge", {"status": {"phase": "Failed"}}, "pods/p")
    patch("a pod's spec by the status", "merge", {"spec": {"nodeName": "x"}}, "pods/p/status")
    patch("a pod's status", "merge", {"status": {"message": "hello"}}, "pods/p/status")
    patch(
        "a condition",
        "strategic-merge",
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        "pods/p/status",
    )
    s.ns.create("deployments", deployment("web"))
    s.ns.until(lambda: len(s.ns.get("deployments/web")["status"].get("conditions", ())) == 2)
    container = {"name": "side", "image": "x"}
    spec = {"template": {"spec": {"containers": [container]}}}
    patch("a container more", "strategic-merge", {"spec": spec}, "deployments/web", query={"dryRun": "All"})
    spec = {"template": {"spec": {"containers": [{"name": "main", "$patch": "delete"}, container]}}}
    patch("a container for another", "strategic-merge", {"spec": spec}, "deployments/web", query={"dryRun": "All"})
    patch("no container", "merge", {"spec": {"template": {"spec": {"containers": []}}}}, "deployments/web")
    s.ask("apply", "PATCH", "configmaps/b", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"},
          "data": {"x": "1"}}, content_type=APPLY, query={"fieldManager": "one"})  # fmt: skip
    s.ask("apply again", "PATCH", "configmaps/b", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"},
          "data": {"x": "1"}}, content_type=APPLY, query={"fieldManager": "one"})  # fmt: skip
    s.ask(
        "apply without a manager",
        "PATCH",
        "configmaps/b",
        {"apiVersion": "v1", "kind": "ConfigMap"},
        content_type=APPLY,
    )
    s.ask(
        "apply without a kind", "PATCH", "configmaps/b", {"data": {}}, content_type=APPLY, query={"fieldManager": "one"}
    )
    s.ask("apply against another manager", "PATCH", "configmaps/b", {"apiVersion": "v1", "kind": "ConfigMap",
          "data": {"x": "2"}}, content_type=APPLY, query={"fieldManager": "two"})  # fmt: skip


@script
def deleting(s: Script) -> None:
    for name in ("a", "b", "c", "d"):
        s.ns.create("configmaps", config_map(name, app=name))
    uid = s.ns.get("configmaps/a")["metadata"]["uid"]
    other = uid[:-4] + "0000"

    def delete(label: str, where: str, body: Any = None, **query: Any) -> None:
        s.ask(label, "DELETE", where, body, query=query)

    delete("another uid", "configmaps/a", {"preconditions": {"uid": other}})
    delete("another version", "configmaps/a", {"preconditions": {"resourceVersion": "1"}})
    delete("a dry run", "configmaps/a", dryRun="All")
    delete("a dry run by the body", "configmaps/a", {"dryRun": ["All"]})
    delete("a bad dry run", "configmaps/a", {"dryRun": ["Some"]})
    delete("a bad policy", "configmaps/a", {"propagationPolicy": "Sideways"})
    delete("a bad policy by the query", "configmaps/a", propagationPolicy="Sideways")
    delete("two policies", "configmaps/a", {"propagationPolicy": "Orphan", "orphanDependents": True})
    delete("grace abc", "configmaps/a", gracePeriodSeconds="abc")
    delete("the right uid", "configmaps/a", {"preconditions": {"uid": uid}})
    delete("it is gone", "configmaps/a")
    delete("options of another kind", "configmaps/b", {"kind": "Pod", "apiVersion": "v1"})
    delete("many by label", "configmaps", labelSelector="app in (c,d)")
    delete("many of none", "configmaps", labelSelector="app=none")
    s.ns.patch("configmaps/b", {"metadata": {"finalizers": ["example.com/hold"]}})
    delete("held by a finalizer", "configmaps/b")
    delete("held by a finalizer, again", "configmaps/b")
    s.ask("still there", "GET", "configmaps/b")
    more = {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}
    s.ask("no new finalizers", "PATCH", "configmaps/b", more, content_type="application/merge-patch+json")
    s.ask(
        "let go",
        "PATCH",
        "configmaps/b",
        {"metadata": {"finalizers": None}},
        content_type="application/merge-patch+json",
    )
    s.ask("gone", "GET", "configmaps/b")
    s.pod("p")
    delete("a pod, by default", "pods/p")
    delete("a pod again", "pods/p")
    delete("a pod, longer", "pods/p", gracePeriodSeconds=60)
    delete("a pod, sooner", "pods/p", {"gracePeriodSeconds": 5})
    delete("a pod, now", "pods/p", {"gracePeriodSeconds": 0})
    s.ask("the pod is gone", "GET", "pods/p")
    s.pod("q", ready=None, nodeName="", schedulerName="nobody")
    delete("a pod without a node", "pods/q")
    s.ask("it is gone at once", "GET", "pods/q")
    s.pod("r")
    delete("grace below 0", "pods/r", {"gracePeriodSeconds": -1})
    s.ns.create("deployments", deployment("web"))
    delete("a Deployment", "deployments/web", {"propagationPolicy": "Background"})
    s.ns.create("services", {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}})
    delete("a Service", "services/web")
    s.ns.create("leases", {"metadata": {"name": "x"}})
    delete("a Lease", "leases/x")
    s.budget(minAvailable=1)
    delete("a budget", "poddisruptionbudgets/chat")


# -- the Eviction API --------------------------------------------------------------------------------------------------


@script
def evictions(s: Script) -> None:
    for name in ("a", "b", "c"):
        s.pod(name)

    def evict(label: str, name: str, body: Any = None, **query: Any) -> None:
        s.ask(label, "POST", f"pods/{name}/eviction", eviction(name) if body is None else body, query=query)

    evict("one that is not", "none")
    evict("another name", "a", eviction("b"))
    s.pod("other", app="other")
    evict("no name", "other", {"apiVersion": "policy/v1", "kind": "Eviction"})
    evict("an empty body", "other", "")
    evict("another kind", "other", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}})
    evict("a dry run without a budget", "a", eviction("a", dryRun=["All"]))
    evict("a dry run by the query", "a", dryRun="All")
    evict("a bad dry run", "other", eviction("other", dryRun=["Some"]))
    s.budget(minAvailable=2, allowed=1)
    evict("a dry run", "a", eviction("a", dryRun=["All"]))
    evict("another dry run", "b", eviction("b", dryRun=["All"]))
    s.ask("dry runs spend nothing", "GET", "poddisruptionbudgets/chat/status")
    evict("v1beta1", "a", eviction("a", dryRun=["All"]) | {"apiVersion": "policy/v1beta1"})
    evict("accepted", "a")
    s.ns.until(lambda: not s.ns.get("poddisruptionbudgets/chat")["status"].get("disruptedPods"))
    s.ask("the budget", "GET", "poddisruptionbudgets/chat")
    s.ask("the pod", "GET", "pods/a")
    evict("blocked", "b")
    evict("blocked, as a dry run", "b", eviction("b", dryRun=["All"]))
    evict("already terminating", "a")
    evict("already terminating, with a wrong uid", "a", eviction("a", preconditions={"uid": "wrong"}))


@script
def eviction_budgets(s: Script) -> None:
    """What a budget's spec and the Pod's state mean for the answer."""
    for name in ("a", "b", "c"):
        s.pod(name)
    s.pod("pending", ready=None)
    s.pod("unready", ready=False)
    s.pod("ended", ready=None)
    s.ns.patch("pods/ended/status", {"status": {"phase": "Succeeded"}})
    s.budget(minAvailable=4)

    def evict(label: str, name: str, **options: Any) -> None:
        s.ask(label, "POST", f"pods/{name}/eviction", eviction(name, **options))

    evict("too few are healthy", "a")
    evict("an unready one of too few", "unready")
    s.ns.patch("poddisruptionbudgets/chat", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    evict("an unready one, always", "unready")
    evict("a pending one", "pending")
    evict("an ended one", "ended")
    s.ask("ended goes at once", "GET", "pods/ended")
    s.budget("second", minAvailable=1)
    evict("two budgets", "a")
    evict("two budgets, as a dry run", "a", dryRun=["All"])
    s.ask("a second budget goes", "DELETE", "poddisruptionbudgets/second")
    s.ask("a bad policy", "PATCH", "poddisruptionbudgets/chat", {"spec": {"unhealthyPodEvictionPolicy": "Never"}},
          content_type="application/merge-patch+json")  # fmt: skip


@script
def eviction_preconditions(s: Script) -> None:
    """A failed precondition spends the budget nevertheless."""
    for name in ("a", "b", "c", "d"):
        s.pod(name)
    s.budget(minAvailable=2, allowed=2)

    def evict(label: str, name: str, **options: Any) -> None:
        s.ask(label, "POST", f"pods/{name}/eviction", eviction(name, **options))

    uid = s.ns.get("pods/a")["metadata"]["uid"]
    evict("another version", "b", preconditions={"resourceVersion": "1"}, dryRun=["All"])
    evict("another uid", "a", preconditions={"uid": uid[:-4] + "0000"})
    s.ns.until(lambda: s.ns.get("poddisruptionbudgets/chat")["status"]["currentHealthy"] == 3)
    s.ask("the budget is spent", "GET", "poddisruptionbudgets/chat")
    s.ask("the pod stays", "GET", "pods/a")
    evict("with a grace period", "b", gracePeriodSeconds=7)
    s.ask("the grace period", "GET", "pods/b")
    evict("none are left", "c", preconditions={"uid": uid})


@script
def eviction_without_a_budget(s: Script) -> None:
    s.pod("a")
    s.pod("b", ready=None, nodeName="", schedulerName="nobody")
    uid = s.ns.get("pods/a")["metadata"]["uid"]
    s.ask("another uid", "POST", "pods/a/eviction", eviction("a", preconditions={"uid": uid[:-4] + "0000"}))
    s.ask("the right uid", "POST", "pods/a/eviction", eviction("a", preconditions={"uid": uid}, gracePeriodSeconds=3))
    s.ask("the pod", "GET", "pods/a")
    s.ask("one without a node", "POST", "pods/b/eviction", eviction("b"))
    s.ask("it is gone at once", "GET", "pods/b")


@script
def budgets(s: Script) -> None:
    """Validation of budgets, and the counts that the controller fills in."""

    def create(label: str, name: str, **spec: Any) -> None:
        body = {"metadata": {"name": name}, "spec": spec}
        s.ask(label, "POST", "poddisruptionbudgets", body)

    chat = {"matchLabels": {"app": "chat"}}
    create("both", "x", minAvailable=1, maxUnavailable=1, selector=chat)
    create("a percentage above 100", "x", minAvailable="101%", selector=chat)
    create("no percentage", "x", minAvailable="half", selector=chat)
    create("below 0", "x", maxUnavailable=-1, selector=chat)
    create("no selector", "none", minAvailable=1)
    create("an empty selector", "empty", minAvailable=1, selector={})
    create("a bad selector", "x", minAvailable=1, selector={"matchExpressions": [{"key": "a", "operator": "Is"}]})
    create("neither", "neither", selector=chat)
    s.ask("gone again", "DELETE", "poddisruptionbudgets")
    s.pod("a")
    s.pod("b", ready=False)
    create("an integer", "integer", minAvailable=1, selector=chat)
    create("a percentage", "percentage", minAvailable="50%", selector=chat)
    create("nothing matches", "nothing", minAvailable=1, selector={"matchLabels": {"app": "none"}})
    s.ns.until(
        lambda: all(
            budget["status"].get("observedGeneration") and "conditions" in budget["status"]
            for budget in s.ns.items("poddisruptionbudgets")
        )
    )
    for name in ("integer", "percentage", "nothing"):
        s.ask(f"status of {name}", "GET", f"poddisruptionbudgets/{name}")
    s.ask("a bare pod needs an integer", "POST", "pods/a/eviction", eviction("a"))


# -- rights ------------------------------------------------------------------------------------------------------------


@script
def rights(s: Script) -> None:
    stranger, admin = s.lab.stranger, s.lab.admin
    wrong = stranger.with_headers(Authorization="Bearer wrong")
    drill = admin.with_headers(Impersonate_User=f"system:serviceaccount:{s.ns.name}:drill")
    person = admin.with_headers(Impersonate_User="jane")
    for who, client in (
        ("a stranger", stranger),
        ("a wrong token", wrong),
        ("a ServiceAccount", drill),
        ("Jane", person),
    ):
        s.ask(f"{who} lists", "GET", "pods", client=client)
        s.ask(f"{who} gets", "GET", "pods/a", client=client)
        s.ask(f"{who} lists nodes", "GET", "/api/v1/nodes", client=client)
        s.ask(f"{who} gets a namespace", "GET", "/api/v1/namespaces/{ns}", client=client)
        s.ask(f"{who} evicts", "POST", "pods/a/eviction", eviction("a"), client=client)
        s.ask(f"{who} patches a Deployment", "PATCH", "deployments/web", {}, client=client,
              content_type="application/merge-patch+json")  # fmt: skip
        s.ask(f"{who} deletes many", "DELETE", "pods", client=client)
        s.ask(f"{who} watches", "GET", "poddisruptionbudgets", client=client, query={"watch": "true"})
        s.ask(f"{who} makes a Lease", "POST", "leases", {"metadata": {"name": "x"}}, client=client)
        s.ask(f"{who} sees the version", "GET", "/version", client=client)
        s.ask(f"{who} sees health", "GET", "/readyz", client=client)
        s.ask(f"{who} sees metrics", "GET", "/metrics", client=client)
    s.ask("a bad scheme", "GET", "pods", client=stranger.with_headers(Authorization="Basic eDp5"))
    s.ask("an empty token", "GET", "pods", client=stranger.with_headers(Authorization="Bearer "))
    drill_as_admin = drill.with_headers(Impersonate_Group="system:masters")
    s.ask("a group", "GET", "pods", client=drill_as_admin)
    s.ask("a stranger impersonates", "GET", "pods", client=stranger.with_headers(Impersonate_User="jane"))


@script
def reviews(s: Script) -> None:
    admin = s.lab.admin
    drill = admin.with_headers(Impersonate_User=f"system:serviceaccount:{s.ns.name}:drill")
    where = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

    def may(label: str, client: Client = admin, **attributes: str) -> None:
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes}}  # fmt: skip
        s.ask(label, "POST", where, body, client=client)

    may("the admin lists pods", verb="list", resource="pods", namespace=s.ns.name)
    may("the admin does anything", verb="*", resource="*", group="*")
    may("the admin does the unknown", verb="nope", resource="things", group="none.example")
    may("an account lists pods", drill, verb="list", resource="pods", namespace=s.ns.name)
    may(
        "an account evicts",
        drill,
        verb="create",
        resource="pods",
        subresource="eviction",
        namespace=s.ns.name,
        name="a",
    )
    may("an account cordons", drill, verb="patch", resource="nodes", name="node1")
    may("an account does the unknown", drill, verb="get", resource="things", group="none.example")
    may(
        "an account reviews itself",
        drill,
        verb="create",
        resource="selfsubjectaccessreviews",
        group="authorization.k8s.io",
    )
    path = {"spec": {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}}
    s.ask("a path", "POST", where, path, client=drill)
    s.ask(
        "an open path",
        "POST",
        where,
        {"spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}}},
        client=drill,
    )
    s.ask("nothing asked", "POST", where, {"spec": {}})
    s.ask("both asked", "POST", where, {"spec": {"resourceAttributes": {"verb": "get"}, **path["spec"]}})
    s.ask("who am I", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, client=drill)
    rules = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    s.ask("rules of no namespace", "POST", rules, {"spec": {}})


# -- kinds -------------------------------------------------------------------------------------------------------------


@script
def leases(s: Script) -> None:
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-11-29T16:19:25.926000Z"}
    made = s.ask("create", "POST", "leases", {"metadata": {"name": "x"}, "spec": spec}).body
    s.ask("it exists", "POST", "leases", {"metadata": {"name": "x"}, "spec": spec})
    s.ask("renew", "PUT", "leases/x", made | {"spec": spec | {"leaseTransitions": 1}})
    s.ask("stale", "PUT", "leases/x", made | {"spec": spec | {"holderIdentity": "you"}})
    s.ask("without a version", "PUT", "leases/x", {"metadata": {"name": "x"}, "spec": spec})
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    s.ask("take over by a patch", "PATCH", "leases/x", old, content_type="application/merge-patch+json")
    s.ask("no duration", "POST", "leases", {"metadata": {"name": "y"}, "spec": spec | {"leaseDurationSeconds": 0}})
    s.ask("below 0", "POST", "leases", {"metadata": {"name": "z"}, "spec": spec | {"leaseDurationSeconds": -1}})
    s.ask(
        "a whole second",
        "POST",
        "leases",
        {"metadata": {"name": "w"}, "spec": spec | {"renewTime": "2026-11-29T16:19:25Z"}},
    )
    s.ask("no time", "POST", "leases", {"metadata": {"name": "v"}, "spec": spec | {"renewTime": "now"}})
    s.ask(
        "delete a stale one",
        "DELETE",
        "leases/x",
        {"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}},
    )
    s.ask("many in a Table", "GET", "leases", accept=TABLE)


@script
def scales(s: Script) -> None:
    s.ns.create("deployments", deployment("web"))

    def settled() -> bool:
        status = s.ns.get("deployments/web")["status"]
        return status.get("observedGeneration") == 1 and len(status.get("conditions", ())) == 2

    s.ns.until(settled)
    scale = s.ask("get", "GET", "deployments/web/scale").body
    s.ask("to the same", "PUT", "deployments/web/scale", scale)
    s.ask(
        "below 0",
        "PATCH",
        "deployments/web/scale",
        {"spec": {"replicas": -1}},
        content_type="application/merge-patch+json",
    )
    s.ask(
        "a word",
        "PATCH",
        "deployments/web/scale",
        {"spec": {"replicas": "two"}},
        content_type="application/merge-patch+json",
    )
    s.ask(
        "a stale version",
        "PUT",
        "deployments/web/scale",
        {**scale, "metadata": scale["metadata"] | {"resourceVersion": "1"}},
    )
    s.ask("one that is not", "GET", "deployments/none/scale")
    s.ask("patch one that is not", "PATCH", "deployments/none/scale", {}, content_type="application/merge-patch+json")
    s.ask("of a pod", "GET", "pods/web/scale")
    s.ask("another kind", "PUT", "deployments/web/scale", deployment("web"))
    s.ask("the Deployment", "GET", "deployments/web")
    s.ask("its status", "GET", "deployments/web/status")
    s.ask("a Table", "GET", "deployments", accept=TABLE)


@script
def workloads(s: Script) -> None:
    """Defaults and validation of Deployments and ReplicaSets."""
    bare = {"metadata": {"name": "bare"}, "spec": deployment("bare")["spec"]}
    del bare["spec"]["replicas"]
    s.ask("the defaults", "POST", "deployments", bare, query={"dryRun": "All"})
    s.ask("no selector", "POST", "deployments", deployment("x", selector=None))
    s.ask("an empty selector", "POST", "deployments", deployment("x", selector={}))
    s.ask("another selector", "POST", "deployments", deployment("x", selector={"matchLabels": {"app": "y"}}))
    s.ask("no template", "POST", "deployments", deployment("x", template=None))
    s.ask("replicas below 0", "POST", "deployments", deployment("x", replicas=-1))
    s.ask("a word for replicas", "POST", "deployments", deployment("x") | {"spec": {"replicas": "two"}})
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}
    s.ask("no progress possible", "POST", "deployments", deployment("x", strategy=strategy))
    s.ask("Recreate", "POST", "deployments", deployment("x", strategy={"type": "Recreate"}), query={"dryRun": "All"})
    once = deployment("x")
    once["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    s.ask("never restarted", "POST", "deployments", once)
    only = {"metadata": {"name": "rs"}, "spec": deployment("rs")["spec"]}
    s.ask("a ReplicaSet", "POST", "replicasets", only, query={"dryRun": "All"})


@script
def services(s: Script) -> None:
    def create(label: str, name: str = "x", **spec: Any) -> None:
        s.ask(label, "POST", "services", {"metadata": {"name": name}, "spec": spec})

    create("a Service", "web", ports=[{"port": 80, "targetPort": "http"}], selector={"app": "chat"})
    create("it exists", "web", ports=[{"port": 80}])
    create("headless", "headless", clusterIP="None", selector={"app": "chat"})
    create("no ports")
    create("two ports without names", ports=[{"port": 80}, {"port": 81}])
    create("a bad port", ports=[{"port": 70000}])
    create("a bad type", ports=[{"port": 80}], type="Nope")
    s.ask("a bad name", "POST", "services", {"metadata": {"name": "1x"}, "spec": {"ports": [{"port": 80}]}})

    def slice_of(name: str) -> Json | None:
        found = s.ns.items("endpointslices", labelSelector=f"kubernetes.io/service-name={name}")
        return found[0] if found else None

    for name in ("web", "headless"):
        s._keep(f"the slice of {name}", {"body": s.ns.until(partial(slice_of, name), what="no slice of a Service")})

    def slice_(label: str, **more: Any) -> None:
        body = {
            "metadata": {"name": f"s-{len(s.answers)}"},
            "addressType": "IPv4",
            "endpoints": [],
            "ports": [],
            **more,
        }
        s.ask(label, "POST", "endpointslices", body)

    slice_("a slice", endpoints=[{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}], ports=[{"port": 80}])
    slice_("loopback", endpoints=[{"addresses": ["127.0.0.1"]}])
    slice_("link-local", endpoints=[{"addresses": ["169.254.1.1"]}])
    slice_("no address", endpoints=[{"addresses": []}])
    slice_("a name for an address", endpoints=[{"addresses": ["host"]}])
    slice_("IPv6 in IPv4", endpoints=[{"addresses": ["fd00::1"]}])
    slice_("no address type", addressType="")
    s.ask(
        "a Table of slices",
        "GET",
        "endpointslices",
        accept=TABLE,
        query={"labelSelector": "kubernetes.io/service-name=web"},
    )
    s.ask("a Table of Services", "GET", "services", accept=TABLE)


@script
def events(s: Script) -> None:
    about = {"kind": "Pod", "namespace": s.ns.name, "name": "a"}
    s.ask(
        "create",
        "POST",
        "events",
        {"metadata": {"name": "e"}, "involvedObject": about, "reason": "Tested", "type": "Normal"},
    )
    s.ask("as events.k8s.io", "GET", "/apis/events.k8s.io/v1/namespaces/{ns}/events/e")
    s.ask(
        "of another namespace",
        "POST",
        "events",
        {"metadata": {"name": "f"}, "involvedObject": {"kind": "Pod", "namespace": "default"}},
    )
    s.ask("a Table", "GET", "events", accept=TABLE)
    what = {"reason": "Tested", "type": "Normal", "action": "Testing", "eventTime": "2026-11-29T16:19:25.926000Z"}
    new = {"metadata": {"name": "g"}, "regarding": about, **what}
    new |= {"reportingController": "test", "reportingInstance": "test-1"}
    s.ask("create as events.k8s.io", "POST", "/apis/events.k8s.io/v1/namespaces/{ns}/events", new)
    s.ask("without what is needed", "POST", "/apis/events.k8s.io/v1/namespaces/{ns}/events",
          {"metadata": {"name": "h"}, "regarding": about, "type": "Nope"})  # fmt: skip


@script
def namespaces(s: Script) -> None:
    where = "/api/v1/namespaces"
    s.ask("this one", "GET", f"{where}/{{ns}}")
    s.ask("it exists", "POST", where, {"metadata": {"name": s.ns.name}})
    s.ask("a bad name", "POST", where, {"metadata": {"name": "a.b"}})
    s.pod("held")
    s.budget(minAvailable=0)
    s.ask("delete", "DELETE", f"{where}/{{ns}}")
    s.ns.until(lambda: "deletionTimestamp" in s.ns.get("pods/held")["metadata"], what="the Pod is not deleted")
    # Whether the Pod has become Ready by now is nobody's promise, so that its status is not compared.
    s.ask("the budget stays until the Pods are gone", "GET", "poddisruptionbudgets/chat", briefly=True)
    s.ask("a new object", "POST", "configmaps", config_map("late"))
    s.ask("a new pod", "POST", "pods", pod("late"))
    s.ask("evict within", "POST", "pods/held/eviction", eviction("held"))
    s.ask("evict what is not", "POST", "pods/none/eviction", eviction("none"))
    s.ask("a second delete", "DELETE", f"{where}/{{ns}}", briefly=True)


@script
def nodes(s: Script) -> None:
    name = f"n-{s.ns.name}"
    where = f"/api/v1/nodes/{name}"
    s.ask(
        "create", "POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": {"unschedulable": True}}, briefly=True
    )
    form = "application/strategic-merge-patch+json"
    try:
        s.ask("cordon", "PATCH", where, {"spec": {"unschedulable": True}}, content_type=form, briefly=True)
        s.ask("uncordon", "PATCH", where, {"spec": {"unschedulable": None}}, content_type=form, briefly=True)
        s.ask("a patch of the unknown", "PATCH", "/api/v1/nodes/none", {}, content_type=form)
        s.ask(
            "a stale cordon",
            "PATCH",
            where,
            {"metadata": {"resourceVersion": "1"}, "spec": {"unschedulable": None}},
            content_type=form,
        )
        s.ask(
            "another uid",
            "PATCH",
            where,
            {"metadata": {"uid": "wrong"}, "spec": {"unschedulable": None}},
            content_type=form,
        )
        s.ask("a word for unschedulable", "PATCH", where, {"spec": {"unschedulable": "yes"}}, content_type=form)
        s.ask("a bad taint", "PATCH", where, {"spec": {"taints": [{"key": "a", "effect": "Nope"}]}},
              content_type="application/merge-patch+json")  # fmt: skip
    finally:
        s.ask("delete", "DELETE", where)


@script
def ephemeral_containers(s: Script) -> None:
    """What may be put into a Pod that runs: more containers, and nothing else."""
    s.pod("p")
    where = "pods/p/ephemeralcontainers"
    agent = {"name": "one", "image": "lab/agent:1", "command": ["agent", "x"], "targetContainerName": "main"}

    def add(label: str, *containers: Json, at: str = where, form: str = "strategic-merge", **options: Any) -> None:
        body = {"spec": {"ephemeralContainers": list(containers)}}
        s.ask(label, "PATCH", at, body, content_type=f"application/{form}-patch+json", **options)

    def patch(label: str, *operations: Json, at: str = where, **options: Any) -> None:
        s.ask(label, "PATCH", at, list(operations), content_type="application/json-patch+json", **options)

    def wrong(label: str, **more: Any) -> None:
        """Refused whatever it is beside: a dry run of one container more."""
        add(label, {"name": "wrong", "image": "lab/agent:1"} | more, query={"dryRun": "All"})

    s.ask("none yet", "GET", where)
    patch("a list where none is", {"op": "add", "path": "/spec/ephemeralContainers/-", "value": agent})
    add("a dry run", agent, query={"dryRun": "All"})
    add("nothing kept", agent, query={"dryRun": "All"})
    add("the first", agent)
    s.ask("the first is there", "GET", "pods/p")
    add("the first again", agent)
    add("a second", {"name": "two", "image": "lab/agent"})
    add("a merge without the others", {"name": "three", "image": "lab/agent:1"}, form="merge")
    add("another command", agent | {"command": ["agent", "y"]})
    add("a changed image", agent | {"image": "lab/agent:2"})
    third = {"name": "three", "image": "lab/agent:1", "args": ["x"]}
    patch("append", {"op": "add", "path": "/spec/ephemeralContainers/-", "value": third})
    patch("remove", {"op": "remove", "path": "/spec/ephemeralContainers/0"})
    patch("of another uid", {"op": "test", "path": "/metadata/uid", "value": "other"},
          {"op": "add", "path": "/spec/ephemeralContainers/-", "value": third | {"name": "four"}})  # fmt: skip
    patch("a label beside", {"op": "add", "path": "/metadata/labels/new", "value": "1"})
    patch("an annotation beside", {"op": "add", "path": "/metadata/annotations", "value": {"a": "1"}})
    patch("a container's image beside", {"op": "replace", "path": "/spec/containers/0/image", "value": "x"})
    patch("the node beside", {"op": "replace", "path": "/spec/nodeName", "value": "x"})
    patch("the status beside", {"op": "replace", "path": "/status/phase", "value": "Failed"})

    wrong("no name", name="")
    wrong("a bad name", name="Wrong_")
    wrong("the name of a container", name="main")
    wrong("no image", image="")
    wrong("no such target", targetContainerName="none")
    wrong("a target that is ephemeral", targetContainerName="one")
    wrong("ports", ports=[{"containerPort": 80}])
    wrong("a readiness probe", readinessProbe={"httpGet": {"path": "/", "port": 80}})
    wrong("a hook", lifecycle={"preStop": {"sleep": {"seconds": 1}}})
    wrong("resources", resources={"limits": {"cpu": "1"}})
    wrong("a pull policy", imagePullPolicy="Sometimes")
    wrong("several", ports=[{"containerPort": 80}], image="", targetContainerName="none")
    wrong("rights of its own", securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})
    wrong("the right to the network", securityContext={"capabilities": {"add": ["NET_ADMIN"]}})
    add("twice the same name", {"name": "x", "image": "a:1"}, {"name": "x", "image": "b:1"}, form="merge",
        query={"dryRun": "All"})  # fmt: skip

    found = s.ns.get("pods/p")
    found["spec"]["ephemeralContainers"].append(third | {"name": "put"})
    s.ask("put", "PUT", where, found)
    s.ask("put a stale version", "PUT", where, found)
    s.ask("put another name", "PUT", where, found | {"metadata": {"name": "q"}})
    s.ask("put another kind", "PUT", where, {"apiVersion": "v1", "kind": "EphemeralContainers"})
    bare = {"metadata": {"name": "p"}, "spec": {"ephemeralContainers": found["spec"]["ephemeralContainers"]}}
    s.ask("put without the rest", "PUT", where, bare)
    s.ask("post", "POST", where, found)
    s.ask("delete", "DELETE", where)
    add("in no pod", agent, at="pods/none/ephemeralcontainers")
    s.ask("of no pod", "GET", "pods/none/ephemeralcontainers")
    add("by the pod", {"name": "five", "image": "lab/agent:1"}, at="pods/p")
    s.ask("a pod born with one", "POST", "pods", pod("q", ephemeralContainers=[agent]))
    s.ask("a log without a name", "GET", "pods/p/log", query={"container": "nobody"})
    account = s.lab.admin.with_headers(Impersonate_User=f"system:serviceaccount:{s.ns.name}:drill")
    add("without the right", agent, client=account)


@script
def network_policies(s: Script) -> None:
    def policy(name: str = "deny", **spec: Any) -> Json:
        whole = {"podSelector": {"matchLabels": {"app": "chat"}}, **spec}
        head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
        return head | {"spec": whole}

    kind = "networkpolicies"
    s.ask("none", "GET", kind)
    s.ask("nothing comes in", "POST", kind, policy())
    s.ask("nothing goes out", "POST", kind, policy("out", policyTypes=["Egress"]))
    peers = [{"podSelector": {"matchLabels": {"app": "gateway"}}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
    s.ask("some come in", "POST", kind, policy("some", ingress=[{"from": peers, "ports": [{"port": 8000}]}]))
    s.ask("all go out", "POST", kind, policy("all", egress=[{}]))
    s.ask("every pod", "POST", kind, policy("every", podSelector={}, policyTypes=["Ingress", "Egress"]))
    s.ask("no selector", "POST", kind, {"metadata": {"name": "x"}, "spec": {"policyTypes": ["Ingress"]}})
    s.ask("an unknown type", "POST", kind, policy("x", policyTypes=["Sideways"]))
    s.ask("a bad block", "POST", kind, policy("x", ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/99"}}]}]))
    s.ask("a port too large", "POST", kind, policy("x", ingress=[{"ports": [{"port": 70000}]}]))
    s.ask("an empty peer", "POST", kind, policy("x", ingress=[{"from": [{}]}]))
    both = {"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}
    s.ask("a peer of two kinds", "POST", kind, policy("x", ingress=[{"from": [both]}]))
    s.ask("again", "POST", kind, policy())
    s.ask("a dry run", "POST", kind, policy("dry"), query={"dryRun": "All"})
    s.ask("patch", "PATCH", f"{kind}/deny", {"spec": {"policyTypes": ["Egress"]}},
          content_type="application/merge-patch+json")  # fmt: skip
    s.ask("get", "GET", f"{kind}/deny")
    s.ask("a Table", "GET", kind, accept=TABLE)
    s.ask("its status", "GET", f"{kind}/deny/status")
    s.ask("delete", "DELETE", f"{kind}/deny")
    s.ask("delete again", "DELETE", f"{kind}/deny")
    account = s.lab.admin.with_headers(Impersonate_User=f"system:serviceaccount:{s.ns.name}:drill")
    s.ask("without the right", "POST", kind, policy("x"), client=account)


@script
def taints(s: Script) -> None:
    name = f"n-{s.ns.name}"
    where = f"/api/v1/nodes/{name}"
    s.ask("create", "POST", "/api/v1/nodes", {"metadata": {"name": name}}, briefly=True)

    def taint(label: str, *taints: Json, form: str = "strategic-merge") -> None:
        body = {"spec": {"taints": list(taints)}}
        s.ask(label, "PATCH", where, body, content_type=f"application/{form}-patch+json", briefly=True)

    try:
        taint("one", {"key": "drill", "value": "x", "effect": "NoSchedule"})
        taint("without a value", {"key": "drill.example/bare", "effect": "NoExecute"})
        taint("without a key", {"value": "x", "effect": "NoSchedule"}, form="merge")
        taint("a bad key", {"key": "not a key", "effect": "NoSchedule"}, form="merge")
        taint("a bad value", {"key": "drill", "value": "not a value", "effect": "NoSchedule"}, form="merge")
        taint("without an effect", {"key": "drill"}, form="merge")
        both = {"key": "same", "effect": "NoSchedule"}
        taint("twice the same", both | {"value": "a"}, both | {"value": "b"}, form="merge")
        taint("of two effects", both, both | {"effect": "NoExecute"}, form="merge")
        taint("none", form="merge")
    finally:
        s.ask("delete", "DELETE", where, briefly=True)


# -- watches -----------------------------------------------------------------------------------------------------------


@script
def watches(s: Script) -> None:
    for name in ("a", "b"):
        s.ns.create("configmaps", config_map(name, app=name))
    where = "configmaps"
    here = {"fieldSelector": "metadata.name!=kube-root-ca.crt"}
    before = s.ns.do("GET", where)["metadata"]["resourceVersion"]
    s.ns.patch("configmaps/a", {"data": {"x": "1"}})
    one = {"timeoutSeconds": 1, **here}

    def change() -> None:
        s.ns.patch("configmaps/b", {"metadata": {"labels": {"app": "a"}}})
        s.ns.patch("configmaps/a", {"data": {"x": "2"}})
        s.ns.create(where, config_map("c", app="c"))
        s.ns.do("DELETE", "configmaps/c")
        s.ns.patch("configmaps/b", {"metadata": {"labels": {"app": "b"}}})

    s.watch("from the start", where, **one)
    s.watch("from version 0", where, resourceVersion="0", **one)
    s.watch("from a version", where, resourceVersion=before, **one)
    s.watch("from the future", where, resourceVersion="999999999", **one)
    s.watch("from version abc", where, resourceVersion="abc", **one)
    now = s.ns.do("GET", where)["metadata"]["resourceVersion"]
    s.watch("changes", where, change, resourceVersion=now, **one)
    now = s.ns.do("GET", where)["metadata"]["resourceVersion"]
    s.watch("a selector", where, change, resourceVersion=now, labelSelector="app=a", **one)
    now = s.ns.do("GET", where)["metadata"]["resourceVersion"]
    s.watch("one name", where, change, resourceVersion=now, fieldSelector="metadata.name=b", timeoutSeconds=1)
    s.watch("one object's path", "configmaps/b", resourceVersion=now, timeoutSeconds=1)
    s.watch("bookmarks", where, resourceVersion=now, allowWatchBookmarks="true", **one)
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    s.watch("initial events", where, allowWatchBookmarks="true", **initial, **one)
    s.watch("initial events, no bookmarks", where, **initial, **one)
    s.watch("initial events, no match", where, sendInitialEvents="true", allowWatchBookmarks="true", **one)
    s.watch("initial events of a version", where, resourceVersion=now, allowWatchBookmarks="true", **initial, **one)
    s.watch("no initial events", where, change, sendInitialEvents="false", resourceVersionMatch="NotOlderThan",
            allowWatchBookmarks="true", **one)  # fmt: skip
    s.watch("a match without initial events", where, resourceVersion=now, resourceVersionMatch="NotOlderThan", **one)
    s.watch("a bad selector", where, timeoutSeconds=1, labelSelector="app===x")
    s.watch("timeout abc", where, timeoutSeconds="abc")
    s.watch("of what is not", "leases/none", timeoutSeconds=1)
    s.watch("of no namespace", "/api/v1/namespaces/none-such/pods", timeoutSeconds=1)


@script
def pods_watched(s: Script) -> None:
    """A Pod enters and leaves what field selectors match; Tables on a watch."""
    s.ns.create("pods", pod("a", nodeName="", schedulerName="nobody"))

    def live() -> None:
        target = {"kind": "Node", "name": "nowhere"}
        s.ns.do("POST", "pods/a/binding", {"metadata": {"name": "a"}, "target": target})
        s.ns.patch("pods/a/status", {"status": {"phase": "Running"}})
        s.ns.patch("pods/a/status", {"status": {"phase": "Succeeded"}})
        s.ns.do("DELETE", "pods/a", {"gracePeriodSeconds": 0})

    version = s.ns.do("GET", "pods")["metadata"]["resourceVersion"]
    s.watch("whole", "pods", live, resourceVersion=version, timeoutSeconds=2)
    for label, selector in (
        ("by node", "spec.nodeName=nowhere"),
        ("by no node", "spec.nodeName="),
        ("by phase", "status.phase=Running"),
        ("by neither", "status.phase!=Succeeded,spec.nodeName!=nowhere"),
    ):
        s.watch(label, "pods", resourceVersion=version, timeoutSeconds=1, fieldSelector=selector)
    s.ask(
        "bind what is not",
        "POST",
        "pods/none/binding",
        {"metadata": {"name": "none"}, "target": {"kind": "Node", "name": "x"}},
    )
    s.pod("b")
    s.ask("bind again", "POST", "pods/b/binding", {"metadata": {"name": "b"}, "target": {"kind": "Node", "name": "x"}})
    s.ask("the version of the past", "GET", "pods", query={"resourceVersion": version, "resourceVersionMatch": "Exact"})


# -- kubectl -----------------------------------------------------------------------------------------------------------


@script
def kubectl(s: Script) -> None:
    s.pod("a")
    s.pod("b", ready=False)
    s.budget(minAvailable=1)
    s.ns.create("deployments", deployment("web"))
    s.ns.until(lambda: s.ns.get("deployments/web")["status"].get("observedGeneration"))
    run = s.kubectl
    run("get pods", "get", "pods")
    run("get pods wide", "get", "pods", "-o", "wide", "--show-labels")
    run("get by name", "get", "pod", "a", "-o", "name")
    run("get what is not", "get", "pod", "none")
    run("get an unknown kind", "get", "things")
    run("get none", "get", "leases")
    run("get short names", "get", "po,deploy,pdb", "-o", "name")
    run("get by label", "get", "pods", "-l", "app=chat", "--no-headers")
    run("get by field", "get", "pods", "--field-selector", "spec.nodeName=nowhere", "-o", "name")
    run("get jsonpath", "get", "pod", "a", "-o", "jsonpath={.status.phase}")
    run("a budget", "get", "pdb")
    run("a Deployment", "get", "deploy", "web")
    run("may I", "auth", "can-i", "create", "pods/eviction")
    run("may jane", "auth", "can-i", "list", "pods", "--as", "jane")
    run("scale", "scale", "deployment/web", "--replicas=0")
    run("scale what is not", "scale", "deployment/none", "--replicas=1")
    run("restart", "rollout", "restart", "deployment/web")
    run("status", "rollout", "status", "deployment/web", "--timeout=20s")
    run("label", "label", "pod", "a", "tier=x")
    run("label again", "label", "pod", "a", "tier=y")
    run("annotate", "annotate", "pod", "a", "note=x")
    run("patch", "patch", "deployment", "web", "-p", '{"spec":{"replicas":0}}')
    run("patch by merge", "patch", "pod", "a", "--type=merge", "-p", '{"metadata":{"labels":{"tier":null}}}')
    run("patch by JSON", "patch", "pod", "a", "--type=json", "-p", '[{"op":"test","path":"/kind","value":"x"}]')
    run("create", "create", "configmap", "made", "--from-literal=a=b")
    run("create again", "create", "configmap", "made")
    run("create a budget", "create", "pdb", "made", "--selector=app=x", "--min-available=1")
    run("delete", "delete", "configmap", "made")
    run("delete what is not", "delete", "configmap", "made")
    run("delete or not", "delete", "configmap", "made", "--ignore-not-found")
    run("delete by label", "delete", "pods", "-l", "app=none")
    run("delete a pod by force", "delete", "pod", "b", "--grace-period=0", "--force")
    run("wait", "wait", "pod/a", "--for=condition=Ready", "--timeout=5s")
    run("wait in vain", "wait", "pod/a", "--for=delete", "--timeout=2s")
    run("explain a refusal", "create", "deployment", "UPPER", "--image=x")


@script
def kubectl_drain(s: Script) -> None:
    """Drain a node without a kubelet: what is filtered, evicted, blocked."""
    name = f"n-{s.ns.name}"
    s.ns.do("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    try:
        s.pod("a", nodeName=name)
        s.kubectl("bare pods", "drain", name)
        s.budget(minAvailable=1)
        s.kubectl("blocked", "drain", name, "--force", "--timeout=3s")
        s.kubectl("a dry run", "drain", name, "--force", "--dry-run=server", "--timeout=3s")
        s.kubectl("by label", "drain", name, "--force", "--pod-selector=app=none")
        s.kubectl("cordoned already", "cordon", name)
        s.kubectl("uncordon", "uncordon", name)
        s.kubectl("uncordoned already", "uncordon", name)
        s.kubectl("a node that is not", "drain", "none")
    finally:
        s.ns.ask("DELETE", "pods/a", {"gracePeriodSeconds": 0})
        s.ns.ask("DELETE", f"/api/v1/nodes/{name}")

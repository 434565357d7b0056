"""What every namespace gets: the ServiceAccount that Pods run as unless they say otherwise, and the cluster's CA."""

from __future__ import annotations

from chaosrunner.lab.embedded.controllers.queue import Controller, ObjectKey, key_of
from chaosrunner.lab.objects import Json

_DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)
_OBJECTS: dict[str, Json] = {
    "serviceaccounts": {"metadata": {"name": "default"}},
    # The lab speaks plain HTTP: there is a bundle, and nothing in it.
    "configmaps": {
        "metadata": {"name": "kube-root-ca.crt", "annotations": {"kubernetes.io/description": _DESCRIPTION}},
        "data": {"ca.crt": ""},
    },
}


class NamespaceDefaultsController(Controller):
    """Creates both in each active namespace, again when somebody deleted them."""

    def start(self) -> None:
        self.store.subscribe("namespaces", lambda _, obj, __: self.queue.add(key_of(obj)))
        for resource in _OBJECTS:
            self.store.subscribe(resource, self._object_changed)
        for obj in self.store.list("namespaces"):
            self.queue.add(key_of(obj))

    def _object_changed(self, type_: str, obj: Json, old: Json | None) -> None:
        if type_ == "DELETED":
            self.queue.add(("", obj["metadata"]["namespace"]))

    def reconcile(self, key: ObjectKey) -> None:
        namespace = self.store.find("namespaces", key[1])
        if namespace is None or namespace["status"]["phase"] != "Active":
            return
        for resource, obj in _OBJECTS.items():
            if self.store.find(resource, obj["metadata"]["name"], key[1]) is None:
                self.store.create(resource, obj, namespace=key[1])

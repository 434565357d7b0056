"""Who asks, and what they may do: bearer tokens stand for users, and each user has a few rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chaosrunner.lab.embedded import errors
from chaosrunner.lab.embedded.resources import RESOURCES, Resource
from chaosrunner.lab.objects import Json

OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")
"""What the real server's public-info-viewer shows to anybody."""
DISCOVERY_PATHS = ("/api", "/apis", "/openapi", *OPEN_PATHS)
"""What its role system:discovery shows to every user that has a name."""


@dataclass(frozen=True)
class Rule:
    """Verbs on resources (`pods`, `pods/eviction`, `*`) in namespaces; cluster-wide resources need namespace `*`."""

    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    namespaces: tuple[str, ...] = ("*",)

    def allows(self, verb: str, resource: str, namespace: str | None) -> bool:
        return all(
            "*" in allowed or asked in allowed
            for allowed, asked in (
                (self.verbs, verb),
                (self.resources, resource),
                (self.namespaces, namespace),
            )
        )


@dataclass(frozen=True)
class Account:
    """A user and what they may do."""

    user: str
    rules: tuple[Rule, ...] = ()
    groups: tuple[str, ...] = ("system:authenticated",)

    def may(self, verb: str, resource: str, namespace: str | None) -> bool:
        return any(rule.allows(verb, resource, namespace) for rule in self.rules)


ADMIN = Account("kubernetes-admin", (Rule(("*",), ("*",)),), ("system:masters", "system:authenticated"))
ANONYMOUS = Account("system:anonymous", (), ("system:unauthenticated",))
SELF = Rule(("create",), ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"))
"""What everybody with a name may ask about themselves (role system:basic-user)."""


@dataclass(frozen=True)
class Access:
    """Accounts by bearer token. A request without a token is anonymous, one with an unknown token gets 401."""

    tokens: Mapping[str, Account] = field(default_factory=dict)

    def account(self, authorization: str, impersonate: str) -> Account:
        """The account of the headers Authorization and Impersonate-User. ApiError 401, 403."""
        scheme, _, token = authorization.partition(" ")
        if not authorization:
            account = ANONYMOUS
        elif scheme.lower() == "bearer" and token in self.tokens:
            account = self.tokens[token]
        else:
            raise errors.unauthorized()
        if not impersonate:
            return account
        if not account.may("impersonate", "users", None):
            message = (
                f'users "{impersonate}" is forbidden: User "{account.user}" cannot impersonate resource "users" '
                'in API group "" at the cluster scope'
            )
            raise errors.forbidden({"name": impersonate, "kind": "users"}, message)
        return next((known for known in self.tokens.values() if known.user == impersonate), Account(impersonate))


TOKEN_PATH = "/token/"


def split_token(path: str) -> tuple[str, str]:
    """Take a leading `/token/TOKEN` off a path: (token or "", rest of the path)."""
    if not path.startswith(TOKEN_PATH):
        return "", path
    token, _, rest = path.removeprefix(TOKEN_PATH).partition("/")
    return token, f"/{rest}"


def require(
    account: Account, verb: str, resource: Resource, namespace: str | None, name: str = "", subresource: str = ""
) -> None:
    """ApiError 403, worded as RBAC does, unless the account may do it."""
    full = f"{resource.plural}/{subresource}" if subresource else resource.plural
    if account.may(verb, full, namespace) or (account != ANONYMOUS and SELF.allows(verb, full, namespace)):
        return
    what = f'{resource.qualified} "{name}"' if name else resource.qualified
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    message = (
        f'{what} is forbidden: User "{account.user}" cannot {verb} resource "{full}" '
        f'in API group "{resource.group}" {where}'
    )
    raise errors.forbidden(errors.details_of(resource, name), message)


def require_path(account: Account, path: str) -> None:
    """ApiError 403 unless the account may read a path that is no resource."""
    open_to = OPEN_PATHS if account == ANONYMOUS else DISCOVERY_PATHS
    if account == ADMIN or any(path == allowed or path.startswith(f"{allowed}/") for allowed in open_to):
        return
    raise errors.forbidden({}, f'forbidden: User "{account.user}" cannot get path "{path}"')


def review_access(account: Account, review: Json) -> Json:
    """Answer a SelfSubjectAccessReview."""
    spec = review.get("spec") or {}
    asked = {key: value for key, value in (spec.get("resourceAttributes") or {}).items() if value}
    if asked:
        resource = asked.get("resource", "")
        full = f"{resource}/{asked['subresource']}" if "subresource" in asked else resource
        verb, namespace = asked.get("verb", ""), asked.get("namespace")
        group = asked.get("group", "")
        known = group in ("", "*") or any(key[0] == group for key in RESOURCES)
        allowed = account == ADMIN or (
            known and (account.may(verb, full, namespace) or SELF.allows(verb, full, namespace))
        )
        shown: Json = {"resourceAttributes": asked}
    else:
        path = (spec.get("nonResourceAttributes") or {}).get("path", "")
        try:
            require_path(account, path)
            allowed = True
        except errors.ApiError:
            allowed = False
        shown = {"nonResourceAttributes": spec.get("nonResourceAttributes") or {}}
    return _review("SelfSubjectAccessReview", shown, {"allowed": allowed})


def review_rules(account: Account, review: Json) -> Json:
    """Answer a SelfSubjectRulesReview: the account's rules in a namespace."""
    namespace = (review.get("spec") or {}).get("namespace")
    rules = [rule for rule in (*account.rules, SELF) if "*" in rule.namespaces or namespace in rule.namespaces]
    groups = {plural: group for group, plural in RESOURCES}
    listed = [
        {
            "verbs": list(rule.verbs),
            "apiGroups": ["*"]
            if "*" in rule.resources
            else sorted({groups.get(entry.partition("/")[0], "") for entry in rule.resources}),
            "resources": list(rule.resources),
        }
        for rule in rules
    ]
    paths = ["*"] if account == ADMIN else [entry for path in DISCOVERY_PATHS for entry in (path, f"{path}/*")]
    plain = [{"verbs": ["get"], "nonResourceURLs": paths}]
    status = {"resourceRules": listed, "nonResourceRules": plain, "incomplete": False}
    return _review("SelfSubjectRulesReview", {}, status)


def review_self(account: Account) -> Json:
    """Answer a SelfSubjectReview (`kubectl auth whoami`)."""
    answer = _review("SelfSubjectReview", {}, {"userInfo": {"username": account.user, "groups": list(account.groups)}})
    answer["apiVersion"] = "authentication.k8s.io/v1"
    del answer["spec"]
    return answer


def _review(kind: str, spec: Json, status: Json) -> Json:
    return {"kind": kind, "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": spec, "status": status}

"""Who asks, and what they may do: bearer tokens stand for users, who have rules of their own and those of RBAC."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from chaosrunner.lab.embedded import errors, rbac
from chaosrunner.lab.embedded.resources import RESOURCES, Resource
from chaosrunner.lab.embedded.store import Store, timestamp
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


MASTERS = "system:masters"
ADMIN = Account("kubernetes-admin", (Rule(("*",), ("*",)),), (MASTERS, "system:authenticated"))
ANONYMOUS = Account("system:anonymous", (), ("system:unauthenticated",))
SELF = Rule(("create",), ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"))
"""What everybody with a name may ask about themselves (role system:basic-user)."""


LEAST_TOKEN, USUAL_TOKEN = 600, 3600
"""Seconds that a ServiceAccount's token lives at least, and where a request names none."""


@dataclass(frozen=True)
class Access:
    """Accounts by bearer token. A request without a token is anonymous, one with an unknown token gets 401."""

    tokens: Mapping[str, Account] = field(default_factory=dict)
    issued: dict[str, tuple[Account, float]] = field(default_factory=dict)
    """Tokens of ServiceAccounts, and when they expire (unix seconds)."""

    def issue(self, account: Json, request: Json) -> Json:
        """Answer a TokenRequest for a ServiceAccount. ApiError 422."""
        seconds = (request.get("spec") or {}).get("expirationSeconds") or USUAL_TOKEN
        if seconds < LEAST_TOKEN:
            why = "Invalid value: {}: may not specify a duration less than 10 minutes"
            cause = ("FieldValueInvalid", "spec.expirationSeconds", why.format(seconds))
            raise errors.invalid(Resource("tokenrequests", "TokenRequest", "authentication.k8s.io"), "", [cause])
        meta = account["metadata"]
        token, expires = secrets.token_hex(16), time.time() + seconds
        self.issued[token] = service_account(meta["namespace"], meta["name"]), expires
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "spec": {"expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": timestamp(datetime.fromtimestamp(expires, UTC))},
        }

    def _bearer(self, token: str) -> Account:
        """ApiError 401."""
        if token in self.tokens:
            return self.tokens[token]
        account, expires = self.issued.get(token, (ANONYMOUS, 0.0))
        if time.time() >= expires:
            raise errors.unauthorized()
        return account

    def account(self, authorization: str, impersonate: str, groups: Sequence[str] = ()) -> Account:
        """The account of the headers Authorization, Impersonate-User and Impersonate-Group. ApiError 401, 403.

        A scheme that the server does not know, and an empty token, count as no credentials.
        """
        scheme, _, token = authorization.partition(" ")
        account = self._bearer(token) if scheme.lower() == "bearer" and token.strip() else ANONYMOUS
        if not impersonate:
            return account
        if not account.may("impersonate", "users", None):
            message = (
                f'users "{impersonate}" is forbidden: User "{account.user}" cannot impersonate resource "users" '
                'in API group "" at the cluster scope'
            )
            raise errors.Denied({"name": impersonate, "kind": "users"}, message)
        if groups:
            rules = ADMIN.rules if MASTERS in groups else ()
            return Account(impersonate, rules, (*groups, "system:authenticated"))
        known = next((known for known in self.tokens.values() if known.user == impersonate), None)
        match impersonate.split(":"):
            case ["system", "serviceaccount", namespace, name] if known is None:
                return service_account(namespace, name)
        return known or Account(impersonate)


def service_account(namespace: str, name: str) -> Account:
    """The account of a ServiceAccount: what it may do its Roles say."""
    return Account(rbac.account_name(namespace, name), (), rbac.account_groups(namespace))


TOKEN_PATH = "/token/"


def split_token(path: str) -> tuple[str, str]:
    """Take a leading `/token/TOKEN` off a path: (token or "", rest of the path)."""
    if not path.startswith(TOKEN_PATH):
        return "", path
    token, _, rest = path.removeprefix(TOKEN_PATH).partition("/")
    return token, f"/{rest}"


def may(store: Store, account: Account, asked: rbac.Request) -> bool:
    """By the account's own rules, by what everybody may, or by RBAC."""
    own = (asked.verb, asked.resource, asked.namespace)
    return (
        account.may(*own)
        or (account != ANONYMOUS and SELF.allows(*own))
        or rbac.allows(store, account.user, account.groups, asked)
    )


def require(
    store: Store,
    account: Account,
    verb: str,
    resource: Resource,
    namespace: str | None,
    name: str = "",
    subresource: str = "",
) -> None:
    """ApiError 403, worded as RBAC does, unless the account may do it."""
    full = f"{resource.plural}/{subresource}" if subresource else resource.plural
    if may(store, account, rbac.Request(verb, resource.group, full, namespace, name)):
        return
    what = f'{resource.qualified} "{name}"' if name else resource.qualified
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    message = (
        f'{what} is forbidden: User "{account.user}" cannot {verb} resource "{full}" '
        f'in API group "{resource.group}" {where}'
    )
    raise errors.Denied(errors.details_of(resource, name), message)


def require_path(account: Account, path: str) -> None:
    """ApiError 403 unless the account may read a path that is no resource."""
    open_to = OPEN_PATHS if account == ANONYMOUS else DISCOVERY_PATHS
    if account == ADMIN or any(path == allowed or path.startswith(f"{allowed}/") for allowed in open_to):
        return
    raise errors.Denied({}, f'forbidden: User "{account.user}" cannot get path "{path}"')


def review_access(store: Store, account: Account, review: Json) -> Json:
    """Answer a SelfSubjectAccessReview."""
    spec = review.get("spec") or {}
    if bool(spec.get("resourceAttributes")) == bool(spec.get("nonResourceAttributes")):
        value = spec.get("nonResourceAttributes")
        given = {key.capitalize(): value[key] for key in sorted(value)} if value else None
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        why = f"Invalid value: {json.dumps(given, separators=(',', ':'))}: {why}"
        raise errors.invalid(Resource("", "", "authorization.k8s.io"), "", [("FieldValueInvalid", "spec", why)])
    asked = {key: value for key, value in (spec.get("resourceAttributes") or {}).items() if value}
    if asked:
        resource = asked.get("resource", "")
        full = f"{resource}/{asked['subresource']}" if "subresource" in asked else resource
        verb, namespace = asked.get("verb", ""), asked.get("namespace")
        group = asked.get("group", "")
        known = group in ("", "*") or any(key[0] == group for key in RESOURCES)
        asked_for = rbac.Request(verb, group, full, namespace, asked.get("name", ""))
        allowed = account == ADMIN or (known and may(store, account, asked_for))
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


def review_rules(store: Store, account: Account, review: Json) -> Json:
    """Answer a SelfSubjectRulesReview: the account's rules in a namespace."""
    namespace = (review.get("spec") or {}).get("namespace")
    if not namespace:
        raise errors.bad_request("no namespace on request")
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
    ] + list(rbac.rules(store, account.user, account.groups, namespace))
    paths = ["*"] if account == ADMIN else [entry for path in DISCOVERY_PATHS for entry in (path, f"{path}/*")]
    plain = [{"verbs": ["get"], "nonResourceURLs": paths}]
    status = {"resourceRules": listed, "nonResourceRules": plain, "incomplete": False}
    return _review("SelfSubjectRulesReview", {}, status)


def review_self(account: Account) -> Json:
    """Answer a SelfSubjectReview (`kubectl auth whoami`)."""
    answer = _review("SelfSubjectReview", {}, {"userInfo": {"username": account.user, "groups": list(account.groups)}})
    answer |= {
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"creationTimestamp": timestamp(datetime.now(UTC))},
    }
    del answer["spec"]
    return answer


def _review(kind: str, spec: Json, status: Json) -> Json:
    return {"kind": kind, "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": spec, "status": status}

"""toxiproxy: network effects on the connections that lead to a Pod through a Toxiproxy."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import anyio
import msgspec

from chaosrunner.cluster.actions import answered, sent, target_of
from chaosrunner.cluster.patience import Backoff
from chaosrunner.cluster.resources import Object, meta
from chaosrunner.cluster.session import ApiError, Cluster, Unreachable
from chaosrunner.errors import UserError
from chaosrunner.faults.base import Context, Problem, TargetResult, refuse
from chaosrunner.faults.network import ALONE, CAN, NetworkEffect, Seen, Standing, addresses
from chaosrunner.faults.reach import reached
from chaosrunner.http.toxiproxy import Proxy, Refused, Toxic, Toxiproxy
from chaosrunner.journal import toxic as toxics
from chaosrunner.journal.journal import Entry, new_name
from chaosrunner.journal.journal import Toxic as Made

STREAMS = {"in": ("upstream",), "out": ("downstream",), "both": ("upstream", "downstream")}
"""Directions as the Pod sees them, and as the proxy does: upstream is from the client to the Pod."""

LOOK = 3.0
"""Seconds for which is looked whether callers still reach a Pod that is cut off."""

SLOWEST = 8_000.0
"""Bits a second: a proxy counts whole kB."""


class ToxiproxyDriver:
    """Sets toxics on the proxy through which a Pod is reached, on connections that are open as on new ones.

    It hits what comes through that proxy, whoever sends it. A partition swallows data and keeps connections open; they
    end when it is undone. `reject` ends a connection when data comes: new ones by a reset, those that were open before
    in order (Toxiproxy cannot do it otherwise). Latency is on what the Pod sends, as everywhere, unless the direction
    is `in`. What it changed stays until it is undone.
    """

    name = "toxiproxy"
    can = CAN[name]
    needs_addresses = False
    heals_itself = False

    def __init__(self, url: str | None, proxy: str) -> None:
        """`url`: of the HTTP API. `proxy`: name of the proxy that leads to a Pod; `{{ pod }}` and `{{ ip }}` are filled
        in."""
        self._url = url
        self._proxy = proxy

    async def check(
        self, cluster: Cluster, pod: Object, effect: NetworkEffect, standing: Standing = ALONE
    ) -> list[Problem]:
        if self._url is None:
            how = "give drivers.toxiproxy.url in the drill"
            return [refuse("no_toxiproxy", "nobody says where Toxiproxy is", how)]
        if effect.peer == "everywhere":
            text = "toxiproxy hits what comes through its proxy only, not everybody"
            return [refuse("peer_not_reached", text, "name the peer whose way leads through it, like gateway")]
        if (effect.bits_per_second or SLOWEST) < SLOWEST:
            return [refuse("too_slow", f"toxiproxy lets no less than {SLOWEST:g} bit/s through")]
        name = self._name(pod)
        try:
            with toxics.reaching(self._url, cluster.clock):
                async with Toxiproxy(self._url, cluster.clock) as client:
                    proxies = {proxy.name: proxy for proxy in await client.proxies()}
        except Unreachable as error:
            return [refuse("no_toxiproxy", error.told, "or give drivers.toxiproxy.url in the drill")]
        except ApiError as error:
            return [refuse("no_toxiproxy", f"{error.server} is none, or is ill: {error}")]
        if name not in proxies:
            text = f"Toxiproxy at {self._url} has no proxy {name}"
            return [refuse("no_such_proxy", text, "say in drivers.toxiproxy.proxy how the proxy of a Pod is called")]
        return _problems(proxies[name], pod, effect, standing)

    async def apply(
        self, context: Context, pod: Object, effect: NetworkEffect, fault: str
    ) -> tuple[TargetResult, Entry | None]:
        """Sends again what nobody answered, for as long as the cluster may be away: names make that harmless."""
        assert self._url is not None, "checked"
        name, target = new_name(), target_of(pod)
        wanted = _wanted(effect, name)
        made = Made(url=self._url, proxy=self._name(pod), toxics=tuple(msgspec.to_builtins(each) for each in wanted))
        entry = await context.journal.intend(fault=fault, target=target, made=made, name=name)
        result = TargetResult(target=target, answer="accepted", expected=True)
        # An abort waits for the answers: it is to undo what was done, not what may be done still.
        with anyio.CancelScope(shield=True):
            async with Toxiproxy(self._url, context.cluster.clock) as client:
                for toxic in wanted:
                    try:
                        await self._add(context, client, entry, made.proxy, toxic, result)
                    except ApiError as error:
                        result.answer, result.expected = "rejected", False
                        result.status, result.detail = error.answer.status, str(error)
                        break
            # Where the second was refused the first is there all the same.
            if result.expected or result.sent is not None:
                await context.journal.mark(entry, "applied", result.detail)
            else:
                await context.journal.mark(entry, "not_applied", result.detail)
        return result, entry

    async def verify(self, context: Context, pod: Object, effect: NetworkEffect, entry: Entry) -> Seen:
        there = await self._there(context, entry)
        missing = [ours.name for ours in toxics.settings(entry) if ours.name not in there]
        if missing:
            return Seen(False, self.name, f"the proxy does not have {', '.join(missing)}")
        text = f"the proxy has {', '.join(sorted(there))}"
        if effect.kind not in ("partition", "reject") or effect.peer != "gateway":
            return Seen(True, self.name, text)
        # What a proxy has hits nobody who takes another way.
        found = await reached(context, pod, min(LOOK, effect.duration / 4))
        if found is None:
            return Seen(True, self.name, text)
        if found.here:
            return Seen(False, "requests", f"{text}, but {found.text()}: callers do not come through it")
        return Seen(True, f"{self.name} and requests", f"{text}, and {found.text()}")

    async def verify_healed(self, context: Context, pod: Object, effect: NetworkEffect, entry: Entry) -> Seen:
        there = await self._there(context, entry)
        return Seen(bool(there), self.name, f"the proxy has {', '.join(sorted(there)) or 'none of ours'}")

    def _name(self, pod: Object) -> str:
        values = {"pod": str(meta(pod)["name"]), "ip": str((pod.get("status") or {}).get("podIP"))}
        name = self._proxy
        for key, value in values.items():
            name = name.replace(f"{{{{ {key} }}}}", value)
        return name

    async def _add(
        self, context: Context, client: Toxiproxy, entry: Entry, proxy: str, toxic: Toxic, result: TargetResult
    ) -> None:
        """Adds one toxic. Raises Unreachable and ApiError."""
        clock = context.cluster.clock
        backoff, until = Backoff(), context.now + context.patience
        while True:
            row = sent(context.cluster, context.emit, f"add_toxic_{toxic.type}", entry.target, step=context.step)
            result.attempts += 1
            try:
                with toxics.reaching(self._url or "", clock):
                    try:
                        await client.add(proxy, toxic)
                    except Refused as error:
                        # Ours, if an earlier call came through whose answer did not.
                        if error.status != 409 or result.attempts == 1:
                            raise
            except Unreachable as error:
                answered(context.emit, row, context.now, answer="unreachable", message=str(error), ok=None)
                pause = backoff.next()
                if context.now + pause > until:
                    raise
                await anyio.sleep(pause)
            except ApiError as error:
                status, message = error.answer.status, error.answer.message
                answered(context.emit, row, context.now, answer="rejected", status=status, message=message, ok=False)
                raise
            else:
                answered(context.emit, row, context.now, answer="accepted", status=200, ok=True)
                result.sent = row.at if result.sent is None else result.sent
                return

    async def _there(self, context: Context, entry: Entry) -> set[str]:
        """Those of an entry's toxics that the proxy has, as they were sent."""
        assert isinstance(entry.made, Made)
        with toxics.reaching(entry.made.url, context.cluster.clock):
            async with Toxiproxy(entry.made.url, context.cluster.clock) as client:
                proxy = await client.proxy(entry.made.proxy)
        ours = {each.name: each for each in toxics.settings(entry)}
        found = proxy.toxics if proxy is not None else ()
        return {each.name for each in found if each.name in ours and toxics.same(each, ours[each.name])}


def _streams(effect: NetworkEffect) -> tuple[str, ...]:
    if effect.kind == "latency" and effect.direction == "both":
        return STREAMS["out"]
    return STREAMS[effect.direction]


def _wanted(effect: NetworkEffect, entry: str) -> list[Toxic]:
    return [_toxic(effect, stream, toxics.name(entry, stream)) for stream in _streams(effect)]


def _toxic(effect: NetworkEffect, stream: str, name: str) -> Toxic:
    match effect.kind:
        case "partition":
            kind, attributes = "timeout", {"timeout": 0}
        case "reject":
            kind, attributes = "reset_peer", {"timeout": 0}
        case "latency":
            kind = "latency"
            attributes = {"latency": round((effect.seconds or 0) * 1000), "jitter": round(effect.jitter * 1000)}
        case "rate":
            kind, attributes = "bandwidth", {"rate": round((effect.bits_per_second or 0) / 8000)}
        case "loss":
            raise UserError("toxiproxy loses no packets")
    return Toxic(name=name, type=kind, stream=stream, attributes=attributes)


def _problems(proxy: Proxy, pod: Object, effect: NetworkEffect, standing: Standing) -> list[Problem]:
    name = meta(pod)["name"]
    if not proxy.enabled:
        return [refuse("proxy_disabled", f"proxy {proxy.name} is disabled: nothing comes through it")]
    found = []
    host, _, port = proxy.upstream.rpartition(":")
    host = host.strip("[]")
    if not _is_address(host):
        text = f"proxy {proxy.name} leads to {proxy.upstream}; whether that is {name} cannot be told"
        found.append(Problem(severity="warn", code="upstream_unknown", text=text))
    elif host not in {network.rpartition("/")[0] for network in addresses(pod)}:
        return [refuse("other_upstream", f"proxy {proxy.name} leads to {proxy.upstream}, which is not {name}")]
    if effect.ports and (not port.isdecimal() or int(port) not in effect.ports):
        ports = ", ".join(map(str, effect.ports))
        return [refuse("other_port", f"proxy {proxy.name} leads to port {port}; the playbook names {ports}")]
    ours = [each for each in proxy.toxics if toxics.entry_of(each.name) in standing.entries]
    theirs = [each.name for each in proxy.toxics if each not in ours]
    left = [name for name in theirs if toxics.entry_of(name) is not None]
    if left:
        text = f"proxy {proxy.name} has {', '.join(left)}, which a run left there or needs still"
        found.append(refuse("undo_pending", text, "chaosrunner recover"))
    elif theirs:
        text = f"proxy {proxy.name} has toxics already: {', '.join(theirs)}"
        found.append(Problem(severity="warn", code="other_toxics", text=text))
    planned = [toxic for each in standing.effects for toxic in _wanted(each, "")]
    if why := _clash(_wanted(effect, ""), [*ours, *planned]):
        how = "end the one before: by heal, or by a hold as long as it stands"
        found.append(refuse("effects_clash", f"on proxy {proxy.name} stands an effect of this run: {why}", how))
    return found


CUTS = ("timeout", "reset_peer")
"""Toxics that let nothing through."""


def _clash(wanted: Sequence[Toxic], there: Sequence[Toxic]) -> str | None:
    """Why toxics cannot be told from those that are there; None where each does what it is for beside them."""
    for one in wanted:
        for other in there:
            if one.stream != other.stream:
                continue
            if one.type == other.type:
                return f"two toxics {one.type} {one.stream} cannot be told apart, whichever bites"
            if one.type in CUTS and other.type in CUTS:
                return (
                    f"{one.type} and {other.type} {one.stream} exclude each other: a connection falls silent or breaks"
                )
    return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True

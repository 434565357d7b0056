"""A gateway that follows a Service's EndpointSlices and streams through, as Envoy does with one route."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from chaosrunner.lab.workload import flags, http1, program
from chaosrunner.lab.workload.balancer import Balancer, Upstream
from chaosrunner.lab.workload.credentials import ApiServer, BadCredentials, api_server
from chaosrunner.lab.workload.endpoints import Endpoint, Follower
from chaosrunner.lab.workload.http1 import Connection, Disconnected, Exchange, Request, Server, find
from chaosrunner.lab.workload.journal import Journal
from chaosrunner.lab.workload.toxiproxy import PATH as TOXIPROXY
from chaosrunner.lab.workload.toxiproxy import Proxies

_HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
_NOT_FORWARDED = {*_HOP_BY_HOP, "content-length", "expect", "x-request-id"}
_RESET = "upstream connect error or disconnect/reset before headers. reset reason:"
"""Envoy's words when no answer came from an upstream."""


def parser() -> argparse.ArgumentParser:
    """The command line of the gateway."""
    result = flags.parser(
        "gateway",
        "A streaming HTTP/1.1 gateway in front of one Service. Own pages: /gateway/healthz, /gateway/stats, and below "
        "/gateway/toxiproxy the API of Toxiproxy for its links to the Pods.",
        port=8080,
    )

    source = result.add_argument_group("endpoints")
    flags.follow(source, required=True)
    source.add_argument("--port-name", help="name of the Service's port; the only or first one by default")
    source.add_argument(
        "--propagation-delay",
        type=flags.duration,
        default=0.0,
        help="time between a change of the endpoints and the gateway acting on it",
    )
    source.add_argument(
        "--panic",
        choices=("all", "serving", "off"),
        default="all",
        help="with no ready endpoint: try all that are known (as Envoy does), those serving while terminating, or none",
    )

    routing = result.add_argument_group("routing")
    routing.add_argument(
        "--policy",
        choices=("least_request", "round_robin", "random"),
        default="least_request",
        help="how a new request picks an endpoint (least_request: two random choices, as Envoy's)",
    )
    routing.add_argument("--seed", type=int, default=0, help="seed of random choices")
    routing.add_argument(
        "--pod-header", default="x-served-by", help="response header that names the serving Pod; empty sends none"
    )
    routing.add_argument("--connect-timeout", type=flags.duration, default=10.0, help="longest connect to a Pod")
    routing.add_argument("--retries", type=flags.whole, default=0, help="further endpoints tried when a connect fails")
    routing.add_argument(
        "--request-timeout",
        type=flags.duration,
        default=0.0,
        help="longest request from its sending to its last byte; 0 is none (Envoy's own default is 15 s)",
    )
    routing.add_argument("--new-connections", action="store_true", help="a new upstream connection for each request")
    routing.add_argument(
        "--idle-timeout", type=flags.duration, default=4.0, help="how long an idle upstream connection is kept"
    )
    routing.add_argument(
        "--death-delay",
        type=flags.duration,
        default=0.0,
        help="time between an upstream's death in mid-stream and the end of the client's connection (Envoy: about 1 s)",
    )
    routing.add_argument("--max-connections", type=flags.count, default=1024, help="most client connections at once")
    return result


class _Failed(Exception):
    """No answer came from an upstream: what the client gets instead."""

    def __init__(self, status: int, flag: str, text: str, *, connecting: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.flag = flag
        self.text = text
        self.connecting = connecting


class _Cut(Exception):
    """The upstream died in the middle of its answer."""


@dataclass
class _Row:
    """What is logged of a request; flags are Envoy's: UH no endpoint, UF connect failed, UC closed before the answer,
    UPE died or spoke nonsense in it, UT timed out, DC the client left."""

    request_id: str
    received: float
    method: str
    path: str
    pod: str | None = None
    upstream: str | None = None
    new_connection: bool | None = None
    attempts: int = 0
    headers: float | None = None
    bytes: int = 0
    flag: str = "-"


class Gateway:
    """Routes each request to an endpoint of the Service and relays the answer as it comes."""

    def __init__(self, options: argparse.Namespace, api: ApiServer) -> None:
        self._options = options
        self._journal = Journal(options.log)
        self._balancer = Balancer(options.policy, options.panic, options.seed)
        self._follower = Follower(api, options.service, options.port_name, self._seen, self._journal.write)
        self._proxies = Proxies(f"{options.host}:{options.port}", self._journal.write)
        self._server = Server(self._answer, max_connections=options.max_connections)
        self._responses: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._active = 0
        self._cut = 0

    async def run(self) -> int:
        """Serve until told to end; returns the exit code."""
        options = self._options
        jobs = self._follower.run(), self._balancer.sweep(options.idle_timeout)
        more = {"policy": options.policy, "service": options.service}
        return await program.serve(self._server, options, self._journal, *jobs, **more)

    # Endpoints

    def _seen(self, endpoints: list[Endpoint]) -> None:
        """The slices changed: act on it after the propagation delay, in the order of the changes."""
        self._journal.write("endpoints_seen", endpoints=[asdict(endpoint) for endpoint in endpoints])
        delay = self._options.propagation_delay
        if delay and self._balancer.synced:
            asyncio.get_running_loop().call_later(delay, self._apply, endpoints)
        else:
            self._apply(endpoints)

    def _apply(self, endpoints: list[Endpoint]) -> None:
        self._balancer.update(endpoints)
        self._proxies.update(endpoints)
        ready = [endpoint.pod for endpoint in endpoints if endpoint.ready]
        self._journal.write("endpoints_applied", ready=ready, total=len(endpoints))

    # Requests

    async def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path.startswith("/gateway/"):
            self._own_page(exchange)
            return
        row = _Row(find(request.headers, "x-request-id") or str(uuid4()), time.time(), request.method, request.path)
        self._active += 1
        try:
            async with asyncio.timeout(self._options.request_timeout or None):
                await self._route(exchange, row)
        except TimeoutError:
            self._fail(exchange, row, _Failed(504, "UT", "upstream request timeout"))
        except _Failed as failed:
            self._fail(exchange, row, failed)
        except _Cut:
            self._fail(exchange, row, _Failed(502, "UPE", f"{_RESET} protocol error"))
        except (asyncio.CancelledError, Disconnected):
            row.flag = "DC"
            raise
        finally:
            self._active -= 1
            if exchange.status:
                self._responses[str(exchange.status)] += 1
            self._flags[row.flag] += 1
            self._journal.write("request", **asdict(row), status=exchange.status, ended=time.time())

    def _fail(self, exchange: Exchange, row: _Row, failed: _Failed) -> None:
        row.flag = failed.flag
        if exchange.status:
            # The answer has begun: all that is left is to close without its last chunk.
            self._cut += 1
            exchange.keep_alive = False
            return
        body = failed.text.encode()
        headers = [("content-length", str(len(body))), ("content-type", "text/plain"), ("date", http1.date())]
        exchange.respond(failed.status, [*headers, *self._pod_header(row.pod)], body)

    async def _route(self, exchange: Exchange, row: _Row) -> None:
        tried: set[tuple[str, int]] = set()
        last = _Failed(503, "UH", "")
        while True:
            upstream = self._balancer.pick(tried)
            if upstream is None:
                raise last
            endpoint = upstream.endpoint
            tried.add(endpoint.key)
            row.pod, row.upstream = endpoint.pod, f"{endpoint.address}:{endpoint.port}"
            row.attempts += 1
            upstream.in_flight += 1
            upstream.requests += 1
            self._in_flight[endpoint.pod] += 1
            try:
                await self._exchange(exchange, row, upstream)
                return
            except _Failed as failed:
                if not failed.connecting or row.attempts > self._options.retries:
                    raise
                last = failed
            finally:
                upstream.in_flight -= 1
                self._in_flight[endpoint.pod] -= 1
                if not self._in_flight[endpoint.pod]:
                    del self._in_flight[endpoint.pod]

    async def _connect(self, row: _Row, upstream: Upstream) -> Connection:
        options = self._options
        loop = asyncio.get_running_loop()
        if not options.new_connections and (pooled := upstream.take(loop.time() - options.idle_timeout)):
            row.new_connection = False
            return pooled
        row.new_connection = True
        try:
            endpoint = upstream.endpoint
            link = partial(self._proxies.link, endpoint.pod)
            return await http1.connect(endpoint.address, endpoint.port, options.connect_timeout, make=link)
        except TimeoutError:
            raise _Failed(503, "UF", f"{_RESET} connection timeout", connecting=True) from None
        except OSError:
            raise _Failed(503, "UF", f"{_RESET} remote connection failure", connecting=True) from None

    async def _exchange(self, exchange: Exchange, row: _Row, upstream: Upstream) -> None:
        """Send the request to one upstream and relay its answer."""
        connection = await self._connect(row, upstream)
        reusable = False
        try:
            try:
                connection.write(self._request(exchange.request, row))
                await connection.drain()
                response = await http1.read_response(connection, exchange.request.method)
            except http1.MalformedMessage:
                raise _Failed(502, "UPE", f"{_RESET} protocol error") from None
            except ConnectionError:
                raise _Failed(503, "UC", f"{_RESET} connection termination") from None
            row.headers = time.time()
            await self._relay(exchange, row, connection, response)
            reusable = response.keep_alive and response.body.complete
        finally:
            if reusable and upstream.known and not connection.ended and not self._options.new_connections:
                upstream.idle.append((connection, asyncio.get_running_loop().time()))
            else:
                connection.close()

    def _request(self, request: Request, row: _Row) -> bytes:
        headers = [(name, value) for name, value in request.headers if name.lower() not in _NOT_FORWARDED]
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            headers.append(("content-length", str(len(request.body))))
        headers.append(("x-request-id", row.request_id))
        if self._options.new_connections:
            headers.append(("connection", "close"))
        return http1.head(f"{request.method} {request.target} HTTP/1.1", headers) + request.body

    def _pod_header(self, pod: str | None) -> list[tuple[str, str]]:
        return [(self._options.pod_header, pod)] if pod and self._options.pod_header else []

    async def _relay(self, exchange: Exchange, row: _Row, connection: Connection, response: http1.Response) -> None:
        """Pass the answer on piece by piece, no faster than the client takes it."""
        dropped = {*_HOP_BY_HOP, self._options.pod_header.lower()}
        headers = [(name, value) for name, value in response.headers if name.lower() not in dropped]
        headers += self._pod_header(row.pod)
        body = response.body
        known_length = find(headers, "content-length") is not None or body.complete
        if known_length:
            exchange.respond(response.status, headers)
        else:
            exchange.start(response.status, headers)
        while not body.complete:
            data = await connection.read()
            if not data:
                if connection.error is None and body.end():
                    break
                await asyncio.sleep(self._options.death_delay)
                raise _Cut
            try:
                payload, rest = body.feed(data)
            except http1.MalformedMessage:
                raise _Cut from None
            connection.unread(rest)
            row.bytes += len(payload)
            if known_length:
                exchange.connection.write(payload)
            else:
                exchange.send(payload)
            await exchange.connection.drain()
        if not known_length:
            exchange.finish()

    # Own pages

    def _own_page(self, exchange: Exchange) -> None:
        match exchange.request.path:
            case "/gateway/healthz":
                status, page = (
                    (200, {"status": "ok"}) if self._balancer.synced else (503, {"status": "no endpoints yet"})
                )
            case "/gateway/stats":
                status, page = 200, self.stats()
            case path if path.startswith(f"{TOXIPROXY}/"):
                request = exchange.request
                status, page = self._proxies.answer(request.method, path.removeprefix(TOXIPROXY), request.body)
            case _:
                status, page = 404, {"status": "not found"}
        body = b"" if page is None else json.dumps(page).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        exchange.respond(status, headers, body)

    def stats(self) -> dict[str, Any]:
        """Endpoints, requests in flight by Pod, and counts of what was answered since the start.

        `cut` are answers that ended in their middle, with the upstream's death or the time limit; `client_gone` are
        requests whose client left first.
        """
        return {
            "synced": self._balancer.synced,
            "watching": self._follower.connected,
            "policy": self._options.policy,
            "endpoints": [
                {
                    **asdict(upstream.endpoint),
                    "in_flight": upstream.in_flight,
                    "requests": upstream.requests,
                    "idle": len(upstream.idle),
                }
                for upstream in self._balancer.upstreams.values()
            ],
            "in_flight": dict(sorted(self._in_flight.items())),
            "total_in_flight": self._active,
            "requests": sum(self._flags.values()),
            "responses": dict(sorted(self._responses.items())),
            "cut": self._cut,
            "client_gone": self._flags["DC"],
            "flags": dict(sorted(self._flags.items())),
        }


def main(arguments: list[str] | None = None) -> int:
    """Run the gateway until SIGTERM or SIGINT; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        api = api_server(options.kubeconfig, options.context, options.namespace)
    except BadCredentials as error:
        sys.stderr.write(f"{error}\n")
        return 2

    async def serve() -> int:
        return await Gateway(options, api).run()

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())

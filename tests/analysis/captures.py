"""Recordings of real systems as rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaosrunner.analysis import KnownPod
from chaosrunner.cluster.answers import classify
from chaosrunner.observers import endpoints, events, nodes, pdbs, pods
from chaosrunner.timeline import rows
from chaosrunner.timeline.rows import Row

DATA = Path(__file__).parent.parent / "data"

CONVERTERS: dict[str, Callable[..., Row]] = {
    "pods": pods.to_row,
    "endpointslices": endpoints.to_row,
    "pdbs": pdbs.to_row,
    "nodes": nodes.to_row,
    "events": events.to_row,
}


def number(found: Iterable[Row]) -> list[Row]:
    """Orders rows by time and gives them their ids."""
    ordered = sorted(found, key=lambda row: row.at)
    for index, row in enumerate(ordered, start=1):
        row.id = index
    return ordered


def action(call: int, kind: str, at: float, answered: float, target: rows.Target, **fields: Any) -> list[Row]:
    common: dict[str, Any] = {"call": call, "action": kind, "target": target, "dry_run": fields.pop("dry_run", False)}
    return [
        rows.Action(at=at, event="sent", **common),
        rows.Action(at=answered, event="answered", **common, **fields),
    ]


def kubernetes(until: float = float("inf")) -> list[Row]:
    """The recording of a real 1.37 up to a time, as the observers write it: Pods, slices, budgets, nodes without their
    heartbeats, Events, and calls on Pods."""
    found: list[Row] = []
    names = {
        "pods": "pods",
        "endpointslices": "endpointslices",
        "pdbs": "poddisruptionbudgets",
        "nodes": "nodes",
        "events": "events",
    }
    uids: dict[str, str] = {}
    news = nodes.News()
    for kind, resource in names.items():
        first, *lines = (DATA / "k8s-1.37" / f"watch-{kind}.jsonl").read_text().splitlines()
        listing = json.loads(first)
        found.append(
            rows.Watch(at=listing["at"], resource=resource, event="listed", items=len(listing["list"]["items"]))
        )
        found += [CONVERTERS[kind](item, seen="LISTED", at=listing["at"]) for item in listing["list"]["items"]]
        for line in map(json.loads, lines):
            # Lines without a type: the recorder's read timed out, and it resumed where it was.
            if line.get("type", "BOOKMARK") != "BOOKMARK":
                row = CONVERTERS[kind](line["object"], seen=line["type"], at=line["at"])
                if not isinstance(row, rows.Node) or news.is_new(row):
                    found.append(row)
                if kind == "pods":
                    uids[line["object"]["metadata"]["name"]] = line["object"]["metadata"]["uid"]
    for call, line in enumerate(map(json.loads, (DATA / "k8s-1.37" / "requests.jsonl").read_text().splitlines())):
        path = line.get("path", "")
        evicts = path.endswith("/eviction")
        if not evicts and not (line.get("method") == "DELETE" and "/pods/" in path):
            continue
        name = path.removesuffix("/eviction").rsplit("/", 1)[-1]
        found += action(
            call,
            "evict" if evicts else "delete_pod",
            line["at"],
            line["at"] + line["took_ms"] / 1000,
            rows.Target(kind="Pod", name=name, namespace="demo", uid=uids.get(name)),
            dry_run="dryRun" in json.dumps(line["request"]),
            status=line["status"],
            ok=line["status"] < 300,
            answer=classify(line["status"], line["response"], line["headers"]),
        )
    return number([row for row in found if row.at <= until] + [rows.Run(at=min(until, 118.2), event="ended")])


def real_drill() -> tuple[dict[str, Any], list[Row], list[KnownPod]]:
    """The drill on real parts: its raw data, its rows, and the Pods that the first slice names (no list was kept)."""
    data = json.loads(gzip.decompress((DATA / "real-drill" / "default.json.gz").read_bytes()))
    hosts = {line["user-agent"]: line["upstream_host"] for line in data["access_log"]}
    found: list[Row] = [CONVERTERS[row["watch"]](row["object"], seen=row["type"], at=row["at"]) for row in data["rows"]]
    evicted, dry_run = data["marks"][1], data["marks"][2]
    target = rows.Target(kind="Pod", name=evicted["pod"], namespace="demo", uid=evicted["uid"])
    # The mark was written when the answer had come, some 10 ms after the sending.
    found += action(1, "evict", evicted["at"] - 0.01, evicted["at"], target, answer="accepted", status=201, ok=True)
    first = next(row for row in found if isinstance(row, rows.EndpointSlice))
    known = [KnownPod(name=e.pod or "", uid=e.uid or "", ip=e.addresses[0], root=None) for e in first.endpoints]
    other = next(pod for pod in known if pod.name == dry_run["pod"])
    found += action(
        2,
        "evict",
        dry_run["at"] - 0.01,
        dry_run["at"],
        rows.Target(kind="Pod", name=other.name, namespace="demo", uid=other.uid),
        dry_run=True,
        answer="blocked_by_budget",
        status=429,
        ok=False,
        expected=True,
    )
    found += list(_streams(data["requests"], hosts))
    found.append(rows.Run(at=data["marks"][-1]["at"], event="ended"))
    return data, number(found), known


def _streams(requests: list[dict[str, Any]], hosts: dict[str, str]) -> Iterator[Row]:
    for item in requests:
        usage = item.get("usage") or {}
        error = item.get("error")
        text = item["text"]
        ended_as_meant = error is None and item["finish"][1] == "length" and item["done"] and usage
        name = f"drill-{item['i']}"
        yield rows.RequestSent(at=item["t_send"], request=name, probe="drill")
        yield rows.Request(
            at=item["t_end"],
            request=name,
            probe="drill",
            outcome="complete" if ended_as_meant else "error_in_stream",
            sent=item["t_send"],
            connected=item["t_conn"],
            headers=item["t_head"],
            first_token=text[0],
            last_token=text[-1],
            tokens=usage.get("completion_tokens"),
            status=item["status"],
            pod=hosts.get(name),
            done=bool(item["done"]),
            ended_properly=item["end"] == "last chunk",
            chunks=text,
            largest_gap=max(b - a for a, b in pairwise(text)),
            error=error[1]["message"] if error else None,
            error_code=error[1]["code"] if error else None,
        )


def gpu(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "gpu-warmup" / f"{name}.json").read_text())
    return found

"""From a recording to its facts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from chaosrunner.analysis import aggregate, disruptions, outages, own, recovery
from chaosrunner.analysis.context import AnalysisContext
from chaosrunner.analysis.direct import direct_probes
from chaosrunner.analysis.exposure import exposure
from chaosrunner.analysis.facts import (
    ALL,
    LISTED_LIMIT,
    PHASES,
    AlertEpisode,
    Eviction,
    Facts,
    Gap,
    LostRequest,
    OnceFacts,
    Phase,
    ProberFacts,
    ReadyEndpoints,
    RunFacts,
    Scheduled,
    SkewFacts,
    StepFacts,
)
from chaosrunner.analysis.findings import findings
from chaosrunner.analysis.folds.actions import TAKES_POD
from chaosrunner.analysis.folds.run import files_share
from chaosrunner.analysis.goodput import good_share, goodput
from chaosrunner.analysis.observations import Observations
from chaosrunner.analysis.own import LATE
from chaosrunner.analysis.picture import Picture
from chaosrunner.analysis.placement import UNPLACED
from chaosrunner.analysis.requests import COLUMNS, OUTCOMES, Floats, Mask, Requests
from chaosrunner.analysis.scope import restarts
from chaosrunner.analysis.spans import evidence
from chaosrunner.analysis.throughput import throughput
from chaosrunner.analysis.verdict import EXIT_CODES, check, verdict
from chaosrunner.timeline.outcomes import Outcome
from chaosrunner.timeline.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa


class Source(Protocol):
    """What is read of a recording; `chaosrunner.timeline.reader.Recording` is one."""

    def events(self) -> Iterator[Row]:
        """All rows but those of requests, in the order of their ids."""

    def requests(self, columns: list[str] | None = None) -> pa.Table:
        """Final rows of requests, in the order of their ids; those without an end as `unfinished`."""


def analyse(recording: Source, context: AnalysisContext) -> Facts:
    """All facts of a recording.

    Raises ValueError for rows that no version wrote (an unknown outcome, a time that is none).
    """
    return facts(picture(recording, context))


def picture(recording: Source, context: AnalysisContext) -> Picture:
    """The picture at the end of a recording. Raises ValueError as `analyse` does."""
    observations = Observations(context)
    for row in recording.events():
        observations.feed(row)
    observations.requests, observations.direct = Requests.split(recording.requests(list(COLUMNS)))
    for requests in (observations.requests, observations.direct):
        if len(requests):
            observations.last_at = max(observations.last_at, float(requests.ended.max()))
    return Picture(observations, observations.last_at)


def facts(picture: Picture) -> Facts:
    """All facts at the picture's instant."""
    requests = picture.requests
    masks = {ALL: picture.in_phase(ALL)} | {
        name: mask for name in PHASES if (mask := picture.in_phase(name) & ~requests.once).any()
    }
    ended = aggregate.frame(requests, picture.phase_codes, picture.straddling)
    found = recovery.replacements(picture)
    zero = outages.zero_ready(picture)
    lost, omitted = _lost(picture)
    result = Facts(
        run=_run(picture),
        phases=_phases(picture),
        exposure=exposure(picture),
        success_rate={name: aggregate.success_rate(requests, mask) for name, mask in masks.items()},
        incomplete_200={
            name: int(np.count_nonzero(aggregate.incomplete_200(requests, mask))) for name, mask in masks.items()
        },
        outcomes=aggregate.outcome_table(ended),
        statuses=aggregate.status_table(ended),
        lost_requests=lost,
        lost_omitted=omitted,
        unfinished=_unfinished(picture),
        straddling=requests.text("request", requests.positions(picture.straddling & requests.counted)[:LISTED_LIMIT]),
        once=_once(picture),
        latency=aggregate.latency_table(requests, ended),
        goodput={name: goodput(picture, name, mask) for name, mask in masks.items()},
        good_share={name: good_share(picture, mask) for name, mask in masks.items()},
        throughput=throughput(picture),
        scheduled=_scheduled(picture),
        replacements=found,
        recovery=recovery.recovery(picture, found),
        disruptions=disruptions.disruptions(picture),
        terminations=disruptions.terminations(picture),
        zero_ready=zero,
        zero_ready_seconds=outages.zero_ready_seconds(picture, zero),
        outages=outages.outages(picture),
        ready_endpoints=[
            ReadyEndpoints(at=point.at, ready=point.ready, row=point.row)
            for point in picture.observations.endpoints.history
        ],
        evictions=_evictions(picture),
        alerts=_alerts(picture),
        endpoints_back=picture.endpoints_back,
        restarts=restarts(picture),
        gaps=[
            Gap(resource=gap.resource, begin=gap.begin, end=gap.end, reason=gap.reason, evidence=gap.rows)
            for gap in picture.observations.watches.gaps
        ],
        findings=[],
        checks=[],
        prober=_prober(picture),
        skews=_skews(picture),
        direct=direct_probes(picture),
        verdict="inconclusive",
        reason="",
        exit_code=EXIT_CODES["inconclusive"],
    )
    result.findings = findings(picture, result)
    result.checks = [check(picture, wanted) for wanted in picture.context.checks]
    result.verdict, result.reason = verdict(picture.observations, result.run, result.findings, result.checks)
    result.exit_code = EXIT_CODES[result.verdict]
    return result


def _run(picture: Picture) -> RunFacts:
    run = picture.observations.run
    aborting, ended = run.event("aborting"), run.event("ended")
    began = datetime.fromtimestamp(picture.context.anchor, UTC)
    return RunFacts(
        id=picture.context.run,
        drill=picture.context.drill,
        state="crashed" if ended is None else "aborted" if aborting is not None else "ended",
        reason=next((row.reason for row in (aborting, ended) if row is not None and row.reason), None),
        started_time=began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        begin=0.0,
        end=picture.now,
        steps=[
            StepFacts(
                index=state.started.index,
                step=state.started.step,
                name=state.started.name,
                begin=state.started.at,
                end=None if state.ended is None else state.ended.at,
                result=None if state.ended is None else state.ended.result,
                reason=None if state.ended is None else state.ended.reason,
                evidence=evidence([state.started.id] + ([state.ended.id] if state.ended is not None else [])),
            )
            for state in run.steps
        ],
    )


def _phases(picture: Picture) -> list[Phase]:
    phases = []
    fault = picture.first_fault
    for name in PHASES:
        window = picture.phase_window(name)
        if window is None:
            continue
        why, rows, open_ = None, [], True
        if name == "baseline" and fault is not None:
            why, rows, open_ = f"{fault.sent.action} of {fault.sent.target.name}", fault.rows, False
        elif name == "during":
            why, rows, open_ = picture.whole.why, picture.whole.rows, picture.whole.at is None
        phases.append(Phase(name=name, begin=window[0], end=window[1], open=open_, why=why, evidence=rows))
    return phases


def _lost(picture: Picture) -> tuple[list[LostRequest], int]:
    requests = picture.requests
    lost = requests.by_sending(requests.counted & ~requests.success)
    listed = lost[:LISTED_LIMIT]
    names, errors = requests.text("request", listed), requests.text("error", listed)
    labels = requests.vocabulary["pod"].words
    probes = requests.vocabulary["probe"].words
    found = []
    for position, name, error in zip(listed.tolist(), names, errors, strict=True):
        pod = picture.pods.all[picture.placed[position]] if picture.placed[position] != UNPLACED else None
        label = requests.pod[position]
        sent, ended = float(requests.sent[position]), float(requests.ended[position])
        earlier = [victim for victim in picture.victims if victim.at < ended]
        mine = [victim for victim in earlier if pod is not None and victim.pod is pod]
        call = (mine or earlier)[-1].call if earlier else None
        first_token = float(requests.first_token[position])
        found.append(
            LostRequest(
                request=name,
                row=int(requests.id[position]),
                probe=probes[requests.probe[position]],
                outcome=OUTCOMES[requests.outcome[position]],
                status=_status(requests.status[position]),
                pod=pod.name if pod is not None else labels[label] if label >= 0 else None,
                uid=None if pod is None else pod.uid,
                sent=sent,
                ended=ended,
                phase=PHASES[picture.phase_codes[position]],
                error=error,
                first_token=None if np.isnan(first_token) else first_token,
                action=None if call is None else call.sent.id,
                action_pod=None if call is None else call.sent.target.name,
                same_pod=None if call is None or pod is None else bool(mine),
                after_action=None if call is None else ended - call.at,
                straddles=call is not None and sent <= call.at,
            )
        )
    return found, len(lost) - len(listed)


def _status(status: np.int64) -> int | None:
    return None if status < 0 else int(status)


def _unfinished(picture: Picture) -> list[str]:
    found: list[str] = []
    for each in (picture, picture.direct):
        listed = each.requests.positions(each.requests.is_outcome(Outcome.UNFINISHED))
        found += [*each.requests.text("request", listed), *each.flight.requests]
    return found


def _once(picture: Picture) -> list[OnceFacts]:
    requests = picture.requests
    listed = requests.positions(requests.once)
    names, expected = requests.text("request", listed), requests.text("expected", listed)
    return [
        OnceFacts(
            request=name,
            row=int(requests.id[position]),
            outcome=OUTCOMES[requests.outcome[position]],
            status=_status(requests.status[position]),
            expected=met,
        )
        for position, name, met in zip(listed.tolist(), names, expected, strict=True)
    ]


def _evictions(picture: Picture) -> list[Eviction]:
    return [
        Eviction(
            at=call.at,
            answered=None if call.answered is None else call.answered.at,
            action=call.sent.action,
            pod=call.sent.target.name,
            uid=call.sent.target.uid,
            dry_run=call.sent.dry_run,
            answer=call.result.answer,
            status=call.result.status,
            message=call.result.message,
            pdbs=sorted(call.pdbs),
            expected=call.result.expected,
            self_inflicted=call.self_inflicted,
            evidence=call.rows,
        )
        for call in picture.observations.actions.calls
        if call.sent.action in TAKES_POD
    ]


def _alerts(picture: Picture) -> list[AlertEpisode]:
    return [
        AlertEpisode(
            name=episode.name,
            labels=episode.labels,
            pending_from=episode.pending_from,
            active_time=episode.active_time,
            firing_from=episode.firing_from,
            end=episode.end,
            end_reason=episode.end_reason,
            unknown_from=episode.unknown_from,
            evidence=evidence(episode.evidence),
        )
        for episode in picture.observations.alerts.episodes
    ]


def _scheduled(picture: Picture) -> dict[str, Scheduled]:
    found = {}
    for requests in (picture.requests, picture.direct.requests):
        planned = ~np.isnan(requests.scheduled) & ~requests.once
        refused = requests.is_outcome(Outcome.NOT_SENT)
        for name in requests.vocabulary["probe"].words:
            mine = planned & requests.of_probe(name)
            if mine.any():
                found[name] = Scheduled(
                    planned=int(np.count_nonzero(mine)),
                    not_sent=int(np.count_nonzero(mine & refused)),
                    evidence=requests.ids(mine & refused),
                )
    return found


class _Sent(NamedTuple):
    """Of all requests that were to be sent, to whomever: columns of `Requests`, probe-once requests apart."""

    fault: Mask
    not_sent: Mask
    dropped: Mask
    scheduled: Floats
    lag: Floats
    headers: Floats
    exact: Mask
    chunks: Floats
    reads: Floats

    @classmethod
    def of(cls, requests: Requests) -> _Sent:
        mine = ~requests.once
        fault = requests.is_outcome(Outcome.PROBER_FAULT)
        # What was dropped has no time of sending: where our own lateness filled the cap it is a prober fault.
        dropped = fault & (requests.sent == requests.scheduled)
        columns: tuple[Any, ...] = (
            fault, requests.is_outcome(Outcome.NOT_SENT), dropped, requests.scheduled, requests.send_lag,
            requests.headers, requests.exact, requests.content_chunks, requests.content_reads,
        )  # fmt: skip
        return cls(*(column[mine] for column in columns))


def _prober(picture: Picture) -> ProberFacts:
    lags = np.sort(np.array(picture.observations.run.lags))
    both = zip(_Sent.of(picture.requests), _Sent.of(picture.direct.requests), strict=True)
    sent = _Sent(*(np.concatenate(columns) for columns in both))
    faults, total = int(np.count_nonzero(sent.fault)), len(sent.fault)
    late = np.sort(sent.lag[~np.isnan(sent.lag) & ~sent.dropped & ~sent.not_sent])
    planned = int(np.count_nonzero(~np.isnan(sent.scheduled)))
    late_sends = int(np.count_nonzero(late > LATE)) + int(np.count_nonzero(sent.dropped))
    work = own.work(picture.observations.run)
    answered = ~np.isnan(sent.headers)
    chunks = float(np.nansum(sent.chunks))
    return ProberFacts(
        lag_p99=aggregate.nearest_rank(lags, 99),
        lag_max=float(lags[-1]) if len(lags) else None,
        faults=faults,
        faults_share=faults / total if total else None,
        send_lag_p99=aggregate.nearest_rank(late, 99),
        send_lag_max=float(late[-1]) if len(late) else None,
        exact_share=float(sent.exact[answered].mean()) if answered.any() else None,
        late_sends=late_sends,
        late_share=late_sends / planned if planned else None,
        core_share=work.core_share,
        requests_per_core=work.requests,
        chunks_per_core=work.chunks,
        files_share=None if (fullest := picture.observations.run.fullest) is None else files_share(fullest),
        bounded_share=1 - float(np.nansum(sent.reads)) / chunks if chunks else None,
    )


def _skews(picture: Picture) -> list[SkewFacts]:
    clocks = picture.observations.clocks
    return [
        SkewFacts(owner=owner, low=clocks.skew(owner).low, high=clocks.skew(owner).high, samples=samples)
        for owner, samples in sorted(clocks.samples.items())
    ]

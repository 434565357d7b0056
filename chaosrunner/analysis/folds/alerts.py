"""Alert episodes out of polls of a Prometheus: when an alert was pending, when it fired, why it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from chaosrunner.analysis.clocks import Clocks, unix
from chaosrunner.timeline.rows import Alert, Alerts, Rule

State = Literal["inactive", "pending", "firing"]
EndReason = Literal["resolved", "staleness_reset", "label_identity_unstable", "unknown"]

UNSTABLE_AFTER = 3
"""Episodes in a row, each replaced by one with other labels in the same poll, that prove an unstable identity."""

HEALTHY = "ok"
UNEVALUATED = "unknown"
"""Rule health before the first evaluation, as after a restart (Prometheus, rules.RuleHealth): silence means nothing."""

TARGET_LABELS = frozenset({"pod", "instance", "node", "container", "endpoint", "uid", "namespace", "service", "job"})
"""Labels that name what an alert is about: another value is another target, no unstable identity."""


@dataclass
class Episode:
    """One alert, identified by its labels as Prometheus does, from its first poll to the first without it."""

    name: str
    labels: dict[str, str]
    active_time: str | None
    pending_from: float | None = None
    firing_from: float | None = None
    end: float | None = None
    end_reason: EndReason | None = None
    unknown_from: float | None = None
    rows: list[int] = field(default_factory=list)
    last_row: int = 0
    seen_from: float = 0.0
    """Its first poll."""
    state: State = "pending"
    """By the latest poll that showed it."""

    @property
    def evidence(self) -> list[int]:
        return self.rows if self.last_row in self.rows else [*self.rows, self.last_row]


@dataclass
class History:
    """What is known of all alerts of one name."""

    episodes: list[Episode] = field(default_factory=list)
    replaced: int = 0
    """Episodes in a row that were replaced by one with other labels."""
    unstable: bool = False
    resets: list[Episode] = field(default_factory=list)
    broken_from: float | None = None
    """Since when the rule's evaluation fails; None while it works."""
    broken_row: int = 0
    ever_broken: bool = False
    unevaluated: bool = False
    """Its rule has not been evaluated yet."""
    ever_unevaluated: bool = False
    rule: Rule | None = None
    """The one that fails, if one of that name does."""


_Key = tuple[str, tuple[tuple[str, str], ...]]


class AlertPolls:
    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.by_name: dict[str, History] = {}
        self._open: dict[_Key, Episode] = {}
        self._blind: float | None = None
        """Since when polls fail."""
        self.polls = 0
        self.failed: list[int] = []
        self._down_before: list[str] = []

    @property
    def episodes(self) -> list[Episode]:
        """All episodes by their first poll."""
        return sorted(
            (episode for history in self.by_name.values() for episode in history.episodes), key=lambda e: e.rows[0]
        )

    def feed(self, row: Alerts) -> None:
        self.polls += 1
        if not row.ok:
            self.failed.append(row.id)
            self._blind = row.at if self._blind is None else self._blind
            return
        was_blind, self._blind = self._blind is not None, None
        self._rules(row)
        seen = {_key(alert): alert for alert in row.alerts}
        ended = [key for key in self._open if key not in seen]
        fresh = {key for key in seen if key not in self._open}
        for key in ended:
            self._end(key, row, fresh, was_blind)
        for key, alert in seen.items():
            if key in self._open and _began_anew(self._open[key], alert):
                self._end(key, row, set(), was_blind=True)
        for key, alert in seen.items():
            self._show(key, alert, row)
        self._down_before = row.down

    def _rules(self, row: Alerts) -> None:
        by_name: dict[str, list[Rule]] = {}
        for rule in row.rules:
            by_name.setdefault(rule.name, []).append(rule)
        for name, rules in by_name.items():
            history = self.by_name.setdefault(name, History())
            # Rules may share a name (one a severity): the name is known only as well as the worst of them.
            broken = next((rule for rule in rules if rule.health not in (HEALTHY, UNEVALUATED)), None)
            history.rule = broken or history.rule or rules[0]
            history.unevaluated = any(rule.health == UNEVALUATED for rule in rules)
            history.ever_unevaluated = history.ever_unevaluated or history.unevaluated
            if broken is None:
                history.broken_from = None
            elif history.broken_from is None:
                history.broken_from, history.broken_row, history.ever_broken = row.at, row.id, True

    def _end(self, key: _Key, row: Alerts, fresh: set[_Key], was_blind: bool) -> None:
        episode = self._open.pop(key)
        episode.end, episode.last_row = row.at, row.id
        history = self.by_name[episode.name]
        replaced = any(name == episode.name and _shares_labels(labels, key[1]) for name, labels in fresh)
        history.replaced = history.replaced + 1 if replaced else 0
        if was_blind or history.broken_from is not None or history.unevaluated:
            episode.end_reason = "unknown"
        elif self._failed_scrape(episode, row):
            # The series went away with a failed scrape: the condition is not known to be over.
            episode.end_reason = "staleness_reset"
            history.resets.append(episode)
        elif replaced:
            episode.end_reason = "label_identity_unstable"
            never_fired = all(one.firing_from is None for one in history.episodes)
            history.unstable = history.unstable or (never_fired and history.replaced >= UNSTABLE_AFTER - 1)
        else:
            episode.end_reason = "resolved"

    def _failed_scrape(self, episode: Episode, row: Alerts) -> bool:
        """Whether a target was down in this poll or the one before: the alert's own, where it names one."""
        down = [*self._down_before, *row.down]
        instance = episode.labels.get("instance")
        return bool(down) if instance is None else instance in down

    def _show(self, key: _Key, alert: Alert, row: Alerts) -> None:
        history = self.by_name.setdefault(alert.name, History())
        episode = self._open.get(key)
        if episode is None:
            episode = Episode(alert.name, alert.labels, alert.active_time, seen_from=row.at)
            self._open[key] = episode
            history.episodes.append(episode)
            episode.rows.append(row.id)
        episode.state = alert.state
        if alert.state == "pending" and episode.pending_from is None:
            episode.pending_from = row.at
        if alert.state == "firing" and episode.firing_from is None:
            episode.firing_from = row.at
            if row.id not in episode.rows:
                episode.rows.append(row.id)
        episode.last_row = row.id
        if history.broken_from is not None and episode.unknown_from is None:
            episode.unknown_from = history.broken_from

    def state(self, name: str) -> State | None:
        """State now. None where it is not known: no poll, the last one failed, no such rule, a rule whose
        evaluation fails (its old state is frozen), or silence of one that was not evaluated yet."""
        history = self.by_name.get(name)
        if history is None or self.polls == 0 or self._blind is not None or history.broken_from is not None:
            return None
        states = {episode.state for (alert, _), episode in self._open.items() if alert == name}
        if "firing" in states:
            return "firing"
        if history.unevaluated:
            return None
        return "pending" if states else "inactive"

    def early(self, name: str, before: float | None) -> list[Episode]:
        """Episodes that began before an instant (the first fault): not that fault's doing, whenever they fired."""
        history = self.by_name.get(name)
        if history is None or before is None:
            return []
        return [episode for episode in history.episodes if self._began_by(episode) <= before]

    def _began_by(self, episode: Episode) -> float:
        """The latest instant at which it can have begun: its first poll, or by Prometheus' own clock."""
        if episode.active_time is None:
            return episode.seen_from
        return min(episode.seen_from, self._clocks.interval(episode.active_time, "prometheus").high)

    def fired(self, name: str, since: float | None = None) -> bool | None:
        """Whether it fired, by an episode that began after `since` (the first fault; None: at any time).

        None where silence proves nothing: it was not watched throughout, its rule failed or was not evaluated, its
        labels change with every evaluation, failed scrapes reset it, or it was there before and still then.
        """
        history = self.by_name.get(name)
        if history is None:
            return None
        early = self.early(name, since)
        firing = [one for one in history.episodes if one.firing_from is not None and one not in early]
        if any(e.unknown_from is None or (e.firing_from or 0.0) < e.unknown_from for e in firing):
            return True
        blinded = bool(self.failed) or history.ever_broken or history.ever_unevaluated
        masked = any(since is not None and (e.end is None or e.end > since) for e in early)
        return None if blinded or masked or history.unstable or history.resets or firing else False

    def evidence(self, name: str) -> list[int]:
        history = self.by_name.get(name)
        if history is None:
            return []
        rows = [row for episode in history.episodes for row in episode.evidence]
        return rows + ([history.broken_row] if history.ever_broken else [])


def _key(alert: Alert) -> _Key:
    return alert.name, tuple(sorted(alert.labels.items()))


def _shares_labels(a: tuple[tuple[str, str], ...], b: tuple[tuple[str, str], ...]) -> bool:
    """Whether two label sets have the same names and differ in some values only, not in what they are about: the same
    alert, renamed."""
    if [name for name, _ in a] != [name for name, _ in b]:
        return False
    changed = {name for (name, value), (_, other) in zip(a, b, strict=True) if value != other}
    return bool(changed) and not changed & TARGET_LABELS


def _began_anew(episode: Episode, alert: Alert) -> bool:
    """Whether the same labels show a new episode: between two polls it ended and began again, or Prometheus lost its
    state in a restart. Which of them cannot be told."""
    if episode.state == "firing" and alert.state == "pending":
        return True
    if episode.active_time is None or alert.active_time is None:
        return False
    return unix(alert.active_time)[0] > unix(episode.active_time)[0]

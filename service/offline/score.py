"""How good are the rules? Matches held against the labels that `samovar generate` writes next to its events.

A rule is for the kinds that its tags name (`detects:card-testing`), else for the kind that is called like the rule.
An alert is true when at least one event that it lists belongs to a planted incident of such a kind; an incident is
found when at least one true alert lists one of its events. A rule that is for nothing planted (a report, say) has
alerts and no marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any, Protocol

from rich.console import Console
from rich.table import Table

from samovar.common.errors import UsageError
from samovar.service.offline.match import MatchRun, open_events

DETECTS = "detects:"
MISSED_SHOWN = 20

Labels = Mapping[int, tuple[str, str]]


def write_score(run: MatchRun, labels: Labels, out: IO[bytes]) -> None:
    """A table, or with --json one JSON object."""
    matches = (match for found in run.matches() for match in found)
    result = score(matches, labels, detects(plan.rule for plan in run.program.rules))
    if run.options.json:
        out.write(render_json(result).encode() + b"\n")
        return

    console = Console(width=100)
    with console.capture() as capture:
        console.print(render_table(result))
    out.write(capture.get().encode())


class RuleTags(Protocol):
    """What is read of a rule."""

    @property
    def id(self) -> str: ...

    @property
    def tags(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class RuleScore:
    """`precision` is None without alerts or marks, `recall` without planted incidents. `missed` is cut at 20."""

    rule: str
    kinds: tuple[str, ...]
    alerts: int
    true_alerts: int
    planted: int
    found: int
    precision: float | None
    recall: float | None
    missed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Of all rules that are for something planted: what they found together. `unwatched` kinds have no rule."""

    rules: tuple[RuleScore, ...]
    planted: int
    found: int
    recall: float | None
    unwatched: tuple[str, ...]


def read_labels(path: str) -> dict[int, tuple[str, str]]:
    """0-based line number -> (kind, incident) of the planted events, as `samovar generate` writes them."""
    labels: dict[int, tuple[str, str]] = {}
    with open_events(path) as source:
        for number, line in enumerate(b"".join(source.blocks()).splitlines(), 1):
            try:
                label = json.loads(line)
                labels[int(label["line"])] = str(label["kind"]), str(label["incident"])
            except (ValueError, TypeError, KeyError) as error:
                raise UsageError(f"{path}:{number}: not a label with `line`, `kind` and `incident`") from error
    return labels


def detects(rules: Iterable[RuleTags]) -> dict[str, frozenset[str]]:
    """Rule id -> the kinds that it is for."""
    return {rule.id: _kinds(rule) for rule in rules}


def score(
    matches: Iterable[Mapping[str, Any]], labels: Labels, detects: Mapping[str, frozenset[str]] | None = None
) -> Score:
    """Matches are those of `samovar match` (`steps` lists line numbers). Without `detects`, ids are the kinds.

    Rules in `detects` that made no match are scored too: with a recall of 0, if something was planted for them.
    """
    watched = dict(detects or {})
    alerts: dict[str, int] = dict.fromkeys(watched, 0)
    true_alerts: dict[str, int] = {}
    found: dict[str, set[str]] = {}
    for match in matches:
        rule = str(match["rule"])
        kinds = watched.setdefault(rule, frozenset({rule}))
        alerts[rule] = alerts.get(rule, 0) + 1
        hits = {label[1] for line in _lines_of(match) if (label := labels.get(line)) and label[0] in kinds}
        if hits:
            true_alerts[rule] = true_alerts.get(rule, 0) + 1
            found.setdefault(rule, set()).update(hits)
    planted = _planted(labels)
    scores = tuple(
        _rule_score(rule, watched[rule], alerts[rule], true_alerts.get(rule, 0), found.get(rule, set()), planted)
        for rule in sorted(alerts)
    )
    return _total(scores, watched, found, planted)


def render_table(result: Score) -> Table:
    """For people: one row per rule, and what was found together."""
    table = Table(title="Alerts against what was planted")
    for heading in ("rule", "alerts", "true", "planted", "found", "precision", "recall"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for row in result.rules:
        marked = row.planted > 0
        table.add_row(
            row.rule,
            f"{row.alerts:,}",
            f"{row.true_alerts:,}" if marked else "-",
            f"{row.planted:,}" if marked else "-",
            f"{row.found:,}" if marked else "-",
            _percent(row.precision),
            _percent(row.recall),
        )
    table.add_section()
    table.add_row("all", "", "", f"{result.planted:,}", f"{result.found:,}", "", _percent(result.recall))
    if result.unwatched:
        table.caption = f"no rule is for: {', '.join(result.unwatched)}"
    return table


def render_json(result: Score) -> str:
    """For programs: one JSON object."""
    return json.dumps(asdict(result), ensure_ascii=False)


def _kinds(rule: RuleTags) -> frozenset[str]:
    named = frozenset(tag.removeprefix(DETECTS) for tag in rule.tags if tag.startswith(DETECTS))
    return named or frozenset({rule.id})


def _lines_of(match: Mapping[str, Any]) -> Iterable[int]:
    for lines in match["steps"].values():
        yield from lines


def _planted(labels: Labels) -> dict[str, set[str]]:
    planted: dict[str, set[str]] = {}
    for kind, number in labels.values():
        planted.setdefault(kind, set()).add(number)
    return planted


def _rule_score(
    rule: str, kinds: frozenset[str], alerts: int, true_alerts: int, found: set[str], planted: Mapping[str, set[str]]
) -> RuleScore:
    meant = set().union(*(planted.get(kind, set()) for kind in kinds))
    return RuleScore(
        rule,
        tuple(sorted(kinds)),
        alerts,
        true_alerts,
        len(meant),
        len(found),
        _share(true_alerts, alerts) if meant else None,
        _share(len(found), len(meant)),
        tuple(sorted(meant - found)[:MISSED_SHOWN]),
    )


def _total(
    scores: tuple[RuleScore, ...],
    watched: Mapping[str, frozenset[str]],
    found: Mapping[str, set[str]],
    planted: Mapping[str, set[str]],
) -> Score:
    kinds = set().union(*watched.values())
    meant = set().union(*(numbers for kind, numbers in planted.items() if kind in kinds))
    together = set().union(*found.values())
    unwatched = tuple(sorted(set(planted) - kinds))
    return Score(scores, len(meant), len(together), _share(len(together), len(meant)), unwatched)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"

"""How good are the rules? Matches held against the frauds that `samovar generate` planted.

A rule is for the kinds that its tags name (`detects:card-testing`), else for the kind that is called like the rule.
An alert is true when at least one event that it lists belongs to a planted incident of such a kind; an incident is
found when at least one true alert lists one of its events. A rule that is for nothing planted (a report, say) has
alerts and no marks.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from samovar.common.errors import UsageError
from samovar.patterns.syntax.tree import Rule
from samovar.service.offline.match import MatchRun, open_events

DETECTS = "detects:"
MISSED_SHOWN = 20

Labels = Mapping[int, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of all rules that are for something planted: what they found together. `unwatched` kinds have no rule."""

    rules: tuple[RuleScore, ...]
    planted: int
    found: int
    recall: float | None
    unwatched: tuple[str, ...]


def write_score(run: MatchRun, labels: Labels, out: IO[bytes]) -> None:
    """A table, or with --json one JSON object."""
    matches = (match for found in run.matches() for match in found)
    result = score(matches, labels, detects(plan.rule for plan in run.program.rules))
    if run.options.json:
        out.write(json.dumps(asdict(result), ensure_ascii=False).encode() + b"\n")
        return
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render_table(result))
    out.write(capture.get().encode())


def read_labels(path: str) -> dict[int, tuple[str, str]]:
    """0-based line number -> (kind, incident) of the planted events, as `samovar generate` writes them."""
    labels: dict[int, tuple[str, str]] = {}
    with open_events(path) as source:
        for number, line in enumerate(b"".join(source.blocks).splitlines(), 1):
            try:
                label = json.loads(line)
                labels[int(label["line"])] = str(label["kind"]), str(label["incident"])
            except (ValueError, TypeError, KeyError) as error:
                raise UsageError(f"{path}:{number}: not a label with `line`, `kind` and `incident`") from error
    return labels


def detects(rules: Iterable[Rule]) -> dict[str, frozenset[str]]:
    """Rule id -> the kinds that it is for."""
    tags = {rule.id: [tag.removeprefix(DETECTS) for tag in rule.tags if tag.startswith(DETECTS)] for rule in rules}
    return {rule: frozenset(kinds or [rule]) for rule, kinds in tags.items()}


def score(
    matches: Iterable[Mapping[str, Any]], labels: Labels, detects: Mapping[str, frozenset[str]] | None = None
) -> Score:
    """Matches are those of `samovar match` (`steps` lists line numbers). Without `detects`, ids are the kinds.

    Rules in `detects` that made no match are scored too: with a recall of 0, if something was planted for them.
    """
    watched = dict(detects or {})
    planted: defaultdict[str, set[str]] = defaultdict(set)
    for kind, incident in labels.values():
        planted[kind].add(incident)
    alerts: Counter[str] = Counter()
    true_alerts: Counter[str] = Counter()
    found: defaultdict[str, set[str]] = defaultdict(set)
    for match in matches:
        rule = str(match["rule"])
        kinds = watched.setdefault(rule, frozenset({rule}))
        events = [labels[line] for lines in match["steps"].values() for line in lines if line in labels]
        hits = {incident for kind, incident in events if kind in kinds}
        alerts[rule] += 1
        true_alerts[rule] += bool(hits)
        found[rule] |= hits

    def planted_for(kinds: Iterable[str]) -> set[str]:
        return {incident for kind in kinds for incident in planted.get(kind, ())}

    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    scores = []
    for rule, kinds in sorted(watched.items()):
        meant = planted_for(kinds)
        scores.append(
            RuleScore(
                rule=rule,
                kinds=tuple(sorted(kinds)),
                alerts=alerts[rule],
                true_alerts=true_alerts[rule],
                planted=len(meant),
                found=len(found[rule]),
                precision=share(true_alerts[rule], alerts[rule]) if meant else None,
                recall=share(len(found[rule]), len(meant)),
                missed=tuple(sorted(meant - found[rule])[:MISSED_SHOWN]),
            )
        )
    kinds = frozenset().union(*watched.values())
    meant, together = planted_for(kinds), set().union(*found.values())
    unwatched = tuple(sorted(set(planted) - kinds))
    return Score(
        rules=tuple(scores),
        planted=len(meant),
        found=len(together),
        recall=share(len(together), len(meant)),
        unwatched=unwatched,
    )


def render_table(result: Score) -> Table:
    """For people: one row per rule, and what was found together."""
    table = Table(title="Alerts against what was planted")
    for heading in ("rule", "alerts", "true", "planted", "found", "precision", "recall"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for row in result.rules:
        counts = [f"{count:,}" if row.planted else "-" for count in (row.true_alerts, row.planted, row.found)]
        table.add_row(row.rule, f"{row.alerts:,}", *counts, _percent(row.precision), _percent(row.recall))
    table.add_section()
    table.add_row("all", "", "", f"{result.planted:,}", f"{result.found:,}", "", _percent(result.recall))
    if result.unwatched:
        table.caption = f"no rule is for: {', '.join(result.unwatched)}"
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"

"""What a run found: matches as frozen data, with counters, and ways to look at them."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, overload

from samovar.common.arrow import require_arrow
from samovar.patterns.engine.matcher import Counters
from samovar.patterns.engine.replay import LateLine
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.syntax.tree import Scalar

SHOWN_MATCHES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One match. Times are epoch ms; `steps` lists events by row or line number from 0. Equal when the ids are."""

    rule: str
    version: str = field(compare=False)
    id: str
    key: Mapping[str, Scalar] = field(hash=False)
    start: int
    end: int
    at: int
    steps: Mapping[str, tuple[int, ...]] = field(hash=False)
    emit: Mapping[str, Any] = field(hash=False)
    message: str | None = None
    suppressed: bool = False

    @staticmethod
    def of(record: Mapping[str, Any]) -> Match:
        """From a line of `samovar match`."""
        given = {item.name: record[item.name] for item in fields(Match) if item.name in record}
        return Match(**given | {"steps": {name: tuple(places) for name, places in record["steps"].items()}})

    def as_dict(self) -> dict[str, Any]:
        """As `samovar match` prints it."""
        record = {item.name: getattr(self, item.name) for item in fields(self)}
        steps = {name: list(places) for name, places in self.steps.items()}
        record |= {"key": dict(self.key), "steps": steps, "emit": dict(self.emit)}
        left_out = [("message", None), ("suppressed", False)]
        return {name: value for name, value in record.items() if (name, value) not in left_out}

    def has(self, **wanted: Any) -> bool:
        """Whether it has these values, for tests; of `emit` and `key` only the named entries.

        `match.has(rule="card-testing", key={"card": "c1"}, emit={"probes": 3})`
        """
        for name, value in wanted.items():
            found = getattr(self, name)
            if name in ("emit", "key"):
                if any(entry not in found or found[entry] != inner for entry, inner in value.items()):
                    return False
            elif name == "steps":
                if {step: list(places) for step, places in found.items()} != {k: list(v) for k, v in value.items()}:
                    return False
            elif found != value:
                return False
        return True


@dataclass(frozen=True, slots=True)
class BadEvent:
    """An event that could not be read: its row or line from 0, and why."""

    place: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run found. As a sequence it holds the matches that were not suppressed.

    `all_matches` has the suppressed ones too, where the run was told to keep them; `events` counts what was read;
    `counters` has one entry per rule.
    """

    all_matches: tuple[Match, ...]
    events: int
    counters: Mapping[str, Counters] = field(hash=False)
    late: tuple[LateLine, ...] = ()
    bad: tuple[BadEvent, ...] = ()

    @property
    def matches(self) -> list[Match]:
        return [match for match in self.all_matches if not match.suppressed]

    def __len__(self) -> int:
        return len(self.matches)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    @overload
    def __getitem__(self, place: int) -> Match: ...
    @overload
    def __getitem__(self, place: slice) -> list[Match]: ...
    def __getitem__(self, place: int | slice) -> Match | list[Match]:
        return self.matches[place]

    def __bool__(self) -> bool:
        """A result is a result, also when nothing was found."""
        return True

    def of(self, rule: str) -> list[Match]:
        """The matches of one rule."""
        return [match for match in self.matches if match.rule == rule]

    def to_arrow(self) -> Any:
        """A pyarrow table, a row per match: key and emit as JSON text, steps as a map, times as UTC instants."""
        require_arrow("Arrow tables and data frames")
        import pyarrow as pa  # noqa: PLC0415 - takes longer to import than all the rest

        instant = pa.timestamp("ms", "UTC")
        shown = self.matches
        columns: dict[str, tuple[Any, list[Any]]] = {
            "rule": (pa.string(), [match.rule for match in shown]),
            "version": (pa.string(), [match.version for match in shown]),
            "id": (pa.string(), [match.id for match in shown]),
            "key": (pa.string(), [json.dumps(match.key, ensure_ascii=False) for match in shown]),
            "start": (instant, [match.start for match in shown]),
            "end": (instant, [match.end for match in shown]),
            "at": (instant, [match.at for match in shown]),
            "steps": (pa.map_(pa.string(), pa.list_(pa.int64())), [list(match.steps.items()) for match in shown]),
            "emit": (pa.string(), [json.dumps(match.emit, ensure_ascii=False) for match in shown]),
            "message": (pa.string(), [match.message for match in shown]),
        }
        return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})

    def __repr__(self) -> str:
        told = [f"{len(self):,} match{'es' * (len(self) != 1)} in {self.events:,} event{'s' * (self.events != 1)}"]
        told += [f"{len(self.late):,} late"] * bool(self.late) + [f"{len(self.bad):,} bad"] * bool(self.bad)
        return f"<Result: {', '.join(told)}>"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        shown = self.matches[:SHOWN_MATCHES]
        head = "".join(f"<th>{name}</th>" for name in ("rule", "key", "at", "message", "emit"))
        rows = ""
        for match in shown:
            key = ", ".join(f"{name}={value}" for name, value in match.key.items())
            emit = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in match.emit.items())
            cells = (match.rule, key, iso_time(match.at), match.message or "", emit)
            rows += f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        left = len(self) - len(shown)
        more = f"<p>and {left:,} more</p>" if left else ""
        caption = html.escape(repr(self)[len("<Result: ") : -1])
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"

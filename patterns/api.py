"""The public API in Python: load rules, run them over events, look at what they found.

    rules = samovar.load_rules("rules/")
    result = rules.run("events.jsonl")
    for match in result:
        print(match.rule, match.key, match.message)

Events are a path to JSON lines (gzip or not), a list of dicts, an Arrow table, batch or reader, a polars or pandas data
frame, or an iterator of any of the last. Nothing needs a server.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from samovar.common.arrow import require_arrow
from samovar.native.kernel import Batch, joined
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_MATCHES, MAX_PARTIALS
from samovar.patterns.engine.replay import EventReplay, LateLine, Lines
from samovar.patterns.result import BadEvent, Match, Result
from samovar.patterns.rulefile.loading import load_set, rendered
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.findings import Finding
from samovar.patterns.syntax.tree import Rule

BLOCK_BYTES = 4 << 20
ROWS_A_BATCH = 16_384
GZIP_MAGIC = b"\x1f\x8b"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

__all__ = ["BadEvent", "Match", "Result", "RuleError", "Rules", "check", "load_rules"]


class RuleError(ValueError):
    """Rules that cannot run. `findings` has every error, and the text shows them with their lines."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__(rendered(findings))
        self.findings = findings


class Rules:
    """Rules, ready to run. Immutable; every run starts from nothing."""

    def __init__(self, rules: Iterable[Rule], findings: Iterable[Finding] = ()) -> None:
        self.rules = tuple(rules)
        self.findings = tuple(findings)
        if not self.rules:
            raise ValueError("there are no rules to run: give a rule file or a folder of them")

    @cached_property
    def program(self) -> Program:
        return compile_rules(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __repr__(self) -> str:
        return f"<Rules: {', '.join(rule.id for rule in self.rules)}>"

    def run(  # noqa: PLR0913 - each is what the command has an option for
        self,
        events: Any,
        *,
        time: str = "ts",
        type: str | None = "type",
        fixed_type: str = "",
        slack: str | int | None = None,
        flush: bool = True,
        missing: str = "error",
        max_partials: int = MAX_PARTIALS,
        max_events: int = MAX_EVENTS,
        max_matches: int = MAX_MATCHES,
        suppressed: bool = False,
    ) -> Result:
        """Run the rules over events, as `samovar match` does.

        `time` and `type` name the fields that hold an event's time and type; with `type=None` all are of `fixed_type`.
        `slack` ("5s", or ms) repairs that much disorder and counts the rest as late; without it events may stand in any
        order. `missing` says what a data frame without a column that the rules read is: "error", or "null". With
        `suppressed`, the matches that `suppress` holds back are kept in the result's `all_matches`.
        """
        if missing not in ("error", "null"):
            raise ValueError(f'missing is "error" or "null", not {missing!r}')
        if slack is not None and (isinstance(slack, bool) or not isinstance(slack, int) or slack < 0):
            slack_ms = duration_ms(slack) if isinstance(slack, str) else None
            if slack_ms is None:
                raise ValueError(f'slack is a time such as "5s", or whole ms, not {slack!r}')
            slack = slack_ms
        late: list[LateLine] = []
        bad: list[BadEvent] = []
        matches: list[Match] = []
        replay = EventReplay(
            self.program, slack_ms=slack, flush=flush, max_partials=max_partials, max_events=max_events,
            max_matches=max_matches, show_suppressed=suppressed, on_late=late.append,
        )  # fmt: skip
        for batch in _batches(events, self.program.fields, time, type, fixed_type, missing, bad):
            matches += [Match.of(record) for found in replay.take(batch) for record in found]
        matches += [Match.of(record) for found in replay.finish() for record in found]
        counters = {plan.rule.id: replay.states.counters(number) for number, plan in enumerate(self.program.rules)}
        return Result(
            all_matches=tuple(matches), events=replay.events, counters=counters, late=tuple(late), bad=tuple(bad)
        )


def load_rules(
    *paths: str | Path,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    params: Mapping[str, Any] | None = None,
    lists: Mapping[str, Any] | None = None,
) -> Rules:
    """The rules of files and folders. Raises RuleError with every error of all of them."""
    loaded = load_set(paths, params=params, lists=lists, schema=_schema(schema))
    if loaded.errors:
        raise RuleError(loaded.errors)
    return Rules(loaded.rules, loaded.findings)


def check(
    *paths: str | Path,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    params: Mapping[str, Any] | None = None,
    lists: Mapping[str, Any] | None = None,
) -> tuple[Finding, ...]:
    """What there is to say about rule files: errors and warnings, in the order of the files. Nothing is raised."""
    return load_set(paths, params=params, lists=lists, schema=_schema(schema)).findings


def _schema(schema: Schema | Mapping[str, Any] | str | Path | None) -> Schema | None:
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return Schema.of(schema)
    return Schema.parse(Path(schema).read_text("utf-8"))


def _batches(
    events: Any,
    fields: tuple[str, ...],
    time: str,
    type: str | None,
    fixed_type: str,
    missing: str,
    bad: list[BadEvent],
) -> Iterator[Batch]:
    decoder = Decoder(fields, time, type, fixed_type)
    if isinstance(events, str | Path):
        yield from _of_file(Path(events), decoder, bad)
        return
    if isinstance(events, Mapping):
        raise TypeError("one event alone: give a list of them")
    if not _is_frame(events):
        wanted = "events are dicts, data frames or a path to JSON lines"
        try:
            rest = iter(events)
        except TypeError:
            raise TypeError(f"{wanted}, not {events.__class__.__name__}") from None
        first = next(rest, None)
        events = rest if first is None else chain([first], rest)
        if first is None or isinstance(first, Mapping):
            yield from _of_dicts(events, decoder, bad)
            return
        if not _is_frame(first):
            raise TypeError(f"{wanted}, not {first.__class__.__name__}")
    require_arrow("data frames")
    from samovar.patterns.engine import frames  # noqa: PLC0415 - pyarrow takes longer to import than all the rest

    made = frames.Frames(
        fields=fields,
        time=time,
        type=type,
        fixed_type=fixed_type,
        on_bad=lambda *fault: bad.append(BadEvent(*fault)),
        missing=missing,
    )
    for frame in frames.batches_of(events):
        yield made.take(frame)


def _is_frame(events: Any) -> bool:
    return any(hasattr(events, name) for name in ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__"))


def _of_file(path: Path, decoder: Decoder, bad: list[BadEvent]) -> Iterator[Batch]:
    lines = Lines(decoder, lambda line: bad.append(BadEvent(line.number - 1, line.reason)))
    with path.open("rb") as file:
        zipped = file.peek(2)[:2] == GZIP_MAGIC
        stream: Any = gzip.GzipFile(fileobj=file) if zipped else file
        while block := stream.read(BLOCK_BYTES):
            yield lines.take(block)
    yield lines.end()


def _of_dicts(events: Iterable[Mapping[str, Any]], decoder: Decoder, bad: list[BadEvent]) -> Iterator[Batch]:
    import numpy as np  # noqa: PLC0415 - with its kernel loaded already

    first, rest = 0, iter(events)
    while rows := list(islice(rest, ROWS_A_BATCH)):
        messages = joined([message_of(row) for row in rows])
        batch = decoder.batch()
        offsets = np.arange(first, first + len(rows))
        verdicts = decoder.decode(batch, messages, offsets=offsets, copy=True)
        for place in np.flatnonzero(verdicts["code"]).tolist():
            bad.append(BadEvent(first + place, decoder.bad(verdicts[place], messages[place]).reason))
        first += len(rows)
        yield batch


def message_of(event: Mapping[str, Any]) -> bytes:
    """An event as JSON."""
    if not isinstance(event, Mapping):
        raise TypeError(f"an event is a dict, and this is {event.__class__.__name__}: {event!r:.80}")
    try:
        text = json.dumps(event, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        # Not a number is not a value.
        text = json.dumps(_without_nan(event), ensure_ascii=False, default=_plain)
    return text.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    """What JSON has no word for: instants as epoch ms, decimals as numbers, numpy's scalars as Python's."""
    if isinstance(value, datetime):
        value = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - EPOCH
    elif isinstance(value, date):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC) - EPOCH
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if hasattr(value, "item"):
        return value.item()
    return str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return value

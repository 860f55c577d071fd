"""`samovar match RULE... EVENTS`: rules over a file of events, without a server.

Exit codes: 0 fine, 1 a rule has errors, 2 wrong usage or a file that cannot be read, 3 some lines were bad.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any

from samovar.common.errors import UsageError
from samovar.common.progress import Progress
from samovar.common.texts import counted
from samovar.common.times import duration_text
from samovar.patterns.engine.compile import CompileError, Program, compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_MATCHES, MAX_PARTIALS, Matches, RuleFailure
from samovar.patterns.engine.replay import BadLine, EventReplay, LateLine, Lines
from samovar.patterns.rulefile.loading import RuleSet, SettingError, load_set, rendered
from samovar.patterns.semantics.schema import Schema

FINE, RULE_ERRORS, USAGE, BAD_LINES = 0, 1, 2, 3
BLOCK_BYTES = 4 << 20
SAMPLED_LINES = 1_000
GZIP_MAGIC = b"\x1f\x8b"
FIELD_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')


@dataclass(frozen=True, kw_only=True)
class MatchRunOptions:
    slack_ms: int | None = None
    flush: bool = True
    type: str | None = None  # of all events, which then need no field for it
    type_field: str = "type"
    time_field: str = "ts"
    all: bool = False
    quiet: bool = False
    schema: Schema | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    lists: Mapping[str, Any] = field(default_factory=dict)
    max_partials: int = MAX_PARTIALS
    max_events: int = MAX_EVENTS
    max_matches: int = MAX_MATCHES
    explain: str | None = None
    score: str | None = None  # the file of labels
    json: bool = False

    @property
    def replay(self) -> dict[str, Any]:
        """What a replay of events is told."""
        names = ("slack_ms", "flush", "max_partials", "max_events", "max_matches")
        return {name: getattr(self, name) for name in names}

    def decoder(self, program: Program) -> Decoder:
        type_field = self.type_field if self.type is None else None
        return Decoder(program.fields, self.time_field, type_field, self.type or "")


def match(rule_paths: Sequence[str], events: str, options: MatchRunOptions, out: IO[bytes], err: IO[str]) -> int:
    """Runs the command and gives its exit code."""
    try:
        with open_events(events, live=options.slack_ms is not None) as source:
            return _match(rule_paths, source, options, out, err)
    except (UsageError, SettingError, CompileError) as error:
        err.write(f"samovar: {error}\n")
        return USAGE
    except RuleFailure as failure:
        err.write(f"samovar: {failure}\n  {failure.hint}\n")
        return RULE_ERRORS


def _match(rule_paths: Sequence[str], source: EventFile, options: MatchRunOptions, out: IO[bytes], err: IO[str]) -> int:
    settings: dict[str, Any] = {"params": options.params, "lists": options.lists, "schema": options.schema}
    rules = load_set(rule_paths, **settings)
    if options.schema is None and suspicions_only(rules):
        # Without a schema the names of the events' fields show what is a slip.
        known = sampled_fields(source.first())
        rules = load_set(rule_paths, **settings, known_fields=known)
        if suspicions_only(rules) and source.path is not None:
            # A field that only later events have is no slip: look at all of them before saying so.
            known |= named_fields(source.repeatable()())
            rules = load_set(rule_paths, **settings, known_fields=known)
    shown = rules.errors if options.quiet else rules.findings
    if shown:
        err.write(rendered(shown) + "\n")
    if rules.errors:
        return USAGE if rules.unreadable else RULE_ERRORS
    program = compile_rules(rules.rules)
    if options.explain is not None:
        from samovar.service.offline.explain import explain  # noqa: PLC0415 - seldom asked for, and a cycle

        return explain(program, source, options, out, err)
    run = MatchRun(program, source, options, err)
    if options.score is not None:
        from samovar.service.offline.score import read_labels, write_score  # noqa: PLC0415 - seldom asked for, and a cycle

        write_score(run, read_labels(options.score), out)
    else:
        for found in run.matches():
            if found:
                out.write(found.text)
                out.flush()
    run.report()
    return BAD_LINES if run.bad else FINE


# ---------------------------------------------------------------- a run


class MatchRun:
    """One pass over the events. Tells of bad and late lines as they come, and counts everything."""

    def __init__(self, program: Program, source: EventFile, options: MatchRunOptions, err: IO[str]) -> None:
        self.program, self.source, self.options, self.err = program, source, options, err
        self.bad = self._untyped = 0
        self.lines = Lines(options.decoder(program), self._on_bad)
        self.replay = EventReplay(program, **options.replay, show_suppressed=options.all, on_late=self._on_late)
        self.progress = Progress(err, quiet=options.quiet)

    def matches(self) -> Iterator[Matches]:
        for block in self.source.blocks:
            yield from self.replay.take(self.lines.take(block))
            self.progress.reading(self.replay.events, self.source.fraction())
        yield from self.replay.take(self.lines.end())
        for found in self.replay.finish():
            yield found
            self.progress.matching(self.replay.events)
        self.progress.clear()

    def _on_bad(self, line: BadLine) -> None:
        self.bad += 1
        self._untyped += line.kind == "MISSING_TYPE"
        self.progress.clear()
        self.err.write(f"{self.source.name}:{line}\n")

    def _on_late(self, late: LateLine) -> None:
        self.progress.clear()
        by, slack = duration_text(late.by_ms), duration_text(self.options.slack_ms or 0)
        self.err.write(f"{self.source.name}:{late.offset + 1}: late by {by} beyond the slack of {slack}, not matched\n")

    def report(self) -> None:
        """What was dropped, one line per rule; then a summary."""
        states = self.replay.states
        counters = [(plan.rule.id, states.counters(number)) for number, plan in enumerate(self.program.rules)]
        for rule, count in counters:
            for number, what, setting in (
                (count.dropped_partials, "partial matches dropped, the oldest first", "max-partials"),
                (count.dropped_events, "held events dropped, the oldest first", "max-events"),
                (count.dropped_matches, "matches dropped, the first of each event are kept", "max-matches"),
            ):
                if number:
                    self.err.write(f"{rule}: {number:,} {what}; --{setting} allows more\n")
        if forgotten := states.dropped_history():
            self.err.write(
                f"history functions: {forgotten:,} events dropped, the oldest first; --max-events allows more\n"
            )
        if self._untyped and not self.replay.events:
            self.err.write("no event has a type: where all are of one, name it, as in `--type purchase`\n")
        found = sum(count.matches for _, count in counters)
        told = [counted(self.replay.events, "event"), counted(found, "match", "matches")]
        suppressed = sum(count.suppressed for _, count in counters)
        unusual = [f"{suppressed:,} suppressed"] if suppressed else []
        unusual += [counted(self.bad, "bad line")] if self.bad else []
        unusual += [f"{self.replay.late:,} late"] if self.replay.late else []
        unusual += [f"{count.no_key:,} without a key for {rule}" for rule, count in counters if count.no_key]
        # A run that went well and that no person watches has nothing to say.
        if not self.options.quiet and (unusual or self.err.isatty()):
            self.err.write(", ".join(told + unusual) + "\n")


# ---------------------------------------------------------------- the events


class EventFile:
    """Where events come from: a file or standard input, gzip or not. Read once, from the beginning."""

    def __init__(self, name: str, raw: Any, size: int | None, live: bool) -> None:
        self.name = name
        # Where it can be read a second time: not a pipe, be it named or made by the shell.
        self.path = Path(name) if size is not None and Path(name).is_file() else None
        self._raw, self._size = raw, size
        stream: Any = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
        if stream.peek(2)[:2] == GZIP_MAGIC:
            stream = gzip.GzipFile(fileobj=stream)
        # A live reader takes what is there; otherwise whole blocks are cheaper.
        self.blocks: Iterator[bytes] = self._read(getattr(stream, "read1", stream.read) if live else stream.read)

    def _read(self, read: Callable[[int], bytes]) -> Iterator[bytes]:
        try:
            while block := read(BLOCK_BYTES):
                yield block
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"cannot read {self.name}: {getattr(error, 'strerror', None) or error}") from error

    def first(self) -> bytes:
        """The first block, which `blocks` will give again."""
        block = next(self.blocks, b"")
        self.blocks = chain([block], self.blocks)
        return block

    def repeatable(self) -> Callable[[], Iterator[bytes]]:
        """What gives all blocks as often as it is called: a file is opened again, else they are kept in memory."""
        if self.path is None:
            kept = list(self.blocks)
            self.blocks = iter(kept)
            return lambda: iter(kept)

        def reopened() -> Iterator[bytes]:
            with open_events(self.name) as again:
                yield from again.blocks

        return reopened

    def fraction(self) -> float | None:
        """How much of the file has been read; None where that is not known."""
        return min(1.0, self._raw.tell() / self._size) if self._size else None


@contextmanager
def open_events(path: str, live: bool = False) -> Iterator[EventFile]:
    """A file, or standard input for `-`."""
    if path == "-":
        yield EventFile("<stdin>", sys.stdin.buffer, None, live)
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - closed below; only opening it is our reader's fault
        source = EventFile(path, file, Path(path).stat().st_size, live)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        yield source


# ---------------------------------------------------------------- names of fields


def suspicions_only(rules: RuleSet) -> bool:
    """Whether the names that events have could clear every error: other errors are told before any event is read."""
    return bool(rules.errors) and all(finding.id in ("unknown-step", "wrong-case") for finding in rules.errors)


def sampled_fields(block: bytes) -> frozenset[str]:
    """The field paths of the first events."""
    paths: set[str] = set()
    for line in block.removeprefix(b"\xef\xbb\xbf").split(b"\n", SAMPLED_LINES)[:SAMPLED_LINES]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            paths.update(event)
            paths.update(
                f"{name}.{inner}" for name, value in event.items() if isinstance(value, dict) for inner in value
            )
    return frozenset(paths)


def named_fields(blocks: Iterable[bytes]) -> frozenset[str]:
    """Every name in the events, whatever its depth."""
    names: set[bytes] = set()
    rest = b""
    for block in blocks:
        whole, line_end, rest = (rest + block).rpartition(b"\n")
        names.update(FIELD_NAME.findall(whole + line_end))
    names.update(FIELD_NAME.findall(rest))
    return frozenset(name.decode(errors="replace") for name in names)

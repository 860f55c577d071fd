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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from samovar.common.errors import UsageError
from samovar.common.progress import Progress
from samovar.common.texts import counted
from samovar.common.times import duration_text
from samovar.patterns.engine.compile import CompileError, Program, compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_MATCHES, MAX_PARTIALS, Counters, Matches, RuleFailure
from samovar.patterns.engine.replay import BadLine, EventReplay, LateLine, Lines
from samovar.patterns.rulefile.loading import RuleSet, SettingError, load_set, rendered
from samovar.patterns.semantics.schema import Schema

FINE, RULE_ERRORS, USAGE, BAD_LINES = 0, 1, 2, 3
BLOCK_BYTES = 4 << 20
SAMPLED_LINES = 1_000
GZIP_MAGIC = b"\x1f\x8b"
FIELD_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')


@dataclass(frozen=True)
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
    rules = load_checked(rule_paths, source, options)
    shown = rules.errors if options.quiet else rules.findings
    if shown:
        err.write(rendered(shown) + "\n")
    if rules.errors:
        return USAGE if rules.unreadable else RULE_ERRORS
    program = compile_rules(rules.rules)
    if options.explain is not None:
        from samovar.service.offline.explain import explain  # noqa: PLC0415 - seldom asked for

        return explain(program, source, options, out, err)
    run = MatchRun(program, source, options, err)
    if options.score is not None:
        from samovar.service.offline.score import read_labels, write_score  # noqa: PLC0415 - seldom asked for

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
        self.program = program
        self.source = source
        self.options = options
        self.err = err
        self.bad = self._untyped = 0
        self.lines = Lines(decoder_of(program, options), self.tell_bad)
        self.replay = EventReplay(
            program,
            slack_ms=options.slack_ms,
            flush=options.flush,
            max_partials=options.max_partials,
            max_events=options.max_events,
            max_matches=options.max_matches,
            show_suppressed=options.all,
            on_late=self.tell_late,
        )
        self.progress = Progress(err, quiet=options.quiet)

    def matches(self) -> Iterator[Matches]:
        for block in self.source.blocks():
            yield from self.replay.take(self.lines.take(block))
            self.progress.reading(self.replay.events, self.source.fraction())
        yield from self.replay.take(self.lines.end())
        for found in self.replay.finish():
            yield found
            self.progress.matching(self.replay.events)
        self.progress.clear()

    def tell_bad(self, line: BadLine) -> None:
        self.bad += 1
        self._untyped += line.kind == "MISSING_TYPE"
        self.progress.clear()
        self.err.write(f"{self.source.name}:{line}\n")

    def tell_late(self, late: LateLine) -> None:
        self.progress.clear()
        by, slack = duration_text(late.by_ms), duration_text(self.options.slack_ms or 0)
        self.err.write(f"{self.source.name}:{late.offset + 1}: late by {by} beyond the slack of {slack}, not matched\n")

    def report(self) -> None:
        """What was dropped, a line a rule; then a summary."""
        states = self.replay.states
        counters = [states.counters(number) for number in range(len(self.program.rules))]
        for plan, count in zip(self.program.rules, counters, strict=True):
            for number, what, setting in (
                (count.dropped_partials, "partial matches dropped, the oldest first", "max-partials"),
                (count.dropped_events, "held events dropped, the oldest first", "max-events"),
                (count.dropped_matches, "matches dropped, the first of each event are kept", "max-matches"),
            ):
                if number:
                    self.err.write(f"{plan.rule.id}: {number:,} {what}; --{setting} allows more\n")
        if forgotten := states.dropped_history():
            self.err.write(
                f"history functions: {forgotten:,} events dropped, the oldest first; --max-events allows more\n"
            )
        if self._untyped and not self.replay.events:
            self.err.write("no event has a type: where all are of one, name it, as in `--type purchase`\n")
        # A run that went well and that no person watches has nothing to say.
        told = [counted(self.replay.events, "event"), counted(sum(c.matches for c in counters), "match", "matches")]
        unusual = list(self.unusual(counters))
        if not self.options.quiet and (unusual or self.err.isatty()):
            self.err.write(", ".join(told + unusual) + "\n")

    def unusual(self, counters: Sequence[Counters]) -> Iterator[str]:
        if suppressed := sum(count.suppressed for count in counters):
            yield f"{suppressed:,} suppressed"
        if self.bad:
            yield counted(self.bad, "bad line")
        if self.replay.late:
            yield f"{self.replay.late:,} late"
        for plan, count in zip(self.program.rules, counters, strict=True):
            if count.no_key:
                yield f"{count.no_key:,} without a key for {plan.rule.id}"


def decoder_of(program: Program, options: MatchRunOptions) -> Decoder:
    field = options.type_field if options.type is None else None
    return Decoder(program.fields, options.time_field, field, options.type or "")


# ---------------------------------------------------------------- the events


class EventFile:
    """Where events come from: a file or standard input, gzip or not. Read once, from the beginning."""

    def __init__(self, name: str, stream: IO[bytes], raw: IO[bytes], size: int | None, live: bool) -> None:
        self.name = name
        # Where it can be read a second time: not a pipe, be it named or made by the shell.
        self.path = Path(name) if size is not None and Path(name).is_file() else None
        self._stream = stream
        self._raw = raw
        self._size = size
        # A live reader takes what is there; otherwise whole blocks are cheaper.
        self._read: Any = getattr(stream, "read1", stream.read) if live else stream.read
        self._first: bytes | None = None

    def first(self) -> bytes:
        """The first block, which `blocks` will give again."""
        if self._first is None:
            self._first = self._next()
        return self._first

    def blocks(self) -> Iterator[bytes]:
        block = self.first()
        self._first = b""
        while block:
            yield block
            block = self._next()

    def fraction(self) -> float | None:
        """How much of the file has been read; None where that is not known."""
        return min(1.0, self._raw.tell() / self._size) if self._size else None

    def _next(self) -> bytes:
        try:
            block: bytes = self._read(BLOCK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"cannot read {self.name}: {getattr(error, 'strerror', None) or error}") from error
        return block


@contextmanager
def open_events(path: str, live: bool = False) -> Iterator[EventFile]:
    """A file, or standard input for `-`."""
    if path == "-":
        stream: Any = sys.stdin.buffer
        yield EventFile("<stdin>", unzipped(stream), stream, None, live)
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - closed below; only opening it is our reader's fault
        stream = unzipped(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        yield EventFile(path, stream, file, Path(path).stat().st_size, live)


def unzipped(stream: Any) -> IO[bytes]:
    peekable: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    zipped = peekable.peek(2)[:2] == GZIP_MAGIC
    unpacked: IO[bytes] = cast("IO[bytes]", gzip.GzipFile(fileobj=peekable)) if zipped else peekable
    return unpacked


# ---------------------------------------------------------------- the rules


def load_checked(paths: Sequence[str], source: EventFile, options: MatchRunOptions) -> RuleSet:
    """The rules. Without a schema the names of the events' fields show what is a slip."""

    def load(known_fields: frozenset[str] | None) -> RuleSet:
        return load_set(
            paths, params=options.params, lists=options.lists, schema=options.schema, known_fields=known_fields
        )

    rules = load(None)
    if options.schema is not None or not suspicions_only(rules):
        return rules
    known = sampled_fields(source.first())
    rules = load(known)
    if suspicions_only(rules) and source.path is not None:
        # A field that only later events have is no slip: look at all of them before saying so.
        with open_events(str(source.path)) as again:
            rules = load(known | named_fields(again.blocks()))
    return rules


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

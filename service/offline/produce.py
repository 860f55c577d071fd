"""`samovar produce CONFIG [STREAM] FILE`: JSON lines to a stream's topic, keyed by the text of the stream's key field.

Without a stream each line goes to the stream of its `type`. To a stream in Avro they are written as Avro.

Exit codes: 0 fine, 2 wrong usage or refused, 3 stopped at a bad line. What stands before that line is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

import numpy as np

from samovar.changelog.log import Append, Log
from samovar.common.errors import Refused
from samovar.common.progress import Progress
from samovar.common.suggest import did_you_mean
from samovar.common.texts import counted
from samovar.native.kernel import Int64s, Messages, lines_of
from samovar.patterns.engine.decode import Bad
from samovar.patterns.engine.replay import BYTE_ORDER_MARK, MAX_LINE_BYTES
from samovar.service.config.models import ServiceFile
from samovar.service.offline.match import EventFile, open_events
from samovar.service.topology.encoding import StreamTarget
from samovar.service.topology.logs import opened
from samovar.service.topology.topics import ensure_inputs
from samovar.tasks.runtime.collector import collector_off

FINE, BAD_LINES = 0, 3
SHOWN_BAD = 10


def produce(settings: ServiceFile, stream: str | None, file: str, err: IO[str], *, skip_bad: bool, quiet: bool) -> int:
    """Runs the command and gives its exit code."""
    if stream is not None and stream not in settings.streams:
        streams = ", ".join(settings.streams)
        tip = did_you_mean(stream, settings.streams) or f"streams are {streams}"
        raise Refused("unknown-stream", f"{settings.path} has no stream `{stream}`", tip)
    with open_events(file, live=file == "-") as source, opened(settings) as log:
        partitions = ensure_inputs(log, settings)
        names = settings.streams if stream is None else [stream]
        targets = {name: StreamTarget(name, settings.streams[name]) for name in names}
        by_type: dict[str, str] | None = None
        if stream is None:
            by_type = {}
            for name, each in settings.streams.items():
                # A stream without a type field has events of its own name.
                by_type |= dict.fromkeys([name] if each.type is None else each.fields or (), name)
        return ProduceRun(
            log=log,
            targets=targets,
            by_type=by_type,
            partitions=partitions,
            source=source,
            err=err,
            skip_bad=skip_bad,
            quiet=quiet,
        ).run()


@dataclass(kw_only=True)
class ProduceRun:
    """One pass over the lines. The source of truth for how many were written and how many were bad."""

    log: Log
    targets: Mapping[str, StreamTarget]
    by_type: Mapping[str, str] | None  # event type to stream; None where all lines are for one stream
    partitions: int
    source: EventFile
    err: IO[str]
    skip_bad: bool
    quiet: bool
    lines: int = 0
    written: int = 0
    bad: int = 0

    def run(self) -> int:
        progress = Progress(self.err, quiet=self.quiet)
        with collector_off():
            for block in whole_lines(self.source.blocks):
                goes_on = self._write(block)
                progress.reading(self.written, self.source.fraction())
                if not goes_on:
                    break
            progress.clear()
        if self.bad > SHOWN_BAD:
            self.err.write(f"... and {self.bad - SHOWN_BAD:,} more\n")
        if self.bad and not self.skip_bad:
            self.err.write(
                f"samovar: stopped at this line; {counted(self.written, 'line')} before it written\n"
                "  Repair it and produce the rest, or leave bad lines out with --skip-bad.\n"
            )
            return BAD_LINES
        if not self.quiet:
            skipped = f", {counted(self.bad, 'bad line')} left out" if self.bad else ""
            topics = ", ".join(target.topic for target in self.targets.values())
            self.err.write(f"{counted(self.written, 'record')} to {topics}{skipped}\n")
        return FINE

    def _write(self, block: bytes) -> bool:
        """Appends the good lines; without `skip_bad` only those before the first bad one. Whether to go on."""
        messages = lines_of(block)
        bad: dict[int, Bad] = {}
        found = {
            name: list(self.targets[name].records(block, messages, rows, bad))
            for name, rows in self._rows_by_stream(messages, bad).items()
        }
        stop = min(bad) if bad and not self.skip_bad else len(messages)
        appends = []
        for name, records in found.items():
            pairs = [pair for row, pair in records if row < stop]
            if pairs:
                appends.append(Append(topic=self.targets[name].topic, records=pairs, among=self.partitions))
        if appends:
            self.written += self.log.append(appends)
        for row in sorted(bad)[: None if self.skip_bad else 1]:
            self.bad += 1
            if self.bad <= SHOWN_BAD:
                number, column = self.lines + row + 1, bad[row].column
                where = f"{number}" if column is None else f"{number}:{column}"
                self.err.write(f"{self.source.name}:{where}: {bad[row].reason}\n")
        self.lines += len(messages)
        return stop == len(messages)

    def _rows_by_stream(self, messages: Messages, bad: dict[int, Bad]) -> dict[str, Int64s]:
        if self.by_type is None:
            return {next(iter(self.targets)): np.arange(len(messages))}
        found: dict[str, list[int]] = {}
        for row in range(len(messages)):
            line = messages[row]
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except ValueError:
                bad[row] = Bad("NOT_JSON", "it is not JSON", None)
                continue
            kind = event.get("type") if isinstance(event, dict) else None
            name = self.by_type.get(kind) if isinstance(kind, str) else None
            if name is None:
                what = "it has no `type`" if kind is None else f"no stream has events of the type `{str(kind)[:50]}`"
                bad[row] = Bad("UNKNOWN_TYPE", f"{what}; types are {', '.join(self.by_type)}", None)
            else:
                found.setdefault(name, []).append(row)
        return {name: np.array(rows, np.int64) for name, rows in found.items()}


# ---------------------------------------------------------------- lines


def whole_lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, cut at line ends."""
    rest, first = b"", True
    for block in blocks:
        data = rest + block
        if first and len(data) >= len(BYTE_ORDER_MARK):
            data, first = data.removeprefix(BYTE_ORDER_MARK), False
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if len(rest) > MAX_LINE_BYTES:
            raise Refused("line-too-long", f"a line has over {MAX_LINE_BYTES:,} bytes", "write an event per line")
        if cut:
            yield data[:cut]
    if rest.removeprefix(BYTE_ORDER_MARK):
        yield rest.removeprefix(BYTE_ORDER_MARK)

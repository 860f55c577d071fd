"""`samovar produce CONFIG STREAM FILE`: JSON lines to a stream's topic, keyed by the text of the stream's key field.

To a stream in Avro they are written as Avro.

Exit codes: 0 fine, 2 wrong usage or refused, 3 stopped at a bad line. What stands before that line is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from samovar.changelog.log import Append, Log
from samovar.changelog.partitioner import key_texts
from samovar.common.errors import Refused
from samovar.common.progress import Progress
from samovar.common.suggest import did_you_mean
from samovar.common.texts import counted
from samovar.native.kernel import lines_of
from samovar.patterns.engine.avro.write import AvroValueError, Encoder
from samovar.patterns.engine.decode import Bad
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.replay import BYTE_ORDER_MARK, MAX_LINE_BYTES
from samovar.service.config.models import ServiceFile, Stream
from samovar.service.offline.match import EventFile, open_events
from samovar.service.topology.encoding import encoder_of, slices
from samovar.service.topology.logs import opened
from samovar.service.topology.topics import ensure_inputs
from samovar.tasks.runtime.collector import collector_off

FINE, BAD_LINES = 0, 3
SHOWN_BAD = 10


def produce(settings: ServiceFile, stream: str, file: str, err: IO[str], *, skip_bad: bool, quiet: bool) -> int:
    """Runs the command and gives its exit code."""
    if stream not in settings.streams:
        streams = ", ".join(settings.streams)
        tip = did_you_mean(stream, settings.streams) or f"streams are {streams}"
        raise Refused("unknown-stream", f"{settings.path} has no stream `{stream}`", tip)
    with open_events(file, live=file == "-") as source, opened(settings) as log:
        partitions = ensure_inputs(log, settings)
        encoder = encoder_of(settings.streams[stream])
        return ProduceRun(
            log, settings.streams[stream], stream, partitions, source, err, skip_bad, quiet, encoder
        ).run()


@dataclass
class ProduceRun:
    """One pass over the lines. The source of truth for how many were written and how many were bad."""

    log: Log
    stream: Stream
    name: str
    partitions: int
    source: EventFile
    err: IO[str]
    skip_bad: bool
    quiet: bool
    encoder: Encoder | None = None
    lines: int = 0
    written: int = 0
    bad: int = 0

    def run(self) -> int:
        with collector_off():
            self._write_all()
        self._report()
        return BAD_LINES if self.bad and not self.skip_bad else FINE

    def _write_all(self) -> None:
        decoder = Decoder([self.stream.key], self.stream.time, self.stream.type, self.name)
        progress = Progress(self.err, quiet=self.quiet)
        for block in whole_lines(self.source.blocks()):
            goes_on = self._write(decoder, block)
            progress.reading(self.written, self.source.fraction())
            if not goes_on:
                break
        progress.clear()

    def _write(self, decoder: Decoder, block: bytes) -> bool:
        """Append the good lines; without `skip_bad` only those before the first bad one. Whether to go on."""
        messages = lines_of(block)
        batch = decoder.batch()
        verdicts = decoder.decode(batch, messages)
        rows = np.flatnonzero(verdicts["code"] == 0)
        values = slices(block, messages.starts[rows], messages.ends[rows])
        unfit = self._encode(rows.tolist(), values)
        bad = [row for row in np.flatnonzero(verdicts["code"]).tolist() if messages[row].strip()]
        bad = sorted([*bad, *unfit])
        stop = bad[0] if bad and not self.skip_bad else len(messages)
        whole = zip(rows.tolist(), key_texts(batch, 0, messages), values, strict=True)
        pairs = [(key, value) for row, key, value in whole if row < stop and row not in unfit]
        if pairs:
            self.written += self.log.append([Append(self.stream.topic, pairs, among=self.partitions)])
        for row in bad if self.skip_bad else bad[:1]:
            self._tell(self.lines + row + 1, unfit.get(row) or decoder.bad(verdicts[row], messages[row]))
        self.lines += len(messages)
        return stop == len(messages)

    def _encode(self, rows: list[int], values: list[bytes]) -> dict[int, Bad]:
        """Write values in the stream's format, in place; what it cannot hold, by row."""
        unfit: dict[int, Bad] = {}
        if self.encoder is None:
            return unfit
        for place, row in enumerate(rows):
            try:
                values[place] = self.encoder.encode(values[place])
            except AvroValueError as error:
                unfit[row] = Bad("NOT_AVRO", str(error), None)
        return unfit

    def _tell(self, number: int, fault: Bad) -> None:
        self.bad += 1
        if self.bad <= SHOWN_BAD:
            where = f"{number}" if fault.column is None else f"{number}:{fault.column}"
            self.err.write(f"{self.source.name}:{where}: {fault.reason}\n")

    def _report(self) -> None:
        if self.bad > SHOWN_BAD:
            self.err.write(f"... and {self.bad - SHOWN_BAD:,} more\n")
        if self.bad and not self.skip_bad:
            self.err.write(
                f"samovar: stopped at this line; {counted(self.written, 'line')} before it written\n"
                "  Mend it and produce the rest, or leave bad lines out with --skip-bad.\n"
            )
        elif not self.quiet:
            skipped = f", {counted(self.bad, 'bad line')} left out" if self.bad else ""
            self.err.write(f"{counted(self.written, 'record')} to {self.stream.topic}{skipped}\n")


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

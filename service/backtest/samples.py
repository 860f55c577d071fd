"""Samples of a service's history: the events of some keys, kept in files, for previews of rules by those keys.

To find a share of the keys means to read everything. So it is done once, and what came since is added; a preview then
reads a sample and nothing else. There is a sample for every key that rules have (`card`, `user`, `user, merchant`),
chosen by the keys' hashes, which never change. What a live task puts aside (not an event, late) is not in it.

    {state}-samples/HASH/sample.json    what it is of, the share, and how far it is: offsets and event times
    {state}-samples/HASH/N.npz          records, in the order in which they were read

A topic that was made again, and a stream whose time, type or slack is another, have the sample made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from samovar.changelog.batches import RecordBlock
from samovar.changelog.log import Bounds, Log, Records, TopicPartition
from samovar.common.errors import Refused
from samovar.common.folders import make_private, opened_private, write_file
from samovar.native.kernel import Batch, Messages
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.matcher import END_OF_TIME, KeyShare, States
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.event_types import keyed_brackets, reads_all
from samovar.patterns.syntax.tree import AggregateForm, Key, Rule
from samovar.patterns.syntax.unparse import unparse
from samovar.service.backtest.fold import lane_of, plan_over
from samovar.service.backtest.lanes import OffsetSpan
from samovar.service.config.models import ServiceFile
from samovar.tasks.input.source import DecodedBatch, StreamSource

FORMAT = 1
LEAST_PARTS, MOST_PARTS = 1, 1 << 20
SAMPLED = 1_000_000  # events that a sample is to have at most, about
FILE_BYTES = 64 << 20
ANY = "rule: keys\nmatch: |\n  aggregate by key over 1s [any where true] having count() > 1\n"

KeySpec: TypeAlias = tuple[Key, ...]
OnProgress: TypeAlias = Callable[[int, int], bool]  # records read, and of how many; False where it is to stop


def key_specs(rule: Rule) -> dict[str, KeySpec]:
    """The keys that a rule's steps have, by their texts."""
    found = [bracket.by or () for bracket in keyed_brackets(rule)] + [rule.form.by] * reads_all(rule)
    return {", ".join(unparse(key.value) for key in keys): keys for keys in found}


@dataclass(kw_only=True)
class Sample:
    """What a sample has. The source of truth for how far it is: files that it does not name do not count."""

    keys: str
    of: int  # the first of so many shares of the keys
    topics: dict[str, str]  # by stream, see topic_ids
    spans: list[dict[str, list[int]]]  # by partition and stream: from which offset on, and up to which
    times: list[dict[str, int]]  # the greatest event times there
    files: int = 0
    events: int = 0
    format: int = FORMAT

    @property
    def share(self) -> KeyShare:
        return KeyShare(0, self.of)

    @property
    def records(self) -> int:
        return sum(stop - start for spans in self.spans for start, stop in spans.values())


def folder_of(settings: ServiceFile, keys: str) -> Path:
    name = hashlib.sha256(keys.encode()).hexdigest()[:16]
    return settings.state.with_name(f"{settings.state.name}-samples") / name


def load_sample(settings: ServiceFile, log: Log, keys: str) -> Sample | None:
    """The sample by these keys; none where there is none, or it is of topics that are no more."""
    try:
        stored = Sample(**json.loads((folder_of(settings, keys) / "sample.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    if stored.format != FORMAT or stored.keys != keys or stored.topics != topic_ids(settings, log):
        return None
    # What retention took since is still in the sample; between it and what is there now nothing may be missing, nor
    # before it, where an archive has it.
    for partition, spans in enumerate(bounds_of(settings, log)):
        for name, (begin, end) in spans.items():
            known = stored.spans[partition].get(name) if partition < len(stored.spans) else None
            if known is None or not known[0] <= begin <= known[1] <= end:
                return None
    return stored


def topic_ids(settings: ServiceFile, log: Log) -> dict[str, str]:
    """By stream, the topic, and what decides which of its records are events and which are late."""
    known = log.topics([stream.topic for stream in settings.streams.values()])
    return {
        name: f"{known[each.topic].id} {each.key} {each.time} {each.type} {each.slack_ms} {each.max_future_skew_ms}"
        for name, each in settings.streams.items()
        if each.topic in known
    }


def bounds_of(settings: ServiceFile, log: Log) -> list[dict[str, Bounds]]:
    """By partition and stream, what the topics hold now."""
    known = log.topics([stream.topic for stream in settings.streams.values()])
    places = [TopicPartition(name, number) for name, topic in known.items() for number in range(topic.partitions)]
    bounds = log.bounds(places)
    count = max((topic.partitions for topic in known.values()), default=0)
    return [
        {
            name: bounds[TopicPartition(stream.topic, partition)]
            for name, stream in settings.streams.items()
            if TopicPartition(stream.topic, partition) in bounds
        }
        for partition in range(count)
    ]


def fresh_sample(settings: ServiceFile, log: Log, keys: str) -> Sample:
    """An empty one from the beginning on, of as many keys as give enough events."""
    bounds = bounds_of(settings, log)
    records = sum(end - begin for spans in bounds for begin, end in spans.values())
    of = LEAST_PARTS
    while records / of > SAMPLED and of < MOST_PARTS:
        of *= 2
    spans = [{name: [begin, begin] for name, (begin, _) in each.items()} for each in bounds]
    return Sample(keys=keys, of=of, topics=topic_ids(settings, log), spans=spans, times=[{} for _ in spans])


def extend_samples(
    settings: ServiceFile, log: Log, specs: Mapping[str, KeySpec], on_progress: OnProgress
) -> dict[str, Sample]:
    """Brings the samples by these keys up to the end of the log, or as far as it comes; it can be stopped and go on."""
    with _only_one(settings):
        return _extended(settings, log, specs, on_progress)


class SampleBusy(Refused):
    """Another process, or another thread, adds to the samples."""


@contextmanager
def _only_one(settings: ServiceFile) -> Iterator[None]:
    root = folder_of(settings, "").parent
    make_private(root)
    with open(root / "lock", "ab", opener=opened_private) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "Wait until it has ended: it does what was asked for here too, or goes on where that one is."
            raise SampleBusy("sample-busy", f"somebody else adds to the samples in {root}", hint) from None
        yield


def _extended(
    settings: ServiceFile, log: Log, specs: Mapping[str, KeySpec], on_progress: OnProgress
) -> dict[str, Sample]:
    samples = {}
    for keys in specs:
        known = load_sample(settings, log, keys)
        if known is None:
            shutil.rmtree(folder_of(settings, keys), ignore_errors=True)
        samples[keys] = known or fresh_sample(settings, log, keys)
    bounds = bounds_of(settings, log)
    by_place: dict[str, list[str]] = {}
    for keys, sample in samples.items():
        by_place.setdefault(json.dumps([sample.spans, sample.times, sample.of]), []).append(keys)
    left = {place: _left(samples[names[0]], bounds) for place, names in by_place.items()}
    done, total = 0, sum(left.values())
    for place, names in by_place.items():
        if not left[place]:
            continue
        scan = _Scan(settings, log, {keys: specs[keys] for keys in names}, samples)
        for read in scan.run(bounds):
            if not on_progress(done + read, total):
                return samples
        done += left[place]
    return samples


def _left(sample: Sample, bounds: Sequence[Mapping[str, Bounds]]) -> int:
    return sum(end - sample.spans[at][name][1] for at, spans in enumerate(bounds) for name, (_, end) in spans.items())


def left_of(settings: ServiceFile, log: Log, sample: Sample) -> int:
    """How many records of the log are not in a sample yet."""
    return _left(sample, bounds_of(settings, log))


class _SamplingSource(StreamSource):
    """A source that notes which of its events have a key of the sample."""

    on_kept: Callable[[Batch, Any], None]
    on_fed: Callable[[Records, Sequence[int]], None]

    def begin_at(self, times: Mapping[str, int]) -> None:
        for stream, time in times.items():
            self._set_max_event_time(self.sources[stream], time)

    def decode(self, records: Records) -> Any:
        batch, kept, dead = super().decode(records)
        self.on_kept(batch, kept)
        return batch, kept, dead

    def feed(self, records: Records) -> DecodedBatch:
        decoded = super().feed(records)
        self.on_fed(records, [each.row for each in decoded.late])
        return decoded


@dataclass
class _Chosen:
    """Records of one sample that are not in a file yet."""

    columns: list[tuple[Any, ...]] = field(default_factory=list)
    bytes: int = 0


class _Scan:
    """One reading of the log for several samples that are equally far."""

    def __init__(
        self, settings: ServiceFile, log: Log, specs: Mapping[str, KeySpec], samples: dict[str, Sample]
    ) -> None:
        self.settings, self.log, self.samples = settings, log, samples
        self.names = list(specs)
        rules = [_keyed_by(number, keys) for number, keys in enumerate(specs.values())]
        self.plan = plan_over(settings, settings.streams, rules, 0)
        self.states = States(compile_rules(rules))
        self.share = samples[self.names[0]].share
        self.chosen = {name: _Chosen() for name in self.names}
        self.streams = list(settings.streams)
        self._hashes: list[Any] = []
        self._kept: Any = ()

    def run(self, bounds: Sequence[Mapping[str, Bounds]]) -> Iterator[int]:
        """Reads on; after each batch, how many records it has read. Where it is left early, it keeps what it has."""
        read, first = 0, self.samples[self.names[0]]
        nexts = [{name: span[1] for name, span in spans.items()} for spans in first.spans]
        times = [dict(each) for each in first.times]
        try:
            for partition, ends in enumerate(bounds):
                span = OffsetSpan(partition, nexts[partition], {name: end for name, (_, end) in ends.items()})
                make = self._source(times[partition])
                lane = lane_of(self.log, self.plan, span, END_OF_TIME, (), make=make, resumes=True)
                for _ in lane.batches():
                    nexts[partition] = lane.source.nexts()
                    yield read + lane.records
                read += lane.records
        finally:
            for name in self.names:
                self._write(name, nexts, times)

    def _source(self, times: dict[str, int]) -> Callable[..., StreamSource]:
        def make(*given: Any) -> StreamSource:
            source = _SamplingSource(*given)
            source.begin_at(times)
            source.on_kept = self._on_kept

            def on_fed(records: Records, late: Sequence[int]) -> None:
                stream = source.by_topic[records.topic].spec.stream
                times[stream] = source.max_event_time(stream)
                self._take(self.streams.index(stream), records, late)

            source.on_fed = on_fed
            return source

        return make

    def _on_kept(self, batch: Batch, kept: Any) -> None:
        self._hashes = [self.states.key_hashes(batch, number) for number in range(len(self.names))]
        self._kept = kept

    def _take(self, stream: int, records: Records, late: Sequence[int]) -> None:
        for name, hashes in zip(self.names, self._hashes, strict=True):
            here = self.share.has(hashes)
            if late:
                here &= ~np.isin(self._kept, late)
            rows = self._kept[here]
            if not len(rows):
                continue
            values = [records.value(row) or b"" for row in rows.tolist()]
            chosen, size = self.chosen[name], np.fromiter(map(len, values), np.int64, len(values))
            one = np.full(len(rows), 1, np.int32)
            where = one * stream, one * records.partition, records.offsets[rows], records.times[rows]
            chosen.columns.append((*where, hashes[here], size, np.frombuffer(b"".join(values), np.uint8)))
            chosen.bytes += int(size.sum())
            self.samples[name].events += len(rows)
            if chosen.bytes > FILE_BYTES:
                self._flush(name)

    def _flush(self, name: str) -> None:
        chosen, sample = self.chosen[name], self.samples[name]
        if chosen.columns:
            parts = (np.concatenate(column) for column in zip(*chosen.columns, strict=True))
            packed = io.BytesIO()
            columns: dict[str, Any] = dict(zip(COLUMNS, parts, strict=True))
            np.savez(packed, **columns)
            folder = folder_of(self.settings, name)
            make_private(folder)
            write_file(folder / f"{sample.files}.npz", packed.getvalue())
            sample.files += 1
        self.chosen[name] = _Chosen()

    def _write(self, name: str, nexts: Sequence[Mapping[str, int]], times: Sequence[dict[str, int]]) -> None:
        sample, folder = self.samples[name], folder_of(self.settings, name)
        self._flush(name)
        spans = [
            {stream: [span[0], int(nexts[at][stream])] for stream, span in each.items()}
            for at, each in enumerate(sample.spans)
        ]
        self.samples[name] = replace(sample, spans=spans, times=list(times))
        make_private(folder)
        write_file(folder / "sample.json", json.dumps(asdict(self.samples[name])).encode())


COLUMNS = ("stream", "partition", "offset", "time", "hash", "size", "values")


def _keyed_by(number: int, keys: KeySpec) -> Rule:
    """A rule that reads these keys of every event, and nothing else."""
    rule = load_text(ANY).rule
    assert rule is not None
    assert isinstance(rule.form, AggregateForm)
    form = replace(rule.form, by=keys, brackets=(replace(rule.form.brackets[0], by=keys),))
    return replace(rule, id=f"keys-{number}", form=form)


def sampled_records(
    settings: ServiceFile, samples: Sequence[Sample], share: KeyShare
) -> Iterator[tuple[int, str, RecordBlock]]:
    """The records of samples with a key of a share: partition, stream, and records in order of offset, each once."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS[:-1]}
    starts, bytes_before, values = [], 0, []
    for sample in samples:
        for number in range(sample.files):
            with np.load(folder_of(settings, sample.keys) / f"{number}.npz") as stored:
                here = share.has(stored["hash"])
                ends = np.cumsum(stored["size"])
                starts.append((ends - stored["size"] + bytes_before)[here])
                for name, parts in columns.items():
                    parts.append(stored[name][here])
                values.append(stored["values"])
                bytes_before += len(values[-1])
    if not starts:
        return
    found = {name: np.concatenate(parts) for name, parts in columns.items()}
    begin, data = np.concatenate(starts), np.concatenate(values)
    place = found["partition"].astype(np.int64) << 32 | found["stream"]
    order = np.lexsort((found["offset"], place))
    # What is in two samples is one event.
    same = (np.diff(place[order]) == 0) & (np.diff(found["offset"][order]) == 0)
    order = order[np.concatenate(([True], ~same))]
    for one in np.unique(place).tolist():
        rows = order[place[order] == one]
        stream = list(settings.streams)[one & 0xFFFFFFFF]
        messages = Messages(data, begin[rows], begin[rows] + found["size"][rows])
        nothing = Messages(data[:0], np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64))
        offsets, absent = found["offset"][rows], np.zeros(len(rows), bool)
        yield (
            one >> 32,
            stream,
            RecordBlock(
                settings.streams[stream].topic, one >> 32, offsets, found["time"][rows], int(offsets[-1]) + 1,
                nothing, messages, ~absent, absent,
            ),
        )  # fmt: skip

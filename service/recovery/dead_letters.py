"""Dead letters: what is wrong with each, where it came from, how many there are of each kind; and how they are put back
to where they came from, each at most once, whatever happens on the way.

A letter's bytes and the mark that it was put back (changelog/formats/redrives.py) go out in one transaction. Anyone who
redrives joins a group of its own first: another one that still runs can commit nothing from then on, so that the marks
that are read next are all there are.

The document of `samovar dlq show --json`:

    {"letters": [{"letter": "PARTITION/OFFSET", "time", "reason", "message", "stream", "from": {"topic", "partition",
     "offset"} | null, "key", "value" | "value_base64", "attempts", "redriven": bool, "cut_bytes": n | null}],
     "summary": [{"reason", "stream", "letters", "redriven"}], "total"}
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from samovar.changelog.formats import redrives
from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.formats.redrives import ATTEMPT, DeadLetterPlace, marked
from samovar.changelog.log import Append, Headers, Log, Member, Pair, Topic
from samovar.changelog.partitioner import key_texts, partition_of
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.common.suggest import did_you_mean
from samovar.common.texts import counted
from samovar.native.kernel import joined
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.config.models import ServiceFile
from samovar.service.query.read import ReadOptions, TopicRecord, bounded, existing_topic, field, shown
from samovar.service.topology.logs import sole_member
from samovar.service.topology.plans import input_of
from samovar.service.topology.topics import TopicRole, counted_topics, ensure_topic, partitions_of, redrive_group
from samovar.tasks.input.placement import MISPLACED, MOVED
from samovar.tasks.user.processor import TASK_FAILED

AT_ONCE = 200  # letters a transaction, and
AT_ONCE_BYTES = 4_000_000  # so many bytes, or one that is larger
TWICE = "and others would have it twice; `--to STREAM` puts it there all the same"
SHOWN_BYTES = 400  # of a message, for people
HIDDEN = b"(hidden: it may hold values that are marked pii; --pii shows them)"


@dataclass(frozen=True)
class LetterOrigin:
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """One dead letter. `attempts` is how often it had been put back when it died."""

    record: TopicRecord
    reason: str
    message: str
    stream: str
    origin: LetterOrigin | None
    attempts: int
    cut_bytes: int | None
    redriven: bool
    stage: str = ""  # that put it aside, where others took it

    @property
    def place(self) -> DeadLetterPlace:
        return DeadLetterPlace(self.record.at.partition, self.record.offset)

    def data(self) -> dict[str, Any]:
        return {
            "letter": str(self.place),
            "time": self.record.time_ms,
            "reason": self.reason,
            "message": self.message,
            "stream": self.stream,
            "from": None if self.origin is None else asdict(self.origin),
            **field("key", self.record.key, unpack=False),
            **field("value", self.record.value, unpack=True),
            "attempts": self.attempts,
            "redriven": self.redriven,
            "cut_bytes": self.cut_bytes,
        }


@dataclass(frozen=True)
class LetterFilter:
    """Which letters: of these reasons, at these places, from a place of the topic on. Nothing given is all."""

    reasons: Collection[str] = ()
    places: Collection[DeadLetterPlace] = ()
    start: str = "begin"

    def has(self, letter: DeadLetter) -> bool:
        return (not self.reasons or letter.reason in self.reasons) and (not self.places or letter.place in self.places)


def letters_of(settings: ServiceFile, log: Log, wanted: LetterFilter) -> Iterator[DeadLetter]:
    """The letters that are asked for, in order of their times."""
    topic = existing_topic(log, settings.dead_letters.topic)
    done = marked(log, settings.service, topic)
    streams = {stream.topic: name for name, stream in settings.streams.items()}
    for record in bounded(log, topic.name, ReadOptions(start=wanted.start)):
        told = {name: value.decode("utf-8", "replace") for name, value in record.headers}
        origin_topic, partition, offset = (told.get(PREFIX + name) for name in ("topic", "partition", "offset"))
        origin = None
        if origin_topic is not None and partition is not None and offset is not None:
            origin = LetterOrigin(origin_topic, int(partition), int(offset))
        cut = told.get("samovar.cut.bytes")
        letter = DeadLetter(
            record=record,
            reason=told.get(PREFIX + "exception", "UNKNOWN"),
            message=told.get(PREFIX + "message", ""),
            stream=streams.get(origin_topic or "", origin_topic or told.get("samovar.task", "-")),
            origin=origin,
            attempts=int(told.get(ATTEMPT, "0")),
            cut_bytes=None if cut is None else int(cut),
            redriven=DeadLetterPlace(record.at.partition, record.offset) in done,
            stage=told.get("samovar.stage", ""),
        )
        if wanted.has(letter):
            yield letter


def hidden(letter: DeadLetter, settings: ServiceFile) -> DeadLetter:
    """A letter that may hold what is marked `pii`, without what it says: who may see it asks for it. Where anything is
    marked, only one of a stream that marks nothing is known to hold nothing.
    """
    stream = settings.streams.get(letter.stream)
    if not any(each.pii for each in settings.streams.values()) or (stream is not None and not stream.pii):
        return letter
    record = replace(letter.record, key=None if letter.record.key is None else HIDDEN, value=HIDDEN)
    return replace(letter, record=record, message=HIDDEN.decode())


@dataclass
class Summary:
    """How many letters of each reason and stream, and how many of them were put back."""

    letters: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    redriven: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)

    def add(self, letter: DeadLetter) -> None:
        self.letters[letter.reason, letter.stream] += 1
        self.redriven[letter.reason, letter.stream] += letter.redriven

    @property
    def total(self) -> int:
        return sum(self.letters.values())

    def data(self) -> list[dict[str, Any]]:
        return [
            {"reason": reason, "stream": stream, "letters": count, "redriven": self.redriven[reason, stream]}
            for (reason, stream), count in self.letters.most_common()
        ]

    def lines(self) -> list[str]:
        """A line a reason and stream."""
        found = [counted(self.total, "dead letter") if self.letters else "no dead letters"]
        for (reason, stream), count in self.letters.most_common():
            done = self.redriven[reason, stream]
            found.append(f"  {count:,} {reason} of {stream}" + (f", {done:,} of them redriven" if done else ""))
        return found


def letter_lines(letter: DeadLetter) -> Sequence[str]:
    """One letter for people: what and where, why, and the message itself."""
    origin = letter.origin
    head = f"{letter.place}  {iso_time(letter.record.time_ms)}  {letter.reason}"
    if origin is not None:
        head += f"  {origin.topic}/{origin.partition}/{origin.offset}"
    if letter.attempts:
        head += f"  died again after {letter.attempts} redrive{'s' * (letter.attempts != 1)}"
    if letter.redriven:
        head += "  redriven"
    key = "-" if letter.record.key is None else shown(letter.record.key)
    value = "(null)" if letter.record.value is None else shown(letter.record.value)
    if len(value) > SHOWN_BYTES:
        value = f"{value[:SHOWN_BYTES]}... ({len(value):,} characters)"
    size = "" if letter.cut_bytes is None else f"  (cut; it had {letter.cut_bytes:,} bytes)"
    return [head, f"  {letter.message}", f"  {key}  {value}{size}"]


@dataclass
class RedriveBatch:
    """What a redrive will do. `left_out` counts letters by the reason why they stay."""

    places: set[DeadLetterPlace] = dataclasses.field(default_factory=set)
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)
    targets: Counter[str] = dataclasses.field(default_factory=Counter)  # by topic
    died_again: int = 0

    def data(self) -> dict[str, Any]:
        return {
            "letters": len(self.places),
            "to": dict(self.targets),
            "left_out": dict(self.left_out),
            "died_again": self.died_again,
        }

    def lines(self) -> list[str]:
        found = [f"{counted(count, 'letter')} to {topic}" for topic, count in self.targets.items()]
        found = found or ["nothing to redrive"]
        if self.died_again:
            found.append(f"{self.died_again:,} of them died again after an earlier redrive")
        return found + [f"{count:,} left out: {reason}" for reason, count in self.left_out.items()]


def plan_redrive(settings: ServiceFile, log: Log, wanted: LetterFilter, to: str | None) -> RedriveBatch:
    """Nothing is changed."""
    if to is not None and to not in settings.streams:
        known = ", ".join(settings.streams)
        raise Refused("unknown-stream", f"there is no stream `{to}`", did_you_mean(to, settings.streams) or known)
    topics = log.topics(counted_topics(settings))
    found = RedriveBatch()
    for letter in letters_of(settings, log, wanted):
        topic = settings.streams[to].topic if to is not None else letter.origin.topic if letter.origin else ""
        reason = ""  # why it stays where it is
        if letter.redriven:
            reason = "redriven before"
        elif letter.cut_bytes is not None:
            reason = "cut, so that the whole message is no longer there"
        elif not topic:
            reason = "no message of a stream"
        elif to is None and letter.reason == TASK_FAILED:
            reason = f"only a task failed on it, {TWICE}"
        elif topic not in topics:
            reason = f"the topic {topic} is not a stream's; `--to STREAM` names another"
        elif to is None and letter.stage:
            reason = f"only a later stage put it aside, {TWICE}"
        if reason:
            found.left_out[reason] += 1
            continue
        found.places.add(letter.place)
        found.targets[topic] += 1
        found.died_again += letter.attempts > 0
    return found


def target_of(
    letter: DeadLetter, settings: ServiceFile, topics: Mapping[str, Topic], to: str | None
) -> tuple[str, int | None]:
    """Topic and partition that a letter goes to; without a partition, murmur2 of its key says which.

    It is the place it came from; in another stream, that of its key; that of its key field where it was in another.
    """
    origin = letter.origin
    topic = settings.streams[to].topic if to is not None else origin.topic if origin else ""
    if to is None and letter.reason in (MISPLACED, MOVED):
        spec = next(input_of(name, stream) for name, stream in settings.streams.items() if stream.topic == topic)
        decoder = spec.decoder((spec.key,), spec.time_field, spec.type_field, spec.stream)
        messages, batch = joined([letter.record.value or b""]), decoder.batch()
        decoder.decode(batch, messages)
        texts = key_texts(batch, 0, messages)
        text = texts[0] if texts else None
        return topic, None if text is None else partition_of(text, partitions_of(settings, topics))
    is_there = origin is not None and origin.topic == topic and origin.partition < topics[topic].partitions
    return topic, origin.partition if origin is not None and is_there else None


@contextmanager
def alone(settings: ServiceFile, log: Log) -> Iterator[Member]:
    """The only one who redrives letters of this service, from now on."""
    ensure_topic(settings, log, TopicRole.REDRIVEN)  # the marks
    topic = existing_topic(log, settings.dead_letters.topic).name
    group = redrive_group(settings.service)
    with sole_member(log, group, topic, leaves=True) as member:
        yield member


def redrive(
    settings: ServiceFile,
    log: Log,
    member: Member,
    plan: RedriveBatch,
    to: str | None,
    on_progress: Callable[[int], None],
) -> int:
    """Put letters back; how many. The plan must have been made since `member` is the only one."""
    letters = existing_topic(log, settings.dead_letters.topic)
    topics = log.topics(counted_topics(settings))
    done = 0
    for part in parts_of(letters_of(settings, log, LetterFilter(places=plan.places))):
        grouped: dict[tuple[str, int | None], tuple[list[Pair], list[Headers]]] = defaultdict(lambda: ([], []))
        marks: list[Pair] = []
        for letter in part:
            target, attempt = target_of(letter, settings, topics, to), letter.attempts + 1
            pairs, headers = grouped[target]
            pairs.append((letter.record.key, letter.record.value))
            headers.append(redrives.headers_of(letters, letter.place, attempt))
            marks.append(redrives.mark(letters, letter.place, target[0], attempt, int(time.time() * 1000)))
        appends = [
            Append(topic=topic, records=pairs, partition=partition, headers=headers)
            for (topic, partition), (pairs, headers) in grouped.items()
        ]
        try:
            member.transact(
                [*appends, Append(topic=redrives.topic_of(settings.service), records=marks, partition=0)], {}
            )
        except (Fenced, CommitUnknown, LogUnavailable) as error:
            raise Refused(
                "redrive-stopped",
                f"{done:,} letters were redriven, then another redrive began or the log did not answer",
                "Run it again: what was redriven is remembered, and goes out only once.",
                f"{type(error).__name__}: {error}",
            ) from error
        done += len(part)
        on_progress(done)
    return done


def parts_of(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Letters in transactions that are not too large."""
    part: list[DeadLetter] = []
    size = 0
    for letter in letters:
        own = len(letter.record.key or b"") + len(letter.record.value or b"")
        if part and (len(part) >= AT_ONCE or size + own > AT_ONCE_BYTES):
            yield part
            part, size = [], 0
        part.append(letter)
        size += own
    if part:
        yield part

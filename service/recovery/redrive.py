"""`samovar dlq redrive`: dead letters put back to where they came from, each at most once, whatever happens on the way.

A letter's bytes and the mark that it was put back (changelog/formats/redrives.py) go out in one transaction. Anyone who
redrives joins a group of its own first: another one that still runs can commit nothing from then on, so that the marks
that are read next are all there are.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.formats import redrives
from samovar.changelog.formats.redrives import LetterPlace
from samovar.changelog.log import Append, Delivery, GroupConfig, Headers, Log, Member, Pair, Topic, TopicPartition
from samovar.changelog.partitioner import key_texts, partition_of
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.common.suggest import did_you_mean
from samovar.common.texts import counted
from samovar.native.kernel import joined
from samovar.service.config.models import ServiceFile
from samovar.service.query.read import existing_topic
from samovar.service.recovery.dead_letters import DeadLetter, LetterFilter, letters_of
from samovar.service.topology.plans import input_of
from samovar.service.topology.topics import TopicRole, counted_topics, ensure_topic, partitions_of, redrive_group
from samovar.tasks.input.placement import MISPLACED, MOVED
from samovar.tasks.user.processor import TASK_FAILED

JOIN_S = 60.0
AT_ONCE = 200  # letters a transaction, and
AT_ONCE_BYTES = 4_000_000  # so many bytes, or one that is larger
TWICE = "and others would have it twice; `--to STREAM` puts it there all the same"


@dataclass
class RedriveBatch:
    """What a redrive will do. `left_out` counts letters by the reason why they stay."""

    places: set[LetterPlace] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)  # by topic
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
    owned: set[TopicPartition] = set()
    went = owned.difference_update
    member = log.join(GroupConfig(group, 0, [topic], Delivery.EXACTLY_ONCE, owned.update, went, went))
    try:
        # Until the group is joined: a client that leaves while it still joins may wait for its own answer.
        deadline = time.monotonic() + JOIN_S
        while not owned:
            member.poll(1, 0.05)
            if time.monotonic() > deadline:
                raise LogUnavailable(f"nobody gave out the partitions of dead letters within {JOIN_S:.0f} s")
        yield member
    finally:
        member.leave()


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
        appends = [Append(topic, pairs, partition, headers) for (topic, partition), (pairs, headers) in grouped.items()]
        try:
            member.transact([*appends, Append(redrives.topic_of(settings.service), marks, 0)], {})
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

"""Dead letters for people: what is wrong with each, where it came from, and how many there are of each kind.

The document of `samovar dlq show --json`:

    {"letters": [{"letter": "PARTITION/OFFSET", "time", "reason", "message", "stream", "from": {"topic", "partition",
     "offset"} | null, "key", "value" | "value_base64", "attempts", "redriven": bool, "cut_bytes": n | null}],
     "summary": [{"reason", "stream", "letters", "redriven"}], "total"}
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.formats.redrives import ATTEMPT, LetterPlace, marked
from samovar.changelog.log import Log
from samovar.common.texts import counted
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.config.models import ServiceFile
from samovar.service.query.read import ReadOptions, TopicRecord, bounded, existing_topic, field, shown

SHOWN_BYTES = 400  # of a message, for people
HIDDEN = b"(hidden: it may hold values that are marked pii; --pii shows them)"


@dataclass(frozen=True)
class LetterOrigin:
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
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
    def place(self) -> LetterPlace:
        return LetterPlace(self.record.at.partition, self.record.offset)

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
    places: Collection[LetterPlace] = ()
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
            record,
            told.get(PREFIX + "exception", "UNKNOWN"),
            told.get(PREFIX + "message", ""),
            streams.get(origin_topic or "", origin_topic or told.get("samovar.task", "-")),
            origin,
            int(told.get(ATTEMPT, "0")),
            None if cut is None else int(cut),
            LetterPlace(record.at.partition, record.offset) in done,
            told.get("samovar.stage", ""),
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

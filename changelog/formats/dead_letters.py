"""Dead letters and late events: a message's own bytes and key, and why it is there, in headers.

Dead letters use the names of Kafka Streams (KIP-1034), so that tools for those read ours:

    __streams.errors.exception      the class of the fault: NOT_JSON, MISSING_KEY, FROM_THE_FUTURE, ... (docs/errors.md)
    __streams.errors.message        what is wrong, in words, with the place in the message
    __streams.errors.stacktrace     empty where a message is at fault; of a task's own code (TASK_FAILED), where it was
    __streams.errors.topic          where it came from
    __streams.errors.partition
    __streams.errors.offset

Late events carry the last three, and `samovar.late.ms` (by how much) and `samovar.stream`. Where not the
main stage but another one could not take it, `samovar.stage` names that: others that read the stream may have. Of two
such stages each writes its own: they are other tasks, in other containers, whose event times and transactions know
nothing of each other, so that neither could leave it to the other without waiting for all of its commits.

A message too large for a letter is cut, so that it cannot stop a service: `samovar.cut.bytes` is the size it had.
"""

from __future__ import annotations

from dataclasses import dataclass

from samovar.changelog.log import Headers, Pair

PREFIX = "__streams.errors."
MOST_BYTES = 4_000_000  # of a letter's key and value; its topic takes a little more, for the headers


@dataclass(frozen=True, slots=True)
class SourceCoordinates:
    """Where letters come from: what all of one partition have in common, encoded once."""

    place: Headers
    stream: tuple[str, bytes]

    @staticmethod
    def of(topic: str, partition: int, stream: str) -> SourceCoordinates:
        place = (PREFIX + "topic", topic.encode()), (PREFIX + "partition", str(partition).encode())
        return SourceCoordinates(place, ("samovar.stream", stream.encode()))

    def dead(self, offset: int, kind: str, message: str, trace: str = "") -> Headers:
        return (*failure(kind, message, trace), *self.place, (PREFIX + "offset", b"%d" % offset))

    def late(self, offset: int, late_ms: int) -> Headers:
        offset_header = PREFIX + "offset", b"%d" % offset
        return (*self.place, offset_header, self.stream, ("samovar.late.ms", b"%d" % late_ms))


def failure(kind: str, message: str, trace: str = "") -> Headers:
    """What went wrong, where no record is to blame: a task's timer has none."""
    said = (PREFIX + "exception", kind.encode()), (PREFIX + "message", message.encode("utf-8", "replace"))
    return (*said, (PREFIX + "stacktrace", trace.encode("utf-8", "replace")))


def truncate_to_limit(pair: Pair, headers: Headers) -> tuple[Pair, Headers]:
    """A letter that its topic can take."""
    key, value = pair
    size = len(key or b"") + len(value or b"")
    if size <= MOST_BYTES:
        return pair, headers
    short = key and key[: MOST_BYTES // 2]
    left = MOST_BYTES - len(short or b"")
    return (short, value and value[:left]), (*headers, ("samovar.cut.bytes", b"%d" % size))

"""Dead letters and late events: a message's own bytes and key, and why it is there, in headers.

Dead letters use the names of Kafka Streams (KIP-1034), so that tools for those read ours:

    __streams.errors.exception      the class of the fault: Malformed, MissingKey, FromTheFuture, ...
    __streams.errors.message        what is wrong, in words, with the place in the message
    __streams.errors.stacktrace     empty: a message is at fault here, not a program
    __streams.errors.topic          where it came from
    __streams.errors.partition
    __streams.errors.offset

Late events carry the last three, and `samovar.late.ms` (by how much) and `samovar.stream`.
"""

from __future__ import annotations

from samovar.changelog.log import Headers, TopicPartition

PREFIX = "__streams.errors."


def _where(at: TopicPartition, offset: int) -> Headers:
    return (
        (PREFIX + "topic", at.topic.encode()),
        (PREFIX + "partition", str(at.partition).encode()),
        (PREFIX + "offset", str(offset).encode()),
    )


def dead_headers(at: TopicPartition, offset: int, kind: str, message: str) -> Headers:
    return (
        (PREFIX + "exception", kind.encode()),
        (PREFIX + "message", message.encode()),
        (PREFIX + "stacktrace", b""),
        *_where(at, offset),
    )


def late_headers(at: TopicPartition, offset: int, stream: str, late_ms: int) -> Headers:
    return (
        *_where(at, offset),
        ("samovar.stream", stream.encode()),
        ("samovar.late.ms", str(late_ms).encode()),
    )

"""Reading through librdkafka's C interface: records come as columns, without a Python object for each of them.

confluent-kafka brings the library, and serves for all else. A `Fetcher` knows nothing of groups: it reads partitions
that it is told, from offsets that it is told.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import finalize

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError, KafkaException

from samovar.changelog.batches import RecordBlock, messages_at
from samovar.changelog.log import TopicPartition
from samovar.common.errors import Refused
from samovar.native.kernel import Handle, array_at, kernel, typed

CONSUMER = 1
NO_CLOSE = 0x8  # there is no group to leave
TEXT_SIZE = 512
INT64, BOOL = np.dtype(np.int64), np.dtype(np.bool_)
OnError = Callable[[KafkaError], None]
_ERROR_CB = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)

SIGNATURES: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "rd_kafka_version": (c_int, []),
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_destroy": (None, [c_void_p]),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_conf_set_error_cb": (None, [c_void_p, _ERROR_CB]),
    "rd_kafka_conf_set_log_cb": (None, [c_void_p, c_void_p]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_poll_set_consumer": (c_int, [c_void_p]),
    "rd_kafka_queue_get_consumer": (c_void_p, [c_void_p]),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_destroy_flags": (None, [c_void_p, c_int]),
    "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "rd_kafka_topic_destroy": (None, [c_void_p]),
    "rd_kafka_topic_partition_list_new": (c_void_p, [c_int]),
    "rd_kafka_topic_partition_list_add": (c_void_p, [c_void_p, c_char_p, c_int32]),
    "rd_kafka_topic_partition_list_set_offset": (c_int, [c_void_p, c_char_p, c_int32, c_int64]),
    "rd_kafka_topic_partition_list_destroy": (None, [c_void_p]),
    "rd_kafka_assign": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_pause_partitions": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_resume_partitions": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
}
# What the kernel calls of the client's functions, in the order in which it knows them.
CALLED = (
    "rd_kafka_topic_name",
    "rd_kafka_message_timestamp",
    "rd_kafka_message_headers",
    "rd_kafka_header_get_all",
    "rd_kafka_message_errstr",
    "rd_kafka_message_destroy",
)
GATHERING: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "samovar_gather": (Handle, [c_void_p, c_size_t, c_void_p]),
    "samovar_gathered_free": (None, [c_void_p]),
    "samovar_gathered_groups": (c_size_t, [c_void_p]),
    "samovar_gathered_troubles": (c_size_t, [c_void_p]),
    "samovar_gathered_group": (None, [c_void_p, c_size_t, c_void_p]),
    "samovar_gathered_trouble": (None, [c_void_p, c_size_t, c_void_p]),
}


class _Group(ctypes.Structure):
    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int64),
        ("count", c_int64),
        *((name, c_void_p) for name in ("offsets", "times", "keys", "values", "heads")),
        *((name, c_void_p) for name in ("key_data", "value_data", "head_data", "keyless", "null")),
    )


class _KernelError(ctypes.Structure):
    _fields_ = (("topic", c_char_p), ("text", c_char_p), ("partition", c_int64), ("code", c_int64), ("offset", c_int64))


@cache
def client() -> Any:
    """librdkafka, the same copy of it that confluent-kafka uses."""
    package = Path(confluent_kafka.__file__).parent
    bundled = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    path = str(bundled[0]) if bundled else ctypes.util.find_library("rdkafka")
    try:
        library = typed(ctypes.CDLL(path), SIGNATURES) if path else None
    except (OSError, AttributeError) as error:
        raise _missing(str(error)) from error
    if library is None or library.rd_kafka_version() != confluent_kafka.libversion()[1]:
        raise _missing(f"found {path}")
    return library


def _missing(detail: str) -> Refused:
    hint = "Install the package `confluent-kafka` of requirements.lock again, from a wheel."
    return Refused("kafka-client-missing", "the librdkafka that confluent-kafka uses was not found", hint, detail)


@cache
def _client_functions() -> Any:
    found = [ctypes.cast(getattr(client(), name), c_void_p) for name in CALLED]
    return (c_void_p * len(found))(*found)


@cache
def _gathering() -> Any:
    return typed(kernel(), GATHERING)


@dataclass(frozen=True, slots=True)
class ConsumeError:
    """What came in the place of a record: the end of a partition, or an error."""

    at: TopicPartition
    offset: int
    error: KafkaError


class Fetcher:
    """A consumer of given partitions. One thread uses it."""

    def __init__(self, settings: Mapping[str, Any], on_error: OnError, topics: Collection[str] = ()) -> None:
        """Asks at once where the topics are: to learn it with the first read may cost a second. Bad settings raise."""
        self._library = client()
        _gathering()  # what it consumes must be let go of, or it could never be closed

        def told(_client: int, code: int, reason: bytes, _opaque: int) -> None:
            on_error(KafkaError(code, reason.decode(errors="replace")))

        self._on_error = _ERROR_CB(told)  # the client calls it for as long as it lives
        library, text = self._library, ctypes.create_string_buffer(TEXT_SIZE)
        conf = library.rd_kafka_conf_new()
        for name, value in settings.items():
            plain = str(value).lower() if isinstance(value, bool) else str(value)
            if library.rd_kafka_conf_set(conf, name.encode(), plain.encode(), text, TEXT_SIZE) != 0:
                library.rd_kafka_conf_destroy(conf)
                raise KafkaException(text.value.decode(errors="replace"))
        library.rd_kafka_conf_set_error_cb(conf, self._on_error)
        library.rd_kafka_conf_set_log_cb(conf, None)  # what goes wrong is told by what then fails
        self._handle = library.rd_kafka_new(CONSUMER, conf, text, TEXT_SIZE)
        if not self._handle:
            library.rd_kafka_conf_destroy(conf)
            raise KafkaException(text.value.decode(errors="replace"))
        library.rd_kafka_poll_set_consumer(self._handle)
        self._queue = library.rd_kafka_queue_get_consumer(self._handle)
        self._room: Any = (c_void_p * 0)()
        known = [library.rd_kafka_topic_new(self._handle, topic.encode(), None) for topic in topics]
        self._end = finalize(self, _close_handles, library, self._handle, self._queue, known, self._on_error)

    def close(self) -> None:
        self._end()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._call_with_positions(self._library.rd_kafka_assign, positions)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._call_with_positions(self._library.rd_kafka_pause_partitions, dict.fromkeys(partitions, 0))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._call_with_positions(self._library.rd_kafka_resume_partitions, dict.fromkeys(partitions, 0))

    def _call_with_positions(self, how: Any, positions: Mapping[TopicPartition, int]) -> None:
        library = self._library
        places = library.rd_kafka_topic_partition_list_new(len(positions))
        try:
            for at, offset in positions.items():
                topic = at.topic.encode()
                library.rd_kafka_topic_partition_list_add(places, topic, at.partition)
                library.rd_kafka_topic_partition_list_set_offset(places, topic, at.partition, offset)
            error = how(self._handle, places)
        finally:
            library.rd_kafka_topic_partition_list_destroy(places)
        if error:
            raise KafkaException(KafkaError(error))

    def fetch(self, most: int, timeout_s: float) -> tuple[list[RecordBlock], list[ConsumeError]]:
        """What there is, at most so many records; waits for the first one only."""
        if len(self._room) < most:
            self._room = (c_void_p * most)()
        count = self._consume(0, most, 0.0)
        if not count and timeout_s > 0:
            # With a time to wait, the client waits for all that it has room for: so it waits for one only.
            count = self._consume(0, 1, timeout_s)
            if count and most > 1:
                count += self._consume(1, most - 1, 0.0)
        return _columns(self._room, count) if count else ([], [])

    def _consume(self, first: int, most: int, timeout_s: float) -> int:
        place = ctypes.addressof(self._room) + first * ctypes.sizeof(c_void_p)
        count = self._library.rd_kafka_consume_batch_queue(self._queue, int(timeout_s * 1000), place, most)
        return max(int(count), 0)


def _close_handles(library: Any, handle: int, queue: int, topics: Sequence[int | None], _on_error: object) -> None:
    for topic in topics:
        if topic:
            library.rd_kafka_topic_destroy(topic)
    library.rd_kafka_queue_destroy(queue)
    library.rd_kafka_destroy_flags(handle, NO_CLOSE)


class _Gathered:
    """The kernel's columns. Arrays over them keep it alive."""

    def __init__(self, room: Any, count: int) -> None:
        self.handle = _gathering().samovar_gather(room, count, _client_functions())
        finalize(self, kernel().samovar_gathered_free, self.handle)


def _columns(room: Any, count: int) -> tuple[list[RecordBlock], list[ConsumeError]]:
    owner = _Gathered(room, count)
    library, records, errors = kernel(), [], []
    group, trouble = _Group(), _KernelError()
    for place in range(library.samovar_gathered_groups(owner.handle)):
        library.samovar_gathered_group(owner.handle, place, ctypes.byref(group))
        rows = group.count
        offsets = array_at(group.offsets, rows, INT64, owner)
        block = RecordBlock(
            topic=group.topic.decode(),
            partition=group.partition,
            offsets=offsets,
            times=array_at(group.times, rows, INT64, owner),
            next=int(offsets[-1]) + 1,
            keys=messages_at(group.keys, group.key_data, rows, owner),
            values=messages_at(group.values, group.value_data, rows, owner),
            keyless=array_at(group.keyless, rows, BOOL, owner),
            null=array_at(group.null, rows, BOOL, owner),
            header_bytes=messages_at(group.heads, group.head_data, rows, owner) if group.heads else None,
        )
        records.append(block)
    for place in range(library.samovar_gathered_troubles(owner.handle)):
        library.samovar_gathered_trouble(owner.handle, place, ctypes.byref(trouble))
        text = trouble.text.decode(errors="replace")
        error = KafkaError(trouble.code, text) if text else KafkaError(trouble.code)
        errors.append(ConsumeError(TopicPartition(trouble.topic.decode(), trouble.partition), trouble.offset, error))
    return records, errors

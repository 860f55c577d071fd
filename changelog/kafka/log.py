"""The log as a Kafka cluster keeps it, through confluent-kafka.

Settings are librdkafka's own, passed through (SASL, SSL and the rest); secrets among them are never shown. Every
question has a deadline: what Kafka does not answer by then is LogUnavailable.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import admin as admin_module

from samovar.changelog.kafka.errors import (
    DENIED,
    MISSING,
    PASSING,
    STALE,
    UNREACHED,
    Causes,
    Needed,
    error_of,
    failure_of,
    other_protocol,
    unreached,
)
from samovar.changelog.kafka.member import KafkaMember
from samovar.changelog.kafka.read import PointReaderPool, PositionReader, places_of
from samovar.changelog.kafka.settings import TAILING, Conf, Settings
from samovar.changelog.kafka.write import Writer
from samovar.changelog.log import (
    Append,
    Bounds,
    GroupConfig,
    Member,
    Reader,
    Topic,
    TopicPartition,
    TopicSpec,
)
from samovar.common.errors import LogUnavailable, Refused
from samovar.common.tunables import DEFAULTS, Tunables

ASK_S = 30.0  # until a question must be answered; longer than a dead writer's transaction can be pending
VISIBLE_S = 30.0  # until a new topic must have its leaders, and a deleted one must be gone
# For one try after the other. In KRaft any broker may be named as the controller, which an admin client asks: where it
# is gone the client waits for it until the time is over, unless it is told to look for another. A broker that is only
# slow has the last try.
TRIES_S = (2.0, 3.0, 5.0)
GRACE_S = 2.0  # after which an answer that should be there is lost
AGAIN_S = 0.05
LOOK_ANSWER_S = 2.0  # for a look at the ends of partitions
LOOK_S = 0.2  # so often one who waits for an answer looks whether there can be none
PROBE_EVERY = 5  # looks, between which a broker's port is left alone
LOOK_AGAIN_S = 1.0
# What checks of a topic look at.
CHECKED = frozenset(
    """cleanup.policy min.compaction.lag.ms max.compaction.lag.ms delete.retention.ms retention.ms retention.bytes
    max.message.bytes min.insync.replicas message.timestamp.type segment.ms""".split()
)
COORDINATORS = "__consumer_offsets"
NO_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND})

admin: Any = admin_module  # most of its names are not exported as far as types go

Key = TypeVar("Key")
Answer = TypeVar("Answer")
Futures = Mapping[Key, "Future[Any]"]


def release_id(described: Any) -> None:
    """Give back the reference to a topic's id that confluent-kafka 2.16 takes and forgets: without it every look at a
    topic would leave an object behind, for ever.
    """
    topic_id = described.topic_id
    if sys.getrefcount(topic_id) > 3:  # of the description, of this function, and of the question itself
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(topic_id))


class KafkaLog:
    """A Kafka cluster as a Log."""

    def __init__(self, settings: Mapping[str, str], tunables: Tunables = DEFAULTS) -> None:
        self.tunables = tunables
        self._settings = Settings(dict(settings))
        self._causes = Causes()
        try:
            self._admin = admin.AdminClient(self._settings.admin(self._causes.note))
        except KafkaException as error:
            raise self._settings.refusal(error) from None
        self._appending: Writer | None = None
        self._point_readers = PointReaderPool(self._settings)

    def __repr__(self) -> str:
        return f"KafkaLog({self._settings!r})"

    # ---------------------------------------------------------------- topics

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        if not names:
            return {}
        found = self._described(names)
        while behind := self._settings.recent.among(set(names) - found.keys()):
            time.sleep(AGAIN_S)
            found |= self._described(behind)
        settings = self._configs(found)
        while behind := self._settings.recent.among(found.keys() - settings.keys()):
            time.sleep(AGAIN_S)
            settings |= self._configs(behind)
        self._settings.recent.lost(set(names) - settings.keys())
        self._settings.recent.saw(settings.keys())
        topics = {}
        for name, described in found.items():
            if name in settings:
                replication = min((len(part.replicas) for part in described.partitions), default=1)
                count, topic_id = len(described.partitions), str(described.topic_id)
                topics[name] = Topic(
                    name=described.name, partitions=count, settings=settings[name], id=topic_id, replication=replication
                )
        return topics

    def _configs(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Of those that the broker knows that is asked: another one than that which described them."""
        resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        ask = partial(self._admin.describe_configs, resources)
        found: dict[str, dict[str, str]] = {}
        for resource, entries in self._ask("describing topics", ask, ("topic", "DESCRIBE_CONFIGS"), MISSING).items():
            known_entries = {name: entry.value for name, entry in entries.items() if name in CHECKED}
            found[resource.name] = {name: str(value) for name, value in known_entries.items() if value is not None}
        return found

    def _described(self, names: Collection[str], doing: str = "describing topics") -> dict[str, Any]:
        asked = TopicCollection(list(dict.fromkeys(names)))  # the client takes each once
        found = self._ask(doing, partial(self._admin.describe_topics, asked), ("topic", "DESCRIBE"), MISSING)
        for described in found.values():
            release_id(described)
        return found

    def create(self, specs: Sequence[TopicSpec]) -> None:
        if not specs:
            return
        wanted = [admin.NewTopic(s.name, s.partitions, s.replication, config=dict(s.settings)) for s in specs]
        exists = frozenset({KafkaError.TOPIC_ALREADY_EXISTS})
        self._ask("creating topics", partial(self._admin.create_topics, wanted), ("topic", "CREATE"), exists)
        names = {spec.name for spec in specs}
        self._settings.recent.lost(names)  # whatever had these names before
        self._settings.recent.saw(names)

        def have_leaders() -> bool:
            found = self._described(names)
            return all(name in found and all(part.leader for part in found[name].partitions) for name in names)

        self._wait(have_leaders, f"topics {', '.join(sorted(names))} have no leaders")

    def delete(self, names: Collection[str]) -> None:
        if not names:
            return
        self._ask("deleting topics", partial(self._admin.delete_topics, list(names)), ("topic", "DELETE"), MISSING)
        self._settings.recent.lost(names)
        self._wait(lambda: not self._described(names), f"topics {', '.join(sorted(names))} are still there")

    # ---------------------------------------------------------------- offsets

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        begins = self._offsets(partitions, admin.OffsetSpec.earliest())
        ends = self._offsets(partitions, admin.OffsetSpec.latest())
        return {at: Bounds(begins[at], ends[at]) for at in partitions}

    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        found = self._offsets([at], admin.OffsetSpec.for_timestamp(time_ms))[at]
        return found if found >= 0 else self._offsets([at], admin.OffsetSpec.latest())[at]

    def stable_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The last stable offsets: ends, or where the first open transaction begins. For Spark's connector."""
        return self._offsets(partitions, admin.OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def _offsets(
        self, partitions: Collection[TopicPartition], spec: Any, level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """Of all records, also of those in open transactions: the latest is the high watermark."""
        if not partitions:
            return {}
        asked, names = dict.fromkeys(places_of(partitions), spec), {at.topic for at in partitions}
        try:
            ask = partial(self._admin.list_offsets, asked, isolation_level=level)
            told = self._ask("asking for offsets", ask, ("topic", "DESCRIBE"), recent=names)
        except LogUnavailable:
            # A topic that is not there looks, to one who asks for its offsets, as one without leaders.
            missing = ", ".join(sorted(names - self.topics(names).keys()))
            if missing:
                error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, missing)
                raise failure_of(error, "asking", self._settings) from None
            raise
        return {TopicPartition(place.topic, place.partition): info.offset for place, info in told.items()}

    def _ends_now(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of what can be read, asked once. Where there is no answer, leaders are looked for again."""
        asked = dict.fromkeys(places_of(partitions), admin.OffsetSpec.latest())
        level = IsolationLevel.READ_COMMITTED
        told = self._admin.list_offsets(asked, isolation_level=level, request_timeout=LOOK_ANSWER_S)
        found = {}
        for place, future in told.items():
            with suppress(KafkaException):
                found[TopicPartition(place.topic, place.partition)] = known(future.result()).offset
        if len(found) < len(asked):
            self._look_again()
        return found

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        if not partitions:
            return {}
        asked, causes = places_of(partitions), Causes()
        try:
            # It knows the group and is not a member of it. The admin client could ask the same, but librdkafka 2.16
            # crashes there when a coordinator has moved.
            consumer = Consumer(self._settings.consumer(group, {"error_cb": causes.note}))
        except KafkaException as error:
            raise self._settings.refusal(error) from None

        def ask() -> dict[TopicPartition, int]:
            found = {}
            for place in consumer.committed(asked, ASK_S):
                if place.error is not None:  # that is not an offset, and never "none was committed"
                    is_denied = DENIED.get(place.error.code()) == "topic"
                    raise OfOneError(place.error, place.topic) if is_denied else KafkaException(place.error)
                found[TopicPartition(place.topic, place.partition)] = place.offset
            return found

        needed = {"group": ("DESCRIBE", [group]), "topic": ("DESCRIBE", {at.topic for at in partitions})}
        try:
            found = self._patiently(f"asking for offsets of group {group}", ask, needed, causes)
        finally:
            consumer.close()
        return {at: found[at] if found[at] >= 0 else None for at in partitions}

    def members(self, group: str) -> Sequence[str]:
        doing = f"describing group {group}"
        try:
            # Where there never was a group, the question after one would make the coordinator's topic, and the client
            # would then forget it until its time is over.
            if not self._described([COORDINATORS], doing):
                return []
        except Refused as refused:
            if refused.code != "log-access-denied":  # else we may not look
                raise
        ask = partial(self._admin.describe_consumer_groups, [group])
        told = self._ask(doing, ask, ("group", "DESCRIBE"), NO_GROUP)
        found = told[group].members if group in told else ()
        return sorted(member.group_instance_id or member.client_id for member in found)

    # ---------------------------------------------------------------- records

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return self._reader(positions)

    def _reader(self, positions: Mapping[TopicPartition, int], conf: Conf | None = None) -> Reader:
        stream = PositionReader(self._settings, "reading", {at.topic for at in positions}, conf=conf)
        for at, offset in positions.items():
            stream.seek(at, offset)
        return stream

    def point_reader(self, positions: Mapping[TopicPartition, int], records: int) -> Reader:
        return self._point_readers.reader(positions, records)

    def tail(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return self._reader(positions, self._settings.fetcher() | TAILING)

    def append(self, appends: Sequence[Append]) -> int:
        if self._appending is None:
            self._appending = Writer(self._settings, {}, reports_all=True)
        self._appending.begin()
        try:
            for append in appends:
                self._appending.put(append)
            self._appending.flush()
        except BaseException as error:
            self._end_appending()  # with it goes what is still in the queue: nothing may be written later
            if isinstance(error, KafkaException):
                needed = {"topic": ("WRITE", {append.topic for append in appends})}
                raise failure_of(error_of(error), "appending", self._settings, needed) from None
            raise
        return sum(len(append.records) for append in appends)

    def join(self, joining: GroupConfig) -> Member:
        return KafkaMember(self._settings, joining, self._ends_now)

    def close(self) -> None:
        self._point_readers.close()
        self._end_appending()

    def _end_appending(self) -> None:
        if self._appending is not None:
            self._appending.close()
            self._appending = None

    # ---------------------------------------------------------------- asking

    def _ask(
        self,
        doing: str,
        ask: Callable[..., Futures[Key]],
        right: tuple[str, str],
        without: Collection[int] = frozenset(),
        recent: Collection[str] = (),
    ) -> dict[Key, Any]:
        """The answers, without those that failed with one of these codes. `right` is what Kafka asks for each."""
        kind, operation = right
        tries_s, deadline = list(TRIES_S), time.monotonic() + ASK_S

        def asked() -> dict[Key, Any]:
            within_s = tries_s[0]
            try:
                return self._answers(ask(request_timeout=within_s), without, within_s + GRACE_S)
            except KafkaException as error:
                if error_of(error).code() not in UNREACHED:
                    raise
                if len(tries_s) > 1:
                    tries_s.pop(0)
                elif time.monotonic() > deadline or not self._look_again():
                    raise
                raise SomewhereElse from None  # others answer, and will have found a controller soon

        return self._patiently(doing, asked, {kind: (operation, ())}, recent=recent)

    def _answers(self, futures: Futures[Key], without: Collection[int], seconds: float) -> dict[Key, Any]:
        found, deadline = {}, time.monotonic() + seconds
        for key, future in futures.items():
            try:
                found[key] = known(self._answer(future, deadline))
            except KafkaException as error:
                told = error_of(error)
                if told.code() not in without:
                    name = key if isinstance(key, str) else getattr(key, "topic", None) or getattr(key, "name", "")
                    raise OfOneError(told, str(name)) from None
        return found

    def _answer(self, future: Future[Any], deadline: float) -> Any:
        """Waits no longer than there can be an answer: with a wrong password there is none."""
        looks = 0
        while True:
            try:
                return future.result(LOOK_S)
            except FutureTimeout:
                looks += 1
                self._admin.poll(0)  # lets the client say what is wrong
                refusal = self._causes.refusal(self._settings)
                if looks % PROBE_EVERY == 0 and self._causes.is_unexplained():
                    refusal = refusal or other_protocol(self._settings)
                if refusal is not None:
                    raise refusal from None
                if time.monotonic() > deadline:
                    raise

    def _patiently(
        self,
        doing: str,
        ask: Callable[[], Answer],
        needed: Needed,
        causes: Causes | None = None,
        recent: Collection[str] = (),
    ) -> Answer:
        """An answer. What passes by itself is asked again: a pending transaction, a broker behind on recent topics."""
        deadline = time.monotonic() + ASK_S
        while True:
            try:
                return ask()
            except KafkaException as error:
                told = error_of(error)
                is_behind = told.code() in MISSING and bool(self._settings.recent.among(recent))
                if not (told.code() in PASSING or is_behind) or time.monotonic() > deadline:
                    self._admin.poll(0)
                    kind = DENIED.get(told.code())
                    if (
                        isinstance(error, OfOneError) and kind is not None and kind in needed
                    ):  # only that of the one that failed
                        needed = {kind: (needed[kind][0], [error.name])}
                    raise failure_of(told, doing, self._settings, needed, causes or self._causes) from None
                if told.code() in STALE:
                    self._look_again()
            except SomewhereElse:
                self._look_again()
            except FutureTimeout:  # the client lost it: it answers within its own time, or never
                if time.monotonic() > deadline:
                    text = f"{doing}: no answer within {ASK_S:.0f} s"
                    raise unreached(text, self._settings, causes or self._causes) from None
            time.sleep(AGAIN_S)

    def _look_again(self) -> bool:
        """Makes the client look for leaders again, which it does not do by itself; whether any broker answered."""
        with suppress(KafkaException):
            self._admin.list_topics(timeout=LOOK_AGAIN_S)
            return True
        return False

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + VISIBLE_S
        while not holds():
            if time.monotonic() > deadline:
                raise LogUnavailable(f"{otherwise} after {VISIBLE_S:.0f} s")
            time.sleep(AGAIN_S)


class SomewhereElse(Exception):
    """Nobody answered: another broker may."""


class OfOneError(KafkaException):
    """One of several answers failed: that of this topic or group."""

    def __init__(self, error: KafkaError, name: str) -> None:
        super().__init__(error)
        self.name = name


def known(answer: Any) -> Any:
    """An answer that is one. Where the leader of a partition is gone, and others answer, the client (librdkafka 2.16.0)
    gives the offset that stands for none, without an error; and it asks the same one again until it is told to look.
    """
    if getattr(answer, "offset", None) == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the leader of a partition does not answer"))
    return answer

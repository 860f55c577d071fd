"""A container in its Kafka group: static membership, and transactions that carry the group's offsets.

    join      init_transactions fences the slot's previous producer and ends its transaction, then the group is joined
    transact  begin, produce, send_offsets_to_transaction with the membership of the last assignment, commit
    close     abort what is open, go
    leave     unsubscribe first

A static member that closes is not forgotten by the broker before its session is over (6 s): a restart in that time
causes no rebalance. One that unsubscribes is: its client tells the broker, and its close waits until that is answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPlace

from samovar.changelog.kafka.client import ConsumeError
from samovar.changelog.kafka.ends import AskEnds, EndWatch
from samovar.changelog.kafka.errors import UNREACHED, Failure, Needed, error_of, failure_of
from samovar.changelog.kafka.read import PositionReader
from samovar.changelog.kafka.settings import HEARTBEAT_MS, SESSION_MS, TRANSACTION_MS, Conf, Settings
from samovar.changelog.kafka.write import Writer
from samovar.changelog.log import Append, Delivery, GroupConfig, Records, TopicPartition
from samovar.common import failpoints
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused

JOIN_S = 30.0  # until a slot's producer must be ready
OFFSETS_S = 5.0  # until the group's coordinator must have taken the offsets
COMMIT_S = 30.0  # until a commit must be known to have happened, or not
ABORT_S = 10.0
REASON_S = 1.0
LEAVE_POLL_S = 0.02
LEAVE_S = 5.0  # until the client must have let go of its partitions
GRACE_S = 0.5  # for a client that does look at its timeout

Rebalanced: TypeAlias = Callable[[Consumer, Sequence[KafkaPlace]], None]


class KafkaMember:
    """One container of a group. The source of truth for what it owns, and for whether its transaction is open."""

    def __init__(self, settings: Settings, joining: GroupConfig, ask_ends: AskEnds) -> None:
        self._settings, self._joining = settings, joining
        self._ends = EndWatch(ask_ends)
        self._name = f"{joining.group}-{joining.slot}"
        self._exactly_once = joining.delivery is Delivery.EXACTLY_ONCE
        self._owned: set[TopicPartition] = set()
        self._membership: Any = None  # of the last assignment: an old one is refused by the broker, as it should be
        self._is_assigned = False
        self._open = False
        self._usable = True
        self._closed = self._closing = False
        self._broken: Exception | None = None
        self._writer = self._ready_writer()
        member: Conf = {
            "group.instance.id": self._name,
            "group.protocol": "classic",
            "partition.assignment.strategy": "range",
        }
        for name, wanted in (("session.timeout.ms", SESSION_MS), ("heartbeat.interval.ms", HEARTBEAT_MS)):
            if name not in settings.given:
                member[name] = str(wanted)
        try:
            self._stream = PositionReader(
                settings, f"reading in group {joining.group}", joining.topics, self._poll_group, needed=self._needed()
            )
            try:  # the one that is in the group reads nothing itself
                member["error_cb"] = self._stream.note_down
                self._consumer = Consumer(settings.consumer(joining.group, member))
            except KafkaException as error:
                self._stream.close()
                raise settings.refusal(error) from None
        except Refused:
            self._writer.close()
            raise
        self._consumer.subscribe(
            list(joining.topics) if joining.lead is None else [joining.lead],
            on_assign=self._keeping_errors(self._on_assign),
            on_revoke=self._keeping_errors(self._on_revoke),
            on_lost=self._keeping_errors(self._on_lost),
        )

    def _ready_writer(self) -> Writer:
        if not self._exactly_once:
            return Writer(self._settings, {}, reports_all=True)
        more: dict[str, Any] = {"transactional.id": self._name}
        if "transaction.timeout.ms" not in self._settings.given:
            more["transaction.timeout.ms"] = TRANSACTION_MS
        writer = Writer(self._settings, more, reports_all=False)
        try:
            retry_until(writer.producer.init_transactions, JOIN_S)
        except KafkaException as error:
            with suppress(KafkaException):  # lets the client say what is wrong
                writer.producer.poll(0)
            doing, causes = f"joining as {self._name}", writer.causes
            writer.close()
            raise failure_of(error_of(error), doing, self._settings, self._needed(), causes) from None
        return writer

    def _needed(self, *appends: str) -> Needed:
        return {
            "group": ("READ", [self._joining.group]),
            "transactional-id": ("WRITE", [self._name]),
            "topic": ("WRITE", appends) if appends else ("READ", self._joining.topics),
        }

    # ---------------------------------------------------------------- reading

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        self._refuse_unusable()
        try:
            records = self._stream.poll(max_records, timeout_s)
        except Fenced:
            self._usable = False
            raise
        broken, self._broken = self._broken, None
        if isinstance(broken, KafkaException):
            self._usable = False
            raise failure_of(error_of(broken), f"changing partitions as {self._name}", self._settings) from None
        if broken is not None:
            raise broken
        if not self._usable:
            raise Fenced(f"{self._name} is not a member of its group any more")
        self._ends.watch(self._stream.ended())
        return records

    def _poll_group(self, wait_s: float) -> None:
        """Look after the group: partitions come and go in here."""
        for message in self._consumer.consume(1, wait_s):
            error = message.error()
            if error is not None:
                at = TopicPartition(message.topic() or "", message.partition() or 0)
                raise self._stream.to_exception(ConsumeError(at, message.offset() or 0, error))

    def seek(self, at: TopicPartition, offset: int) -> None:
        if at not in self._owned:
            raise ValueError(f"{at} does not belong to {self._name}")
        self._stream.seek(at, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._stream.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._stream.resume(partitions)

    def position(self, at: TopicPartition) -> int:
        return self._stream.position(at)

    def at_end(self, at: TopicPartition) -> bool:
        return self._stream.at_end(at)

    def standing(self) -> Mapping[TopicPartition, int]:
        return self._ends.standing(self._stream.ended())

    def has_assignment(self) -> bool:
        return self._is_assigned

    # ---------------------------------------------------------------- partitions

    def _keeping_errors(self, callback: Rebalanced) -> Rebalanced:
        """The client is confused by an exception that leaves a callback: it is kept, and raised by what called it."""

        def run(consumer: Consumer, places: Sequence[KafkaPlace]) -> None:
            try:
                callback(consumer, places)
            except Exception as error:
                self._broken = self._broken or error

        return run

    def _on_assign(self, consumer: Consumer, places: Sequence[KafkaPlace]) -> None:
        if self._closing:
            return  # too late; and to ask the client for anything now would be to wait for ever
        consumer.assign([])  # nothing is read before it is sought
        self._membership = consumer.consumer_group_metadata()
        # Ranges of topics that differ in size would not be the same partitions: those of the lead count for all.
        topics, lead = self._joining.topics, self._joining.lead
        pairs = [(topic, place) for place in places for topic in ([place.topic] if lead is None else topics)]
        given = sorted(TopicPartition(topic, place.partition) for topic, place in pairs)
        self._owned, self._is_assigned = set(given), True
        self._stream.forget()
        if given:
            self._joining.on_assigned(given)
        failpoints.hit("assign.after")

    def _on_revoke(self, consumer: Consumer, _places: Sequence[KafkaPlace]) -> None:
        # First told, then given up: until then the member may still commit what it has done.
        failpoints.hit("revoke.before")
        try:
            if self._owned:
                (self._joining.on_revoked if self._usable else self._joining.on_lost)(sorted(self._owned))
        finally:
            self._close_consumer(consumer)
        failpoints.hit("revoke.after")

    def _on_lost(self, consumer: Consumer, _places: Sequence[KafkaPlace]) -> None:
        self._usable = False
        lost = sorted(self._owned)
        self._close_consumer(consumer)
        if lost:
            self._joining.on_lost(lost)

    def _close_consumer(self, consumer: Consumer) -> None:
        self._owned, self._is_assigned = set(), False
        self._stream.forget()
        consumer.unassign()

    # ---------------------------------------------------------------- writing

    def transact(
        self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        self._refuse_unusable()
        self._usable = False  # until all of it has happened
        foreign = sorted(str(at) for at in offsets if at not in self._owned)
        if foreign:
            raise Fenced(f"{', '.join(foreign)} of group {self._joining.group} does not belong to {self._name}")
        self._writer.begin()
        if self._exactly_once:
            self._transact(appends, offsets)
        else:
            self._write_then_commit(appends, offsets)
        self._usable = True
        return self._writer.ends

    def _transact(self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]) -> None:
        producer = self._writer.producer

        def send_offsets(seconds: float) -> None:
            places, membership = places_at(offsets), self._membership
            retry_until(lambda left: producer.send_offsets_to_transaction(places, membership, left), seconds)

        try:
            producer.begin_transaction()
            self._open = True
            failpoints.hit("produce.before")
            for append in appends:
                self._writer.put(append)
            failpoints.hit("produce.after")
            failpoints.hit("offsets.before")
            if offsets:
                call_with_deadline(send_offsets, OFFSETS_S)
            failpoints.hit("offsets.after")
            if failpoints.is_armed("flush.after"):
                self._writer.flush()  # a commit does that too, and nobody can stand in between
            failpoints.hit("flush.after")
        except KafkaException as error:
            reason = self._reason(error_of(error))
            failure = self._failure(reason, "writing")
            if reason.code() in UNREACHED:
                self._open = False  # whom it does not reach it cannot tell either: the slot's next one does
            else:
                self._abort()
            raise failure from None
        except NoAnswerError as error:
            self._open = False  # a producer that hangs cannot abort either: the slot's next one does
            raise LogUnavailable(f"sending offsets as {self._name}: {error}") from None
        failpoints.hit("commit.before")
        self._commit()
        failpoints.hit("commit.after")

    def _reason(self, error: KafkaError) -> KafkaError:
        """Why a transaction failed before its offsets were sent. Asked to commit, which it cannot any more, it says."""
        if error.code() != KafkaError._STATE:
            return error
        self._writer.producer.poll(0)  # what became of single records
        try:
            self._writer.producer.commit_transaction(REASON_S)
        except KafkaException as why:
            return error_of(why)
        raise AssertionError("a failed transaction was committed")

    def _commit(self) -> None:
        """Until the answer is known. An abort that succeeds is an answer too: nothing happened."""
        try:
            retry_until(self._writer.producer.commit_transaction, COMMIT_S)
        except KafkaException as error:
            told = error_of(error)
            failure = self._failure(told, "committing")
            if told.txn_requires_abort() and self._abort():
                raise failure from None
            text = self._settings.scrubbed(told.str())
            raise CommitUnknown(f"committing as {self._name}: {text} ({told.name()})") from None
        self._open = False

    def _abort(self) -> bool:
        try:
            retry_until(self._writer.producer.abort_transaction, ABORT_S)
        except KafkaException:
            return False  # the broker ends it when its time is over, or when the slot is taken again
        self._open = False
        return True

    def _write_then_commit(self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]) -> None:
        failpoints.hit("produce.before")
        for append in appends:
            self._writer.put(append)
        self._writer.flush()
        failpoints.hit("produce.after")
        failpoints.hit("flush.after")
        failpoints.hit("offsets.before")
        failpoints.hit("commit.before")
        errors = []
        try:
            told = self._consumer.commit(offsets=places_at(offsets), asynchronous=False) if offsets else ()
            errors = [place.error for place in told or () if place.error is not None]
        except KafkaException as error:
            errors = [error_of(error)]
        if errors:
            failure = self._failure(errors[0], "committing offsets")
            raise CommitUnknown(str(failure)) if isinstance(failure, LogUnavailable) else failure
        failpoints.hit("offsets.after")
        failpoints.hit("commit.after")

    def _failure(self, error: KafkaError, doing: str) -> Failure:
        """What to raise. The first record that failed says more than the transaction that failed with it."""
        needed = self._needed(*self._writer.topics)
        return failure_of(
            self._writer.failed or error, f"{doing} as {self._name}", self._settings, needed, self._writer.causes
        )

    def _refuse_unusable(self) -> None:
        if self._closed or not self._usable:
            raise ValueError("after a failed transaction, or a close, a member can only be closed")

    # ---------------------------------------------------------------- leaving

    def leave(self) -> None:
        if not self._closed and self._usable and not self._open:
            # Partitions are given up in a callback, which the client makes only while it is asked for something. One
            # that does not get there is missed when its session is over, as after a mere close.
            deadline = time.monotonic() + LEAVE_S
            with suppress(KafkaException):
                self._consumer.unsubscribe()
                while self._owned and time.monotonic() < deadline:
                    self._consumer.consume(1, LEAVE_POLL_S)
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        if self._open:
            self._abort()
        self._closing = True
        try:
            if self._usable:
                self._consumer.close()  # calls on_revoked, in which a last commit is still possible
            else:
                # One that was fenced has nothing to say to its group, and its client can wait for an answer without an
                # end.
                lost, self._owned = sorted(self._owned), set()
                if lost:
                    self._joining.on_lost(lost)
        except KafkaException as error:
            raise LogUnavailable(self._settings.scrubbed(error_of(error).str())) from None
        finally:
            self._closed = True
            self._ends.close()
            del self._consumer
            self._stream.close()
            self._writer.close()
        if self._broken is not None and not isinstance(self._broken, KafkaException):
            raise self._broken  # not of the client, which has nothing to do with us any more


class NoAnswerError(Exception):
    """The call did not come back. Its client must not be used again."""


def call_with_deadline(call: Callable[[float], object], seconds: float) -> None:
    """Calls on a thread of its own, and raises what it raised.

    librdkafka's send_offsets_to_transaction does not look at its timeout while it waits for the group's coordinator,
    and waits for ever where the connection broke under it (its issues 5456 and 5511): what has not come back by the
    deadline is left behind, together with its producer.
    """
    raised: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            call(seconds)
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="samovar-kafka-call", daemon=True).start()
    if not done.wait(seconds + GRACE_S):
        raise NoAnswerError(f"no answer within {seconds + GRACE_S:.1f} s")
    if raised:
        raise raised[0]


def places_at(offsets: Mapping[TopicPartition, int]) -> list[KafkaPlace]:
    return [KafkaPlace(*at, offset) for at, offset in offsets.items()]


def retry_until(step: Callable[[float], Any], seconds: float) -> None:
    """Take a step again while the client says that this may help, for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            step(max(deadline - time.monotonic(), 0.1))
        except KafkaException as error:
            if not error_of(error).retriable() or time.monotonic() > deadline:
                raise
        else:
            return

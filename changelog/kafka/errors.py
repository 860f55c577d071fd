"""Kafka's error codes, as the few kinds that a user of a Log tells apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import admin as admin_module

from samovar.changelog.kafka.causes import LOGIN, Causes, login_refused, other_protocol
from samovar.changelog.kafka.settings import Settings
from samovar.common.errors import Fenced, LogUnavailable, Refused

# Another member or producer took over, or the group went on without this one.
FENCING = frozenset(
    {
        KafkaError._FENCED,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)
# What a right is missing on.
DENIED: Mapping[int, str] = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
}
MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# The client knows a leader that is none any more.
STALE = frozenset(
    {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION}
)
# Gone in a moment: a coordinator that moves or loads, a leader that is elected, a transaction that is being ended.
PASSING = STALE | frozenset(
    {
        KafkaError._WAIT_COORD,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)

# No broker could be asked.
UNREACHED = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._RESOLVE})
ASK_S = 5.0

Failure = Fenced | LogUnavailable | Refused
# By what it is needed on: the right, and the names of those of which one may lack it.
Needed: TypeAlias = Mapping[str, tuple[str, Collection[str]]]
NOTHING: Needed = {}

admin: Any = admin_module  # most of its names are not exported as far as types go


def error_of(raised: KafkaException) -> KafkaError:
    told = raised.args[0]
    return told if isinstance(told, KafkaError) else KafkaError(KafkaError._FAIL, str(told))


def failure_of(
    error: KafkaError, doing: str, settings: Settings, needed: Needed = NOTHING, causes: Causes | None = None
) -> Failure:
    """What to raise. `doing` says what was tried: "reading in group g"; `needed` what Kafka asks for it; `causes` what
    the client said of its connections.
    """
    code, text = error.code(), f"{doing}: {settings.scrubbed(error.str())} ({error.name()})"
    if code in FENCING:
        return Fenced(text)
    if code in DENIED:
        kind = DENIED[code]
        right, names = needed.get(kind, ("", ()))
        if kind == "topic" and len(names) > 1:
            names = without(right, names, settings) or names
        what = f"{right} on {kind} {', '.join(sorted(names))}" if names else f"a right on a {kind}"
        hint = (
            "Grant it: `samovar topics plan` lists the rights of each role, with `--commands` as Kafka's own commands."
        )
        return Refused("log-access-denied", f"Kafka denies {settings.user} {what}", hint, text)
    if code in LOGIN:
        return login_refused(error, settings)
    if code in MISSING:
        hint = "Create it, or correct its name; `samovar topics plan` lists all topics."
        return Refused("topic-missing", "Kafka does not know the topic or partition", hint, text)
    if code in TOO_LARGE:
        hint = "Raise max.message.bytes of the topic, and message.max.bytes in the settings of the log."
        return Refused("record-too-large", "a record is larger than Kafka allows", hint, text)
    if code in UNREACHED and causes is not None:
        return unreached(text, settings, causes)
    return LogUnavailable(text)


def unreached(text: str, settings: Settings, causes: Causes) -> Refused | LogUnavailable:
    """A password or a certificate that is not accepted is no broker that is away."""
    refusal = causes.refusal(settings) or (other_protocol(settings) if causes.is_unexplained() else None)
    return refusal or LogUnavailable(text + causes.words(settings))


def without(right: str, topics: Collection[str], settings: Settings) -> list[str]:
    """Which of these topics this user lacks a right on. Kafka says of a transaction only that there is one."""
    client = admin.AdminClient(settings.admin(lambda _error: None))
    asked = client.describe_topics(TopicCollection(list(topics)), include_authorized_operations=True)
    found = []
    for name, future in asked.items():
        try:
            allowed = {each.name for each in future.result(ASK_S).authorized_operations or ()}
        except (KafkaException, FutureTimeout):  # not even to be looked at
            allowed = set()
        if right not in allowed:
            found.append(name)
    return found

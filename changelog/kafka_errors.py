"""Kafka's error codes, as the few kinds that a user of a Log tells apart."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from samovar.changelog.errors import Fenced, LogUnavailable, Refused
from samovar.changelog.kafka_settings import Settings

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
DENIED = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
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
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)

Failure = Fenced | LogUnavailable | Refused


def error_of(raised: KafkaException) -> KafkaError:
    told = raised.args[0]
    return told if isinstance(told, KafkaError) else KafkaError(KafkaError._FAIL, str(told))


def failure_of(error: KafkaError, doing: str, settings: Settings) -> Failure:
    """What to raise. `doing` says what was tried: "reading in group g"."""
    code, text = error.code(), f"{doing}: {settings.scrubbed(error.str())} ({error.name()})"
    if code in FENCING:
        return Fenced(text)
    if code in DENIED:
        hint = "Check the credentials, and the rights that `samovar topics plan` lists."
        return Refused("log-access-denied", "Kafka refuses access", hint, text)
    if code in MISSING:
        hint = "Create it, or correct its name; `samovar topics plan` lists all topics."
        return Refused("topic-missing", "Kafka does not know the topic or partition", hint, text)
    if code in TOO_LARGE:
        hint = "Raise max.message.bytes of the topic, and message.max.bytes in the settings of the log."
        return Refused("record-too-large", "a record is larger than Kafka allows", hint, text)
    return LogUnavailable(text)

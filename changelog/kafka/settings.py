"""What a Kafka client is told: the service's settings, passed through, over ours; and how they may be shown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from samovar.common.errors import Refused

Conf: TypeAlias = dict[str, Any]
OnError: TypeAlias = Callable[[KafkaError], None]

SESSION_MS = 6_000
HEARTBEAT_MS = 1_000  # how soon a member learns that the group rebalances
TRANSACTION_MS = 10_000
LAG_S = 10.0  # until every broker must know a topic that one of them knows
LOGGER = logging.getLogger("samovar.kafka")

# What exactly-once, positions and fencing stand on: nobody else may set these.
OURS = frozenset(
    """acks auto.offset.reset enable.auto.commit enable.auto.offset.store enable.idempotence enable.partition.eof
    group.id group.instance.id group.protocol isolation.level partition.assignment.strategy partitioner transactional.id
    delivery.report.only.error""".split()
)
SECRET_WORDS = ("password", "secret", "token", "oauthbearer", "pem", "jaas", "private", "credential")
HIDDEN = "***"
NOBODY = "samovar-reader"  # the client wants a group's name even from one that joins none

EVERY: Conf = {
    "socket.nagle.disable": True,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "retry.backoff.ms": 2,  # with 100, the default, a commit alone takes longer than that
    "retry.backoff.max.ms": 500,
}
READING: Conf = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,  # the only way to learn that a position passed markers and gaps
    "socket.timeout.ms": 10_000,
    # The end of a partition shows when a fetch comes back empty, and a partition just sought waits for the fetch that
    # is under way: so fetches are short. They still come back at once where there is anything.
    "fetch.wait.max.ms": 25,
    "fetch.error.backoff.ms": 20,
    # Full queues are looked at again soon; by default a second later.
    "fetch.queue.backoff.ms": 2,
    "fetch.message.max.bytes": 2 << 20,
    "queued.min.messages": 40_000,
    "queued.max.messages.kbytes": 32 << 10,
}
# For a few records here and there: what is fetched and not wanted is decoded all the same, so no more is fetched ahead
# than one request brings. By how many records that is to be, at about a hundred bytes each.
GLANCING: Mapping[int, Conf] = {
    1_000: {"queued.min.messages": 1, "fetch.message.max.bytes": 32 << 10},
    20_000: {"queued.min.messages": 1, "fetch.message.max.bytes": 512 << 10},
}
# For who reads on and on: a broker that answers every time that something comes has a hundred requests per second for
# it.
TAILING: Conf = {"fetch.wait.max.ms": 100, "fetch.min.bytes": 256 << 10}
WRITING: Conf = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",  # as Java's producers; librdkafka's own default is another one
    "compression.type": "lz4",
    "linger.ms": 0.2,
    "message.max.bytes": 8 << 20,  # what a record may have is for its topic to say
    "queue.buffering.max.messages": 400_000,
    "queue.buffering.max.kbytes": 128 << 10,
}


class RecentTopics:
    """The source of truth for since when a topic is known to be there. Brokers learn of a topic one after the other:
    one that says it is not there may only be behind the others.
    """

    def __init__(self) -> None:
        self._first_seen: dict[str, float] = {}

    def saw(self, names: Collection[str]) -> None:
        now = time.monotonic()
        for name in names:
            self._first_seen.setdefault(name, now)

    def lost(self, names: Collection[str]) -> None:
        for name in names:
            self._first_seen.pop(name, None)

    def among(self, names: Collection[str]) -> list[str]:
        """Those that some broker may not know yet."""
        now = time.monotonic()
        return [name for name in names if now - self._first_seen.get(name, -LAG_S) < LAG_S]


@dataclass(frozen=True, repr=False)
class Settings:
    """The settings of one log. Its text shows no secret, and `scrubbed` keeps them out of what others say."""

    given: Mapping[str, str]
    secrets: tuple[str, ...] = field(init=False)
    recent: RecentTopics = field(init=False, compare=False, default_factory=RecentTopics)

    def __post_init__(self) -> None:
        taken = sorted(OURS & self.given.keys())
        if taken:
            hint = "Remove it from the settings of the log: exactly-once depends on it."
            raise Refused("kafka-setting-owned", f"the Kafka setting `{taken[0]}` is set by Samovar itself", hint)
        if not self.given.get("bootstrap.servers"):
            hint = "Set it to the address of a broker: 127.0.0.1:9092."
            raise Refused("kafka-setting-missing", "the Kafka setting `bootstrap.servers` is missing", hint)
        hidden = {str(value) for name, value in self.given.items() if is_secret(name) and value}
        object.__setattr__(self, "secrets", tuple(sorted(hidden, key=len, reverse=True)))

    def __repr__(self) -> str:
        shown = (f"{name}={HIDDEN if is_secret(name) else value}" for name, value in sorted(self.given.items()))
        return f"Settings({', '.join(shown)})"

    @property
    def user(self) -> str:
        """Whom Kafka takes this client for, as far as the settings say it."""
        name = self.given.get("sasl.username")
        return f"user {name}" if name else "this user"

    @property
    def protocol(self) -> str:
        return self.given.get("security.protocol", "PLAINTEXT").upper()

    def admin(self, on_error: OnError) -> Conf:
        # Nobody serves the log of an admin client; its failures come with its answers, or with its last complaint.
        return EVERY | {"socket.timeout.ms": 10_000, **self.given, "log_level": 0, "error_cb": on_error}

    def consumer(self, group: str, more: Conf) -> Conf:
        return EVERY | READING | {**self.given, "group.id": group, **more, "logger": LOGGER}

    def fetcher(self, more: Conf | None = None) -> Conf:
        """For a consumer that is in no group, and has no callbacks. The service's own settings go before `more`."""
        return EVERY | READING | (more or {}) | {**self.given, "group.id": NOBODY}

    def producer(self, more: Conf) -> Conf:
        return EVERY | WRITING | {**self.given, **more, "logger": LOGGER}

    def scrubbed(self, text: object) -> str:
        shown = str(text)
        for secret in self.secrets:
            shown = shown.replace(secret, HIDDEN)
        return shown

    def refusal(self, error: KafkaException) -> Refused:
        """What a client that could not even be made is told."""
        hint = "The names are librdkafka's: see its CONFIGURATION.md."
        told = error.args[0]
        text = told.str() if isinstance(told, KafkaError) else told
        return Refused("kafka-setting-unknown", "a Kafka setting is not accepted", hint, self.scrubbed(text))


def is_secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_WORDS)


# All clients get all settings, and a consumer need not hear which are a producer's; that a broker is away is told by
# what then fails, not twenty times a second; a coordinator that still loads is asked again.
NO_NEWS = ("CONFWARN", "FAIL", "GETPID")
LOGGER.addFilter(lambda record: not record.getMessage().startswith(NO_NEWS))

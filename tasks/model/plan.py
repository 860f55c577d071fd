"""What a service's tasks are to do: its inputs, its compiled rules, its topics. Frozen; made once from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from samovar.common.tunables import DEFAULTS, Tunables
from samovar.common.wire import stored
from samovar.patterns.engine.compile import Program
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_MATCHES, MAX_PARTIALS
from samovar.tasks.model.user_task import Task

# Of the fields to take, and the fields of time and type; without the last, the type of all events.
Decoding: TypeAlias = Callable[[Sequence[str], str, str | None, str], Decoder]
MAIN = ""  # the stage that reads the streams as they are keyed


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One input stream. `kinds` are the types of its fields, as in samovar.patterns.semantics.schema; `decoder` makes
    what reads its format.

    Where `topic` is a repartition topic, `source_topic` is the stream's own, and `source_partitions` how many that has.
    A stream that a stage needs no more is `retired`: it keeps its number, and nothing is read of it. `placed_in` is
    among how many partitions murmur2 places its keys (0: that is not checked), `types` are those of its events, if
    known.
    """

    stream: str
    topic: str
    key: str
    time_field: str = "ts"
    type_field: str | None = None  # None: every event is of the stream's name
    slack_ms: int = 0
    idle_ms: int = 5_000
    max_future_skew_ms: int = 86_400_000
    kinds: Mapping[str, str] = field(default_factory=dict)
    source_topic: str = ""
    source_partitions: int = 0
    retired: bool = False
    decoder: Decoding = Decoder
    placed_in: int = 0
    types: frozenset[str] | None = None

    @property
    def is_forwarded(self) -> bool:
        return bool(self.source_topic)

    @property
    def origin(self) -> str:
        """The topic by which events of the stream are named."""
        return self.source_topic or self.topic


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A stream's events on their way to a stage that is keyed otherwise, through a repartition topic.

    Without a `field` all events have one key. `lasting_ms` is for how long after an event a rule there may wait. It is
    `endless` where tasks of the user's read it: their timers may be set to any time.
    """

    stage: str
    stream: str
    field: str | None
    topic: str
    partitions: int
    lasting_ms: int = 0
    endless: bool = False


@dataclass(frozen=True, kw_only=True)
class OutputTopics:
    """Where a service writes."""

    alerts: str
    late: str
    dead_letters: str
    changelog: str
    journal: str


@stored("id version text params lists number shadow alerts_from_ms began_by_ms drains_until_ms quarantined")
@dataclass(frozen=True, kw_only=True)
class PublishedRule:
    """A rule as it was loaded, for the journal: a replay compiles it again.

    What is published has a `number`, and may be in `shadow`: it is counted and raises no alert, nor does one before
    `alerts_from_ms`. A version that another came in place of drains: until `drains_until_ms` it goes on with matches
    that began by `began_by_ms`. A version that went over a step's budget is `quarantined`, for the reason that stands
    there: it is not at work, and comes back with a new number only.
    """

    id: str
    version: str
    text: str
    params: Mapping[str, object] = field(default_factory=dict)
    lists: Mapping[str, object] = field(default_factory=dict)
    number: int = 0
    shadow: bool = False
    alerts_from_ms: int | None = None
    began_by_ms: int | None = None
    drains_until_ms: int | None = None
    quarantined: str | None = None

    @property
    def drains(self) -> bool:
        return self.drains_until_ms is not None

    @property
    def may_be_muted(self) -> bool:
        return self.shadow or self.alerts_from_ms is not None or self.began_by_ms is not None

    @property
    def name(self) -> str:
        """By which a position knows it; a version that drains stands next to the one that took its place."""
        return f"{self.id}@{self.version}" if self.drains else self.id


@dataclass(frozen=True)
class ActivationPolicy:
    """How a published rule comes in: whether the old version drains, how long it is cold, since when it is folded."""

    drain: bool = False
    cold_ms: int = 0
    warm_from_ms: int | None = None


@dataclass(frozen=True)
class RulesetChange:
    """What was published: the last change's number, how its rules come in, and which of those that are gone drain."""

    change: int
    policies: Mapping[str, ActivationPolicy] = field(default_factory=dict)
    draining: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Emit:
    """Where emitted records go. `key` and `time` are the fields of a stream of the same service, which reads them, and
    `encode` makes its bytes of JSON where it is in another format; ValueError: no value of the stream's schema.
    """

    topic: str
    key: str | None = None
    time: str | None = None
    encode: Callable[[bytes], bytes] | None = None
    among: int | None = None  # partitions, where the service reads it with no more than these


@dataclass(frozen=True)
class StoreSpec:
    """A named store. Rows stay for ever without a time to live, in event time since they were last written."""

    ttl_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One task: how its objects are made, and what they may use. One that is `alone` has no main stage before it."""

    name: str
    make: Callable[[], Task]
    source: str  # as the service file names the class
    version: str
    emits: Mapping[str, Emit] = field(default_factory=dict)
    stores: Mapping[str, StoreSpec] = field(default_factory=dict)
    window_ms: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that the tasks of a stage need to know, apart from their partitions and where their state lies.

    A service is a list of plans: the main stage, which also forwards events to stages that are keyed otherwise, and
    after it a plan a stage. A stage has its own changelog, journal and state folder. Its tasks are the user's `task`,
    or the program's rules. `others` are further inputs that rules of the stage may have had before.
    """

    service: str
    inputs: tuple[InputSpec, ...]
    program: Program
    rules: tuple[PublishedRule, ...]
    topics: OutputTopics
    max_partials: int = MAX_PARTIALS
    max_events: int = MAX_EVENTS
    max_matches: int = MAX_MATCHES
    tunables: Tunables = DEFAULTS
    stage: str = MAIN
    forwards: tuple[Forward, ...] = ()
    others: tuple[InputSpec, ...] = ()
    task: TaskSpec | None = None
    ruleset_change: RulesetChange | None = None  # None: nothing was ever published, the rules are those of files
    storm: Limits = field(default_factory=dict)  # alerts that a rule may raise
    placed: frozenset[str] = frozenset()  # streams that user-defined tasks read as they are keyed

    @property
    def versions(self) -> dict[str, str]:
        if self.task is not None:
            return {self.task.name: self.task.version}
        return {rule.name: rule.version for rule in self.rules if rule.quarantined is None}

    @property
    def known_versions(self) -> dict[str, str]:
        """Of what was published, at work or in quarantine."""
        return {rule.id: rule.version for rule in self.rules if not rule.drains}

    @property
    def fields(self) -> tuple[str, ...]:
        """What is decoded of a message: what rules read, and then the keys."""
        own = self.program.fields
        keys = [each.key for each in self.inputs]
        keys += [each.field for each in self.forwards if each.field is not None]
        return (*own, *dict.fromkeys(key for key in keys if key not in own))


Limits: TypeAlias = Mapping[str, tuple[int, int]]  # rule to alerts and ms

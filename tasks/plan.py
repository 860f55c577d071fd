"""What a service's tasks are to do: its inputs, its compiled rules, its topics. Frozen; made once from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from samovar.patterns.compile import Program
from samovar.patterns.matcher import MAX_EVENTS, MAX_PARTIALS


@dataclass(frozen=True)
class InputSpec:
    """One input stream. `kinds` are the types of its fields, as in samovar.patterns.schema."""

    stream: str
    topic: str
    key: str
    time_field: str = "ts"
    type_field: str | None = None  # None: every event is of the stream's name
    slack_ms: int = 0
    idle_ms: int = 5_000
    max_future_skew_ms: int = 86_400_000
    kinds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputTopics:
    """Where a service writes."""

    alerts: str
    late: str
    dead_letters: str
    changelog: str
    journal: str


@dataclass(frozen=True)
class RuleText:
    """A rule as it was loaded, for the journal: a replay compiles it again."""

    id: str
    version: str
    text: str
    params: Mapping[str, object] = field(default_factory=dict)
    lists: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """All that a task needs to know, apart from its partition and where its state lies."""

    service: str
    inputs: tuple[InputSpec, ...]
    program: Program
    rules: tuple[RuleText, ...]
    topics: OutputTopics
    max_partials: int = MAX_PARTIALS
    max_events: int = MAX_EVENTS
    cache_bytes: int = 128 << 20

    @property
    def versions(self) -> dict[str, str]:
        return {rule.id: rule.version for rule in self.rules}

    @property
    def fields(self) -> tuple[str, ...]:
        """What is decoded of a message: what rules read, and then the keys."""
        own = self.program.fields
        return (*own, *dict.fromkeys(each.key for each in self.inputs if each.key not in own))

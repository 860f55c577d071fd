"""Draws a history from a seed: a service with its rules and settings, and the steps that will be taken with it.

A scenario is plain data, and all randomness is in it: running it twice gives the same history, and leaving out a step
leaves the others as they were. That is what makes shrinking possible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Any, TypeAlias

from samovar.changelog.partitioner import key_text, partition_of
from samovar.common.failpoints import POINTS
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.versioning import history_ms
from tests.simulation.avro_events import URL, encoded
from tests.support.random_rule_texts import has_overlap_any
from tests.support.random_rules import KEYS, TYPES, random_fields, random_rule, types_of
from tests.support.tunables import RANGES

START_MS = 1_700_000_000_000
MOST_AHEAD_MS = 3_600_000  # of the log's time, that an event may be
LONG_AGO_MS = 3_600_000  # before any event
MANY_KEYS: list[Any] = [f"k{number}" for number in range(12)]  # more than a task holds in memory
# In the service file these are settings of their own, or they only matter to the embedded log and to Spark.
NOT_DRAWN = frozenset(
    "cache_bytes snapshot_every_ms segment_bytes fetch_bytes join_bytes join_segments joined_segments compact_bytes"
    " compact_keys dirty_bytes retain_segments feed_bytes spark_connector archive_records archive_bytes"
    " archive_group_records archive_group_bytes".split()
)


class Failure(Enum):
    """What may become of one call of a container to the log."""

    TIMEOUT_BEFORE = "timeout-before"  # it did not take effect
    TIMEOUT_AFTER = "timeout-after"  # it took effect, and the caller does not know
    LATE_MARKERS = "late-markers"  # a commit is decided, and seen by others only later
    SLOW = "slow"
    NOTHING = "nothing"  # a poll that no broker answers
    PAUSE = "pause"  # the process stands still there, and the others work on until its session is over


class Loss(Enum):
    """What a crash takes with it."""

    NOTHING = "nothing"
    STORES = "stores"  # snapshots stay
    DISK = "disk"
    LAST_WRITES = "last writes"  # as when a machine loses its power


@dataclass(frozen=True)
class Produce:
    """Records of one partition of a stream."""

    stream: str
    partition: int
    records: tuple[tuple[bytes | None, bytes | None], ...]


@dataclass(frozen=True)
class Cycle:
    """A container takes one cycle; where it is down it is started first."""

    container: int


@dataclass(frozen=True)
class Pass:
    """The clock goes on."""

    ms: int


@dataclass(frozen=True)
class FailCall:
    """Of the calls that a container will make to the log, the n-th one of a name fails; without a name, of all."""

    container: int
    name: str
    count: int
    failure: Failure


@dataclass(frozen=True)
class Kill:
    """A container ends as by kill -9 when it passes a failpoint for the n-th time; without a name, at the n-th call or
    failpoint; with a count of 0, at once.
    """

    container: int
    name: str
    count: int
    loss: Loss = Loss.NOTHING


@dataclass(frozen=True)
class Stop:
    """A container ends in good order, for good or to come back."""

    container: int
    leaves: bool


@dataclass(frozen=True)
class Maintain:
    """The log compacts its compacted topics, or drops what retention no longer keeps."""

    what: str  # compact, retain
    seed: int


@dataclass(frozen=True)
class Publish:
    """The rules change."""

    act: str  # publish, disable, enable
    name: str
    text: str = ""
    drain: bool = False
    shadow: bool = False
    warm_ms: int | None = None  # before now, from when on its history is folded


@dataclass(frozen=True)
class ChangeParam:
    """The service file has another value for the parameter `least`; some containers are restarted with it at once, the
    others before the next rest.
    """

    least: int
    restarted: tuple[int, ...]


@dataclass(frozen=True)
class Register:
    """The schema registry gets a schema."""

    schema: int


@dataclass(frozen=True)
class ChangeList:
    """Items come to a shared list, or go."""

    name: str
    items: tuple[Any, ...]
    goes: bool


@dataclass(frozen=True)
class Grow:
    """The topic of a stream gets more partitions."""

    stream: str
    partitions: int


@dataclass(frozen=True)
class Recreate:
    """A topic that the service stands on is deleted and made again, and nobody goes on."""

    what: str  # changelog, journal, input
    stage: int  # which of them


@dataclass(frozen=True)
class Recover:
    """All containers are stopped, and a task is set back or made again from its source."""

    what: str  # rewind, source
    back_ms: int = 0
    damage: int | None = None  # seed: before that, writes of the changelogs are lost
    reads: bool = False  # the moment is before what the changelog has, and not before what was last checked


@dataclass(frozen=True)
class Settle:
    """Faults stop, all input is processed, and everything is checked."""


Step: TypeAlias = (
    Produce
    | Cycle
    | Pass
    | FailCall
    | Kill
    | Stop
    | Maintain
    | Publish
    | ChangeParam
    | Register
    | ChangeList
    | Grow
    | Recreate
    | Recover
    | Settle
)


@dataclass(frozen=True)
class Scenario:
    """One history to be."""

    seed: int
    partitions: int
    containers: int
    streams: Mapping[str, Mapping[str, Any]]
    rules: Mapping[str, str]  # by name
    settings: Mapping[str, Any]
    steps: tuple[Step, ...]
    user_task: bool = False
    on_rocksdb: bool = False
    transaction_ms: int = 10_000
    tunables: Mapping[str, int] = field(default_factory=dict)
    event_work: int | None = None  # of a step's budget
    slots: tuple[int, ...] = ()  # of all containers, where they claim them; two may have the same
    crashes: str | None = None  # a rule: the process ends where one of its events takes much

    def without(self, steps: set[int]) -> Scenario:
        """The same with some steps left out."""
        return replace(self, steps=tuple(step for at, step in enumerate(self.steps) if at not in steps))


def draw(seed: int) -> Scenario:
    """The history of a seed."""
    random_ = Random(seed)
    partitions = random_.choice((1, 1, 2, 2, 3))
    rules = dict(draw_rules(random_, partitions))
    streams = {
        name: {
            "key": "u",
            "type": "type",
            "slack": f"{random_.choice((0, 400, 3000))}ms",
            "idle": f"{random_.choice((500, 2000, 5000))}ms",
            "partitions": partitions,
            "max_future_skew": f"{MOST_AHEAD_MS}ms",
        }
        for name in random_.choice((["ev"], ["ev"], ["left", "right"]))
    }
    is_tiny = random_.random() < 0.8
    tunables = {
        name: random_.randint(*span)
        for name, span in RANGES.items()
        if name not in NOT_DRAWN and (is_tiny or random_.random() < 0.3)
    }
    settings: dict[str, Any] = {
        "cache": f"{random_.choice((1, 500, 5_000, 1_000_000))}B",
        "snapshots": {"every": f"{random_.choice((1, 5_000, 600_000))}ms"},
        "changelog": {"min_compaction_lag": "1ms", "delete_retention": random_.choice(("10s", "10s", "24h"))},
    }
    # `distinct` of a session or window holds no more values than this, which the oracle does not know.
    if random_.random() < 0.25 and not any("distinct(" in text for text in rules.values()):
        settings |= {"max_events": random_.randint(2, 6)}
    if random_.random() < 0.25:
        settings |= {"max_partials": random_.randint(1, 4)}
    if random_.random() < 0.25:
        settings |= {"max_matches": random_.randint(1, 4)}
    containers = random_.choice((1, 2, 2, 3))
    on_rocksdb = random_.random() < 0.1
    if on_rocksdb:
        containers = 1  # whose disk an operator works on
    scenario = Scenario(
        seed, partitions, containers, streams, rules, settings, (),
        user_task=random_.random() < 0.3, on_rocksdb=on_rocksdb, tunables=tunables,
        transaction_ms=random_.choice((10_000, 60_000)),
    )  # fmt: skip
    scenario = replace(scenario, steps=tuple(draw_steps(random_, scenario)))
    scenario = with_rarities(Random(f"rarities of {seed}"), scenario)
    for part in PARTS:
        scenario = part(Random(f"{part.__name__} of {seed}"), scenario)
    return scenario


# ---------------------------------------------------------------- rules


def draw_rules(random_: Random, partitions: int) -> Iterator[tuple[str, str]]:
    """One to three; the topic is keyed by `u`, so that some rules need a repartition stage where there are several
    partitions.
    """
    for number in range(random_.randint(1, 3)):
        yield f"r{number}", draw_rule(random_, f"r{number}", partitions)


def draw_rule(random_: Random, name: str, partitions: int) -> str:
    while True:
        text = random_rule(random_).replace("rule: random", f"rule: {name}", 1)
        # Events can be sent on by a plain field only, the same in all steps.
        if partitions == 1 or is_keyed_by_a_field(text):
            return text


def is_keyed_by_a_field(text: str) -> bool:
    from tests.simulation.topology import can_be_staged  # noqa: PLC0415 - loads the whole service

    return can_be_staged(text)


# ---------------------------------------------------------------- steps


@dataclass
class Course:
    """How often things happen in a history, and where it is."""

    random_: Random
    scenario: Scenario
    trouble: float  # how likely something goes wrong at a step
    now_ms: int = START_MS
    last_ms: int = START_MS  # the time of the newest event
    published: int = 0
    away: dict[int, int] = field(default_factory=dict)  # containers that are not started, for so many portions

    def at_work(self) -> list[int]:
        return [each for each in range(self.scenario.containers) if each not in self.away]

    def passed(self, ms: int) -> Pass:
        self.now_ms += ms
        return Pass(ms)


def draw_steps(random_: Random, scenario: Scenario) -> Iterator[Step]:
    """20 to 60 events in small portions; between them cycles, time, and trouble."""
    course = Course(random_, scenario, random_.choice((0.0, 0.3, 0.6, 0.9)))
    count = random_.randint(20, 60)
    if any(has_overlap_any(text) for text in scenario.rules.values()):
        count = min(count, 20)  # which finds all combinations
    types = [*TYPES, *(kind for text in scenario.rules.values() for kind in types_of(text) * 4)]
    keys = random_.choice([*KEYS, MANY_KEYS, MANY_KEYS])
    has_changes, has_recovery = random_.random() < 0.3, scenario.on_rocksdb
    while count > 0:
        size = min(count, random_.randint(1, 8))
        count -= size
        yield from draw_records(course, size, keys, types)
        course.away = {each: left - 1 for each, left in course.away.items() if left > 0}
        for _ in range(random_.randint(0, 4) if course.at_work() else 0):
            yield Cycle(random_.choice(course.at_work()))
        for _ in range(2):
            if random_.random() < course.trouble:
                yield from draw_trouble(course)
        if has_changes and random_.random() < 0.25:
            yield draw_change(course)
        if has_recovery and random_.random() < 0.4:
            what, back_ms = random_.choice(("rewind", "source")), random_.choice((0, 1_000, 10_000))
            yield Recover(what, back_ms, random_.choice((None, *[random_.randrange(1 << 30)] * 3)))
        if random_.random() < 0.3:
            yield course.passed(random_.choice((300, 1_000, 2_500, 6_000)))
        if random_.random() < 0.15:
            for _ in range(random_.randint(1, 6)):
                yield course.passed(random_.choice((1_000, 2_000)))
                for container in course.at_work():
                    yield Cycle(container)
        if random_.random() < 0.07:
            yield course.passed(random_.choice((15_000, 40_000, 90_000)))
        if random_.random() < 0.05:
            yield Settle()
    yield Settle()


# What may become of the calls of a container.
MAY_FAIL = {
    "poll": (Failure.TIMEOUT_BEFORE, Failure.NOTHING, Failure.PAUSE),
    "produce": (Failure.TIMEOUT_BEFORE, Failure.TIMEOUT_AFTER, Failure.PAUSE),
    "offsets": (Failure.TIMEOUT_BEFORE, Failure.TIMEOUT_AFTER, Failure.PAUSE),
    "commit": (Failure.TIMEOUT_BEFORE, Failure.TIMEOUT_AFTER, Failure.LATE_MARKERS, Failure.PAUSE),
    "committed": (Failure.TIMEOUT_BEFORE, Failure.SLOW),
    "bounds": (Failure.TIMEOUT_BEFORE, Failure.SLOW),
    "read": (Failure.TIMEOUT_BEFORE, Failure.NOTHING),
    "join": (Failure.TIMEOUT_BEFORE, Failure.TIMEOUT_AFTER),
    "": tuple(Failure),
}
# The commit and the write to the store are where it matters most.
COMMIT_POINTS = [point for point in POINTS if point.split(".")[0] in ("produce", "offsets", "commit", "write")]
KILLED_AT = (*POINTS, *COMMIT_POINTS, *COMMIT_POINTS)
COUNTS = (1, 1, 1, 2, 2, 3, 5)


def draw_trouble(course: Course) -> Iterator[Step]:
    """Something goes wrong: here and now, or at a place that a container will come to."""
    random_ = course.random_
    containers = range(course.scenario.containers)
    container = random_.choice(containers)
    others = [each for each in containers if each != container]
    kinds = ("fail", "fail", "fail", "kill", "kill", "kill", "stop", "compact", "retain", "outage", "away", "gone")
    match random_.choice(kinds):
        case "fail":
            name = random_.choice((*MAY_FAIL, "commit", "commit", "offsets", "produce"))
            yield FailCall(container, name, random_.choice(COUNTS), random_.choice(MAY_FAIL[name]))
        case "kill":
            name = random_.choice(("", "", *KILLED_AT))
            loss = random_.choice((Loss.NOTHING, Loss.NOTHING, *Loss))
            yield Kill(container, name, random_.choice((0, *COUNTS) if not name else COUNTS), loss)
        case "stop":
            yield Stop(container, leaves=random_.random() < 0.5)
        case "compact" | "retain" as what:
            yield Maintain(what, random_.randrange(1 << 30))
        case "outage":
            # Nobody hears of the log, while time passes and events come.
            for _ in range(random_.randint(2, 6)):
                for each in containers:
                    yield FailCall(each, "poll", 1, Failure.NOTHING)
                yield course.passed(2_500)
                for each in containers:
                    yield Cycle(each)
        case "away":
            # Partitions move to others, and back.
            yield Stop(container, leaves=True)
            course.away[container] = random_.randint(2, 6)
        case "gone" if others:
            # For so long that deletes may be compacted away before it is back.
            yield Stop(container, leaves=True)
            course.away[container] = random_.randint(2, 4)
            for _ in range(8):
                yield course.passed(2_000)
                for each in others:
                    yield Cycle(each)
                yield Maintain("compact", random_.randrange(1 << 30))


def draw_change(course: Course) -> Publish:
    random_, scenario = course.random_, course.scenario
    known = [*scenario.rules, *(f"p{number}" for number in range(course.published))]
    if random_.random() < 0.3:
        return Publish("disable", random_.choice(known), drain=random_.random() < 0.5)
    if random_.random() < 0.5:
        name = random_.choice(known)
    else:
        name = f"p{course.published}"
        course.published += 1
    return Publish("publish", name, draw_rule(random_, name, scenario.partitions), drain=random_.random() < 0.5)


def draw_records(course: Course, count: int, keys: list[Any], types: list[str]) -> Iterator[Produce]:
    """Events of about now, in and out of order; a few are late, duplicate, malformed or in the wrong partition."""
    random_, partitions = course.random_, course.scenario.partitions
    for _ in range(count):
        stream = random_.choice(list(course.scenario.streams))
        course.last_ms = max(course.last_ms, course.now_ms - random_.choice((0, 400, 3_000)))
        behind = random_.choice((0, 0, 0, 400, 1_000, 3_000)) if random_.random() < 0.93 else 60_000
        event = {"type": random_.choice(types), "ts": course.last_ms - behind, **random_fields(random_, keys)}
        course.last_ms += random_.choice((0, 0, 100, 400))
        key = key_text(event.get("u"))
        own = partition_of(key, partitions) if key is not None else random_.randrange(partitions)
        luck = random_.random()
        if 0.04 <= luck < 0.05:
            event["ts"] += 2 * MOST_AHEAD_MS
        value: bytes | None = json.dumps(event).encode()
        if luck < 0.02:
            value = random_.choice((b"{", b"[]", b"", None, b'{"type": "a"}', b'{"type": 3, "ts": 1}'))
        elif luck < 0.04:
            own = random_.randrange(partitions)
        records = ((key, value),) * (2 if luck > 0.98 else 1)
        yield Produce(stream, own, records)


def event_of(value: bytes | None) -> dict[str, Any] | None:
    """What a record says, where a reader can take it: an object with a time and a type."""
    try:
        event = json.loads(value or b"")
    except ValueError:
        return None
    is_whole = isinstance(event, dict) and isinstance(event.get("ts"), int) and isinstance(event.get("type"), str)
    return event if is_whole else None


# ---------------------------------------------------------------- what is rare

LISTS: dict[str, tuple[Any, ...]] = {
    "some": ("p", "q", "r", ""),
    "mixed": (0, 1, 2.25, "p", "PQ", True),
    "mixed_texts": ("p*", "q", "?"),
}


def with_rarities(random_: Random, scenario: Scenario) -> Scenario:
    """The same history, and now and then something in it that most have not."""
    if random_.random() < 0.1 and scenario.partitions == 1:
        storm = {"alerts": random_.randint(1, 4), "per": f"{random_.choice((1, 10, 60))}s"}
        scenario = replace(scenario, settings={**scenario.settings, "storm": storm})
    if random_.random() < 0.06:
        scenario = replace(scenario, event_work=random_.choice((100, 1_000, 5_000, 20_000)))
    if random_.random() < 0.5 and any("$" in text for text in scenario.rules.values()):
        for _ in range(random_.randint(1, 3)):
            name = random_.choice(list(LISTS))
            items = tuple(random_.sample(LISTS[name], random_.randint(1, 2)))
            scenario = with_step(random_, scenario, ChangeList(name, items, goes=random_.random() < 0.5))
    if any(isinstance(step, Publish) for step in scenario.steps):
        steps = tuple(published_otherwise(random_, step) for step in scenario.steps)
        scenario = replace(scenario, steps=steps)
    if random_.random() < 0.06:
        scenario = grown(random_, scenario)
    if random_.random() < 0.05:
        last = Recreate(random_.choice(("changelog", "journal", "input")), random_.randrange(4))
        scenario = replace(scenario, steps=(*scenario.steps[: random_.randint(5, len(scenario.steps))], last))
    return scenario


def with_step(random_: Random, scenario: Scenario, *steps: Step) -> Scenario:
    at = random_.randrange(len(scenario.steps))
    return replace(scenario, steps=(*scenario.steps[:at], *steps, *scenario.steps[at:]))


def published_otherwise(random_: Random, step: Step) -> Step:
    """Some changes bring a rule in shadow, or one that was disabled back."""
    if not isinstance(step, Publish) or random_.random() > 0.3:
        return step
    if step.act == "disable":
        return replace(step, act="enable")
    return replace(step, shadow=True)


def grown(random_: Random, scenario: Scenario) -> Scenario:
    """From some moment on an input has more partitions, and producers place keys among all of them."""
    stream = random_.choice(list(scenario.streams))
    at, partitions = random_.randrange(len(scenario.steps)), scenario.partitions + random_.randint(1, 2)
    later = tuple(
        replace(step, partition=partition_of(step.records[0][0], partitions))
        if isinstance(step, Produce) and step.stream == stream and step.records[0][0] is not None
        else step
        for step in scenario.steps[at:]
    )
    # A service that has never started would refuse a topic that is keyed otherwise.
    return replace(scenario, steps=(*scenario.steps[:at], Settle(), Grow(stream, partitions), *later))


# ---------------------------------------------------------------- parts that some histories have


def in_avro(random_: Random, scenario: Scenario) -> Scenario:
    """Some streams are in Avro; one of its two schemas is registered later than it is used, or never."""
    if random_.random() > 0.1:
        return scenario
    names = [name for name in scenario.streams if random_.random() < 0.7] or [*scenario.streams]
    avro = {"format": "avro", "registry": {"url": URL}}
    streams = {name: {**spec, **(avro if name in names else {})} for name, spec in scenario.streams.items()}
    steps = tuple(
        replace(step, records=tuple((key, avro_value(random_, value)) for key, value in step.records))
        if isinstance(step, Produce) and step.stream in names
        else step
        for step in scenario.steps
    )
    scenario = replace(scenario, streams=streams, steps=steps)
    for _ in range(random_.choice((0, 0, 1, 3))):
        failing = FailCall(random_.randrange(scenario.containers), "schema", 1, Failure.TIMEOUT_BEFORE)
        scenario = with_step(random_, scenario, failing)
    return scenario if random_.random() < 0.2 else with_step(random_, scenario, Register(2))


def avro_value(random_: Random, value: bytes | None) -> bytes | None:
    """What is no event stays as it is."""
    event = event_of(value)
    return value if event is None else encoded(event, random_.choice((1, 1, 2)))


def with_params(random_: Random, scenario: Scenario) -> Scenario:
    """Rules have a parameter, and its value changes with restarts."""
    if random_.random() > 0.12:
        return scenario
    texts = {name: with_param(text, scenario.partitions) for name, text in scenario.rules.items()}
    if not any("$least" in text for text in texts.values()):
        return scenario
    steps = tuple(
        replace(step, text=with_param(step.text, scenario.partitions)) if isinstance(step, Publish) else step
        for step in scenario.steps
    )
    scenario = replace(scenario, rules=texts, steps=steps)
    for _ in range(random_.randint(1, 3)):
        restarted = tuple(each for each in range(scenario.containers) if random_.random() < 0.6)
        scenario = with_step(random_, scenario, ChangeParam(random_.randint(0, 3), restarted))
    return scenario


def with_param(text: str, partitions: int) -> str:
    """The rule with a condition that names the parameter, where it can have one."""
    changed = text.replace("where true", "where n >= $least", 1)
    if "params:" not in text:
        changed += "params: {least: 1}\n"
    is_good = "where true" in text and load_text(changed).rule is not None
    return changed if is_good and (partitions == 1 or is_keyed_by_a_field(changed)) else text


def with_backfills(random_: Random, scenario: Scenario) -> Scenario:
    """Some rules that are published or enabled have their history folded first; also one like those that are there."""
    plain = [text for text in scenario.rules.values() if not has_history(text)]
    if plain and random_.random() < 0.12:
        text = random_.choice(plain)
        text = text.replace(text.split("\n", 1)[0], "rule: w0", 1)
        scenario = with_step(random_, scenario, Publish("publish", "w0", text, warm_ms=LONG_AGO_MS))
    if random_.random() > 0.6:
        return scenario
    steps = tuple(
        replace(step, warm_ms=random_.choice((0, 1_000, 5_000, 30_000, LONG_AGO_MS)))
        if isinstance(step, Publish) and step.act != "disable" and random_.random() < 0.7
        else step
        for step in scenario.steps
    )
    return replace(scenario, steps=steps)


def has_history(text: str) -> bool:
    rule = load_text(text).rule
    assert rule is not None, text
    return history_ms(rule) > 0


def with_a_twin(random_: Random, scenario: Scenario) -> Scenario:
    """Containers claim their slots, and two have the same."""
    if scenario.on_rocksdb or isinstance(scenario.steps[-1], Recreate) or random_.random() > 0.08:
        return scenario
    twin, slot = scenario.containers, random_.randrange(scenario.containers)
    scenario = replace(scenario, slots=(*range(twin), slot))
    for _ in range(random_.randint(2, 6)):
        scenario = with_step(random_, scenario, Cycle(twin))
    for _ in range(random_.randint(1, 4)):
        one = random_.choice((twin, slot, slot))
        pause = FailCall(one, random_.choice(("poll", "poll", "commit", "")), random_.choice((1, 1, 2)), Failure.PAUSE)
        kill = Kill(one, "", 0, random_.choice((Loss.NOTHING, Loss.DISK)))
        scenario = with_step(random_, scenario, random_.choice((pause, pause, kill)), Cycle(one), Cycle(one))
    return scenario


def with_crashes(random_: Random, scenario: Scenario) -> Scenario:
    """One of the rules ends the process whenever an event takes much of its budget."""
    if random_.random() > 0.06:
        return scenario
    work = random_.choice((60, 200, 600))
    return replace(scenario, crashes=random_.choice(list(scenario.rules)), event_work=work)


def with_rewinds(random_: Random, scenario: Scenario) -> Scenario:
    """Rewinds go back from wherever the service stands."""
    if not scenario.on_rocksdb or random_.random() > 0.5:
        return scenario
    steps = tuple(replace(step, reads=True) if isinstance(step, Recover) else step for step in scenario.steps)
    return replace(scenario, steps=steps)


def with_a_silent_stream(random_: Random, scenario: Scenario) -> Scenario:
    """Of one of two streams nothing comes for a while."""
    if len(scenario.streams) < 2 or random_.random() > 0.3:
        return scenario
    stream, until = random_.choice(list(scenario.streams)), random_.randrange(len(scenario.steps))
    is_quiet = [isinstance(step, Produce) and step.stream == stream for step in scenario.steps[:until]]
    return scenario.without({at for at, quiet in enumerate(is_quiet) if quiet})


PARTS = (in_avro, with_params, with_backfills, with_a_twin, with_crashes, with_rewinds, with_a_silent_stream)

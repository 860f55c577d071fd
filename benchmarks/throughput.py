"""How many events per second a side takes in, with what processor time and memory; and whether its alerts are right.

The clock runs from the first record that a side gets to the moment that all input is committed, seen from outside by
asking for the group's offsets every 50 ms. Starting Python or Java is not in it, a Java's warming up is.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks import bed, expected
from benchmarks.bed import Bed, caught_up, ends_of
from benchmarks.processes import FailedError, Watched
from benchmarks.rows import Aim, Row
from benchmarks.sides import Samovar, Side, Streams, on_kafka, streams_on
from benchmarks.stream import Purchases, distinct, purchases
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Log

TX = "tx"
TAIL_MS = 30_000  # sessions that end so shortly before the input does are still open
STREAMS_TAIL_MS = 600_000  # Kafka Streams looks once a second for sessions to close, and not again at the end


@dataclass(frozen=True)
class Run:
    """What one run of one side took."""

    events_s: float
    cpu_s: float
    peak_mb: float
    startup_s: float


@dataclass(frozen=True)
class Given:
    """What the parts are asked for."""

    bed: Bed
    events: int
    runs: int
    peer: bool  # whether Kafka Streams can be run
    say: Callable[[str], None]


# ---------------------------------------------------------------- one run


def run_through(log: Log, side: Side, topic: str, events: int) -> Run:
    """Take all of a topic, and stop."""
    if isinstance(side, Streams):
        bed.make(log, side.alerts)
    with side.start() as process:
        run = measured(log, side, topic, events, process)
        process.stop()
    return run


def measured(log: Log, side: Side, topic: str, events: int, process: Watched) -> Run:
    """Until all of a topic is committed. The process goes on."""
    ends = ends_of(log, topic)
    first = process.until_said(side.begins)
    before = process.usage()
    end = process.until(lambda: caught_up(log, side.name, ends), f"all of {topic} was committed")
    after = process.usage()
    return Run(events / (end - first), after.cpu_s - before.cpu_s, after.peak_mb, first - process.begun)


def median(runs: Sequence[Run]) -> Run:
    return Run(*(statistics.median(values) for values in zip(*(vars(run).values() for run in runs), strict=True)))


def check(side: Side, found: Sequence[object], wanted: set[object], tail: set[object]) -> str:
    """Refuse alerts that are wrong, too many, or missing other than in the tail. Returns what is to be said."""
    twice = [each for each, count in Counter(found).items() if count > 1]
    extra, missing = set(found) - wanted, wanted - set(found) - tail
    if twice or extra or missing:
        told = f"{len(twice)} twice, {len(extra)} that should not be, {len(missing)} missing"
        example = next(iter([*twice, *extra, *missing]))
        raise FailedError(f"alerts of {side.name} differ from what is right: {told}; for one, {example}")
    return f"{len(found):,}"


# ---------------------------------------------------------------- W1


def w1(given: Given) -> Iterable[Row]:
    stream = purchases(given.events)
    bed.fill(given.bed.log, TX, stream)
    wanted = expected.card_testing(stream)
    runs: dict[str, list[Run]] = {}
    for number in range(given.runs):
        for name, side in w1_sides(given, number).items():
            given.say(f"W1, {name}, run {number + 1} of {given.runs}")
            runs.setdefault(name, []).append(run_through(given.bed.log, side, TX, given.events))
            check(side, side.card_testing(bed.alerts_of(given.bed.log, side.alerts)), set(wanted), set())
    return w1_rows({name: median(each) for name, each in runs.items()}, len(wanted))


def w1_sides(given: Given, number: int) -> dict[str, Side]:
    def ours(name: str, containers: int, delivery: str = "exactly_once") -> Side:
        return on_kafka(given.bed, f"{name}-{number}", "w1", TX, containers=containers, delivery=delivery)

    sides = {"two": ours("two", 2), "streams": streams_on(given.bed, f"streams-{number}", "w1", TX)}
    sides |= {"least": ours("least", 2, "at_least_once"), "one": ours("one", 1)}
    return {name: side for name, side in sides.items() if given.peer or name != "streams"}


def w1_rows(runs: dict[str, Run], alerts: int) -> Iterable[Row]:
    two, one, least, peer = runs["two"], runs["one"], runs["least"], runs.get("streams")
    equal = f"{alerts:,} alerts, the same on both sides" if peer else f"{alerts:,} alerts"
    rate, cpu, peak = (peer.events_s, peer.cpu_s, peer.peak_mb) if peer else (None, None, None)
    yield Row("W1, 2 containers, exactly once", "events/s", two.events_s, rate, Aim(at_least=2.5, ratio=True), equal)
    yield Row("W1, 2 containers, at least once", "events/s", least.events_s, rate)
    cost = two.events_s / least.events_s
    yield Row("W1, exactly once to at least once", "", cost, None, Aim(at_least=0.95), "of events/s, 2 containers")
    yield Row("W1, 1 container, exactly once", "events/s", one.events_s, rate)
    yield Row("W1, processor time, 2 containers", "s", two.cpu_s, cpu, Aim(at_most=0.4, ratio=True))
    yield Row("W1, processor time, 1 container", "s", one.cpu_s, cpu)
    yield Row("W1, peak memory of a process", "MB", two.peak_mb, peak, None, "2 containers: each of them")
    startups = (two.startup_s, peer.startup_s if peer else None)
    yield Row("from process start to the first record", "s", *startups, None, "not in the figures above")


# ---------------------------------------------------------------- W2


def w2(given: Given) -> Iterable[Row]:
    stream = purchases(given.events)
    if TX not in given.bed.log.topics([TX]):
        bed.fill(given.bed.log, TX, stream)
    wanted = expected.sessions(stream)
    rates: dict[str, list[Run]] = {}
    notes = []
    for number in range(given.runs):
        for side, tail_ms in w2_sides(given, number):
            given.say(f"W2, {side.name}, run {number + 1} of {given.runs}")
            rates.setdefault(type(side).__name__, []).append(run_through(given.bed.log, side, TX, given.events))
            found = side.sessions(bed.alerts_of(given.bed.log, side.alerts))
            notes.append(check(side, found, set(wanted), set(still_open(wanted, stream, tail_ms))))
    ours = median(rates["Samovar"])
    theirs = median(rates["Streams"]) if given.peer else None
    note = f"sessions closed: {' and '.join(notes[: len(rates)])} of {len(wanted):,}, the others open at the end"
    rate, cpu = (theirs.events_s, theirs.cpu_s) if theirs else (None, None)
    yield Row("W2, 2 containers, exactly once", "events/s", ours.events_s, rate, Aim(at_least=4, ratio=True), note)
    yield Row("W2, processor time", "s", ours.cpu_s, cpu)


def w2_sides(given: Given, number: int) -> Iterable[tuple[Side, int]]:
    yield on_kafka(given.bed, f"sessions-{number}", "w2", TX, containers=2), TAIL_MS
    if given.peer:
        yield streams_on(given.bed, f"sessions-streams-{number}", "w2", TX), STREAMS_TAIL_MS


def still_open(found: set[expected.Session], stream: Purchases, tail_ms: int) -> Iterable[expected.Session]:
    """Partitions end at times of their own, a little before the whole stream does: hence a second more."""
    end = int(stream.time[-1]) - tail_ms - 1_000
    return (session for session in found if session.end >= end)


# ---------------------------------------------------------------- the embedded log


def embedded(given: Given) -> Iterable[Row]:
    stream = purchases(given.events)
    wanted = expected.card_testing(stream)
    folder = given.bed.place("embedded")
    log = EmbeddedLog(folder / ".samovar" / "log")
    bed.fill(log, TX, stream)
    given.say("W1 on the embedded log")
    runs = []
    for number in range(given.runs):
        side = Samovar(f"embedded-{number}", folder, "w1", TX, "embedded")
        runs.append(run_through(log, side, TX, given.events))
        check(side, side.card_testing(bed.alerts_of(log, side.alerts)), set(wanted), set())
        side.wipe()
    log.close()
    note = f"1 container, exactly once, no server, {len(wanted):,} alerts"
    yield Row("W1 on the embedded log", "events/s", median(runs).events_s, None, Aim(at_least=150_000), note)


# ---------------------------------------------------------------- many keys


def keys(given: Given) -> Iterable[Row]:
    """Memory of one container that holds a partial match of each of so many cards."""
    count = given.events // 2
    bed.fill(given.bed.log, "cards", distinct(count))
    ours = on_kafka(given.bed, "cards-samovar", "w1", "cards")
    given.say(f"{count:,} cards, Samovar")
    run = run_through(given.bed.log, ours, "cards", count)
    theirs = None
    if given.peer:
        given.say(f"{count:,} cards, Kafka Streams")
        theirs = run_through(given.bed.log, streams_on(given.bed, "cards-streams", "w1", "cards"), "cards", count)
    rate, peak = (theirs.events_s, theirs.peak_mb) if theirs else (None, None)
    aim = Aim(at_most=600)
    yield Row(f"{count:,} keys, peak memory", "MB", run.peak_mb, peak, aim, "1 container; Java's heap may be 2 GB")
    yield Row(f"{count:,} keys, each new", "events/s", run.events_s, rate, None, "1 container, exactly once")

"""`samovar traffic CONFIG`: generated events to the streams of a service, in real time.

The first start begins a while ago (`backfill`), so that there is something to see at once; then events come as they
happen. A later start goes on where the last one stopped, at the present time. Events and the mark of how far they go
are one transaction (traffic_mark.py), and whoever generates joins a group of its own first: another one that still runs
can write nothing from then on.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO

from samovar.changelog.log import Append, Delivery, Joining, Log, Member, Pair, TopicPartition
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.common.progress import Progress
from samovar.patterns.avro_write import Encoder
from samovar.service.config.models import ServiceFile
from samovar.service.offline.produce import encoder_of
from samovar.service.offline.synth.live import Arrival, Feed, Recipe, keys_for
from samovar.service.offline.traffic_mark import Mark, append_of, read_mark, spec_of
from samovar.service.topology.stages import sources_of
from samovar.service.topology.topics import ensure_inputs, traffic_topic
from samovar.tasks.model.clock import Clock, SystemClock

TYPES = {
    "fraud": ("purchase", "refund", "login", "transfer", "order", "payment", "cancel"),
    "sessions": ("view", "click", "cart", "checkout", "pay"),
}
TICK_S = 0.5
AT_ONCE = 4_000  # events a transaction, about
PAUSE_MS = 10_000  # a shorter one is made up for, after a longer one traffic goes on at the present time
JOIN_S = 60.0
TRIES_MOST = 5  # of a log that does not answer, before the command gives up
RATE, BACKFILL_MS, SEED = 20.0, 75 * 60_000, 1


@dataclass(frozen=True)
class Wanted:
    """What was asked for. `for_ms` is None for traffic without an end."""

    rate: float = RATE
    backfill_ms: int = BACKFILL_MS
    seed: int = SEED
    keys: int | None = None
    for_ms: int | None = None


@dataclass
class Written:
    """What one run did."""

    events: int = 0
    passed_over: int = 0  # of types that no stream has


class Run:
    """One run of traffic. The source of truth for how much was written by it."""

    def __init__(
        self, settings: ServiceFile, log: Log, wanted: Wanted, err: IO[str], clock: Clock | None = None
    ) -> None:
        self.written = Written()
        self._settings = settings
        self._log = log
        self._wanted = wanted
        self._err = err
        self._clock = clock or SystemClock()
        self._kind = kind_of(settings)
        self._places = Places(settings)
        self._stopped = False
        self._until_ms: int | None = None

    def stop(self) -> None:
        """End after the transaction at hand. May be called from a signal's handler."""
        self._stopped = True

    def run(self) -> Written:
        """Until stopped, or until the time that was asked for is over; what is due at the beginning in any case."""
        self._places.partitions = prepare(self._settings, self._log)
        if self._wanted.for_ms is not None:
            self._until_ms = self._clock.wall_ms() + self._wanted.for_ms
        tries = 0
        while True:
            before = self.written.events
            try:
                with alone(self._settings, self._log) as member:
                    self._write(member)
                    return self.written
            except Fenced as error:
                raise Refused(
                    "traffic-elsewhere",
                    f"another `samovar traffic` of {self._settings.service} began, and goes on",
                    "One is enough: stop one of the two.",
                ) from error
            except (CommitUnknown, LogUnavailable) as error:
                tries = 1 if self.written.events > before else tries + 1
                if self._stopped:
                    return self.written
                if tries >= TRIES_MOST:
                    raise LogUnavailable(str(error)) from error
                self._tell(f"the log does not answer ({error}); what was written is read back, then it goes on")

    # ---------------------------------------------------------------- writing

    def _write(self, member: Member) -> None:
        mark, is_first = self._begin()
        feed = Feed(mark.recipe, None if is_first else mark.written_ms)
        self._tell(self._beginning(mark, is_first))
        progress = Progress(self._err)
        step_ms = max(1_000, int(AT_ONCE / mark.recipe.rate * 1_000))
        begin_ms = mark.written_ms
        while True:
            now_ms = self._clock.wall_ms() - mark.shift_ms
            until_ms = min(now_ms, mark.written_ms + step_ms)
            mark = self._transact(member, feed, mark, until_ms)
            progress.reading(self.written.events, (until_ms - begin_ms) / max(1, now_ms - begin_ms))
            if self._stopped or (until_ms == now_ms and self._ended()):
                break
            if until_ms == now_ms:
                progress.clear()
                member.poll(1, TICK_S)
        progress.clear()

    def _begin(self) -> tuple[Mark, bool]:
        """Where to go on, and whether it is the first time."""
        wanted, now_ms = self._wanted, self._clock.wall_ms()
        mark = read_mark(self._log, self._settings.service)
        if mark is None:
            start_ms = now_ms - wanted.backfill_ms
            keys = wanted.keys or keys_for(wanted.rate)
            return Mark(Recipe(self._kind, start_ms, wanted.rate, keys, wanted.seed), start_ms), True
        if mark.recipe.rate != wanted.rate:
            recipe, from_ms = mark.recipe.at_rate(wanted.rate, mark.written_ms)
            mark = replace(mark, recipe=recipe, written_ms=from_ms)
        paused_ms = now_ms - (mark.written_ms + mark.shift_ms)
        if not 0 <= paused_ms <= PAUSE_MS:
            mark = replace(mark, shift_ms=now_ms - mark.written_ms)
        return mark, mark.events == 0

    def _transact(self, member: Member, feed: Feed, mark: Mark, until_ms: int) -> Mark:
        """Write what is due and that it was written, as one."""
        arrivals = feed.due(until_ms)
        appends, passed_over = self._places.appends(arrivals, mark.shift_ms)
        events = sum(len(append.records) for append in appends)
        mark = replace(mark, written_ms=max(until_ms, mark.written_ms), events=mark.events + events)
        member.transact([*appends, append_of(self._settings.service, mark)], {})
        self.written.events += events
        self.written.passed_over += passed_over
        return mark

    def _ended(self) -> bool:
        return self._stopped or (self._until_ms is not None and self._clock.wall_ms() >= self._until_ms)

    def _beginning(self, mark: Mark, is_first: bool) -> str:
        what = f"{self._settings.service}: generated {self._kind} events, {mark.recipe.rate:g} a second"
        if is_first:
            return f"{what}, from {self._wanted.backfill_ms / 60_000:g} minutes ago on"
        return f"{what}; goes on after {mark.events:,} events"

    def _tell(self, text: str) -> None:
        self._err.write(text + "\n")
        self._err.flush()


# ---------------------------------------------------------------- where events go


class Places:
    """By the type of an event its topic, its key, and how it is written."""

    def __init__(self, settings: ServiceFile) -> None:
        self._streams = settings.streams
        self.partitions: int | None = None  # that keys are placed among
        self._name_of: dict[str, str | None] = {}
        self._encoders: dict[str, Encoder | None] = {}

    def appends(self, arrivals: Sequence[Arrival], shift_ms: int) -> tuple[list[Append], int]:
        """Records by topic, and how many events no stream takes."""
        pairs: dict[str, list[Pair]] = defaultdict(list)
        passed_over = 0
        for arrival in arrivals:
            line = shifted(arrival, shift_ms)
            event = json.loads(line)
            name = self._stream(event["type"])
            if name is None:
                passed_over += 1
                continue
            stream, encoder = self._streams[name], self._encoder(name)
            value = line.encode() if encoder is None else encoder.encode(line.encode())
            pairs[stream.topic].append((str(event[stream.key]).encode(), value))
        return [Append(topic, records, among=self.partitions) for topic, records in pairs.items()], passed_over

    def _stream(self, event_type: str) -> str | None:
        if event_type not in self._name_of:
            self._name_of[event_type] = next(iter(sources_of(event_type, self._streams)), None)
        return self._name_of[event_type]

    def _encoder(self, name: str) -> Encoder | None:
        if name not in self._encoders:
            self._encoders[name] = encoder_of(self._streams[name])
        return self._encoders[name]


def shifted(arrival: Arrival, shift_ms: int) -> str:
    """The line, with its time as it is on the wall."""
    if not shift_ms:
        return arrival.line
    return arrival.line.replace(f'"ts":{arrival.ts}', f'"ts":{arrival.ts + shift_ms}', 1)


def kind_of(settings: ServiceFile) -> str:
    """Which of the two kinds of traffic a service is for: the one of which its streams take more types."""
    taken = Counter({kind: _taken(types, settings) for kind, types in TYPES.items()})
    kind, count = taken.most_common(1)[0]
    if not count:
        known = "; ".join(f"{kind}: {', '.join(types)}" for kind, types in TYPES.items())
        raise Refused(
            "no-traffic",
            f"no stream of {settings.path} takes events that can be generated",
            "Traffic can be generated for the services of examples/fraud and examples/sessions, and those like them.",
            known,
        )
    return kind


def _taken(types: Sequence[str], settings: ServiceFile) -> int:
    # A stream that says nothing of its types would take all; it is for neither kind.
    named: Mapping[str, object] = {
        name: stream for name, stream in settings.streams.items() if stream.type is None or stream.fields is not None
    }
    return sum(any(name in named for name in sources_of(each, settings.streams)) for each in types)


# ---------------------------------------------------------------- being the only one


def prepare(settings: ServiceFile, log: Log) -> int:
    """The inputs of the service, with how many partitions, and the topic for marks."""
    partitions = ensure_inputs(log, settings)
    if traffic_topic(settings.service) not in log.topics([traffic_topic(settings.service)]):
        log.create([spec_of(settings.service, settings.replication)])
    return partitions


@contextmanager
def alone(settings: ServiceFile, log: Log) -> Iterator[Member]:
    """The only one who generates traffic for this service, from now on."""
    owned: set[TopicPartition] = set()
    went: Callable[..., None] = owned.difference_update
    topic = traffic_topic(settings.service)
    member = log.join(Joining(topic, 0, [topic], Delivery.EXACTLY_ONCE, owned.update, went, went))
    try:
        clock = SystemClock()
        deadline = clock.steady_ms() + JOIN_S * 1_000
        while not owned:
            member.poll(1, 0.05)
            if clock.steady_ms() > deadline:
                raise LogUnavailable(f"nobody gave out the partition of {topic} within {JOIN_S:.0f} s")
        yield member
    finally:
        member.close()

"""A service with real parts in a folder of its own, what goes in, what comes out, and what the oracle says about it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from samovar.changelog.formats.journal import JournalEntry, unpack_entry
from samovar.changelog.formats.record import POSITION, ROW, Position, unpack_position
from samovar.changelog.log import Append, Log, Pair, TopicPartition
from samovar.patterns.engine.matcher import digest_of_rows
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.syntax.tree import Rule
from samovar.service.config.loading import ServiceFile, load_service
from samovar.service.query.verify import overdue_in
from samovar.service.runtime.running import container_of
from samovar.service.topology.logs import open_log
from samovar.service.topology.plans import plan_of
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.topics import ensure
from samovar.state.rocks import RocksStore
from samovar.state.store import Store
from samovar.tasks.model.clock import Clock
from samovar.tasks.model.plan import Plan
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.stream_task import task_folder
from tests.contracts.log_driving import Row, read_to_end, unique
from tests.faults import child
from tests.support.matching import rules_of
from tests.support.tunables import random_of_test, tiny_section

Fields: TypeAlias = dict[str, Any]
Match: TypeAlias = dict[str, Any]

DEADLINE_S = float(os.environ.get("SAMOVAR_PATIENCE_S", "60"))  # a chaos run may make every batch one record
SOON = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200", "transaction.timeout.ms": "3000"}
LOOK_S = 0.005
LOGGED = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")  # how a line of a container's log begins
ROWS_END = bytes([ROW[0] + 1])


def wait_until(holds: Callable[[], bool], what: str, each: Callable[[], object] = lambda: time.sleep(LOOK_S)) -> None:
    """Until it is so; a minute without it fails the test. Between two looks anyone who is waited for has the
    processor.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:.0f} s: {what}"
        each()


@dataclass
class Service:
    """A service's folder and its log. The source of truth for where everything of one test is."""

    folder: Path
    rules: Mapping[str, str]  # file to text
    opened: list[Log] = field(default_factory=list)
    started: list[child.Running] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "service.yml"

    @cached_property
    def settings(self) -> ServiceFile:
        return load_service(self.config)

    @property
    def log(self) -> Log:
        """The log, opened once."""
        if not self.opened:
            self.opened.append(open_log(self.settings))
        return self.opened[0]

    @cached_property
    def partitions(self) -> int:
        """How many there are; makes the topics."""
        return ensure(self.log, self.settings)[0].partitions

    @cached_property
    def plan(self) -> Plan:
        return plan_of(with_published_rules(self.settings, self.log), self.partitions)

    @property
    def parsed(self) -> list[Rule]:
        return rules_of(*self.rules.values())

    def close(self) -> None:
        for running in self.started:
            if running.process.exitcode is None:
                running.kill()
        for log in self.opened:
            log.close()

    # ------------------------------------------------------------ what goes in

    def append(self, stream: str, values: Sequence[bytes | None], partition: int, key: bytes | None = b"k") -> None:
        self.append_pairs(stream, [(key, value) for value in values], partition)

    def append_pairs(self, stream: str, pairs: Sequence[Pair], partition: int | None = None) -> None:
        self.append_all([(stream, pairs, partition)])

    def append_all(self, parts: Sequence[tuple[str, Sequence[Pair], int | None]]) -> None:
        """Records of several streams at once; without a partition each goes where its key says."""
        assert self.partitions
        streams = self.settings.streams
        self.log.append(
            [
                Append(topic=streams[stream].topic, records=pairs, partition=partition)
                for stream, pairs, partition in parts
            ]
        )

    def events(self, stream: str, events: Sequence[Fields], partition: int = 0) -> None:
        self.append(stream, [json.dumps(event).encode() for event in events], partition)

    # ------------------------------------------------------------ running

    def start(self, *arguments: str, config: Path | None = None, **conditions: Any) -> child.Running:
        """A container in a process of its own, in these `Conditions`."""
        words = self.folder / f"said-{len(self.started)}.txt"
        met = child.Conditions(**conditions)
        self.started.append(child.start(config or self.config, words, *arguments, conditions=met))
        return self.started[-1]

    def run_to_end(self, poll: int = 0) -> str:
        """Process all that is there, in a process of its own. What it said."""
        running = self.start("--until-caught-up", poll=poll)
        code = running.ended()
        assert code == 0, f"exit code {code}: {running.text}"
        return running.text

    def refused(self, code: str, *words: str, **conditions: Any) -> str:
        """It must end with this code and words that help; never with a traceback, never not at all."""
        running = self.start("--until-caught-up", **conditions)
        exit_code, text = running.ended(), running.text
        assert exit_code == 2, f"exit code {exit_code}: {text}"
        told = [line for line in text.splitlines() if not LOGGED.match(line)]
        assert told[0].startswith(f"{code}: "), text
        for word in words:
            assert word in text
        return text

    def elsewhere(self) -> Path:
        """A service file for another machine: all is the same but the folder of the state."""
        data = json.loads(self.config.read_text())
        path = self.folder / "elsewhere.yml"
        path.write_text(json.dumps({**data, "state": "elsewhere"}))
        return path

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the service file."""
        data = json.loads(self.config.read_text())
        change(data)
        self.config.write_text(json.dumps(data))
        for name in ("settings", "partitions", "plan"):
            self.__dict__.pop(name, None)

    def retune(self, tunables: Mapping[str, int], **more: Any) -> None:
        """Other tunables from here on. Nobody may be at work."""
        self.edit(lambda data: data.update(tunables=dict(tunables), **more))
        while self.opened:
            self.opened.pop().close()

    @contextmanager
    def container(
        self, clock: Clock, slot: int = 0, tell: Callable[[str], None] = lambda _: None
    ) -> Iterator[Container]:
        """A container in this process. It is let go of without a last commit: as after a crash, but for its lock."""
        made = container_of(self.settings, self.log, slot, tell, clock)
        try:
            yield made
        finally:
            made.close()

    def wipe(self, *, snapshots: bool = True) -> None:
        """Lose the stores; with `snapshots`, those too."""
        state = self.settings.state
        for path in [state] if snapshots else list(state.glob("*/store")):
            shutil.rmtree(path, ignore_errors=True)

    def lose_store(self, partition: int) -> None:
        """Lose all state of one partition."""
        shutil.rmtree(self.store_folder(partition).parent)

    # ------------------------------------------------------------ what comes out

    def read(self, topic: str) -> list[Row]:
        return read_to_end(self.log, topic)

    def alerts(self) -> list[Match]:
        return [json.loads(row.value or b"") for row in self.read(self.settings.alerts.topic)]

    def dead(self) -> list[Row]:
        return self.read(self.settings.dead_letters.topic)

    def late(self) -> list[Row]:
        return self.read(self.settings.late.topic)

    def changelog(self) -> list[Row]:
        return self.read(self.settings.changelog.topic)

    def journal(self, partition: int = 0) -> list[JournalEntry]:
        rows = self.read(self.settings.journal.topic)
        return [unpack_entry(row.value or b"") for row in rows if row.at.partition == partition]

    def outputs(self) -> list[Row]:
        """Every record that the service ever committed, of all its topics."""
        settings = self.settings
        parts = (settings.alerts, settings.late, settings.dead_letters, settings.changelog, settings.journal)
        return [row for part in parts for row in self.read(part.topic)]

    def committed(self) -> int:
        """Records that the group has processed, over all partitions."""
        settings = self.settings
        places = [TopicPartition(each.topic, p) for each in settings.streams.values() for p in range(self.partitions)]
        return sum(offset or 0 for offset in self.log.committed(settings.service, places).values())

    def written(self) -> int:
        """Records of all inputs."""
        settings = self.settings
        places = [TopicPartition(each.topic, p) for each in settings.streams.values() for p in range(self.partitions)]
        return sum(bounds.end for bounds in self.log.bounds(places).values())

    def is_processed_in(self, partition: int) -> bool:
        """Whether all of one partition's input is."""
        places = [TopicPartition(each.topic, partition) for each in self.settings.streams.values()]
        committed, bounds = self.log.committed(self.settings.service, places), self.log.bounds(places)
        return all(committed[at] == bounds[at].end for at in places)

    def nobody_there(self) -> None:
        """Wait until the group is empty: a broker counts a member that ended until its session is over."""
        group = self.settings.service
        wait_until(lambda: not self.log.members(group), f"group {group} is empty")

    # ------------------------------------------------------------ what state there is

    def store_folder(self, partition: int = 0) -> Path:
        return task_folder(self.settings.state, partition) / "store"

    @contextmanager
    def store(self, partition: int = 0) -> Iterator[RocksStore]:
        """The store itself, while nobody else has it."""
        store = RocksStore(self.store_folder(partition))
        try:
            yield store
        finally:
            store.close()

    def digests(self) -> dict[int, str]:
        """Of each task's store, at the event time that it stands for."""
        found = {}
        for partition in range(self.partitions):
            with self.store(partition) as store:
                found[partition] = digest_of(self.plan, store)
        return found

    def positions(self) -> dict[int, Position]:
        found = {}
        for partition in range(self.partitions):
            with self.store(partition) as store:
                found[partition] = position_of(store)
        return found


def make_service(
    folder: Path,
    rules: Mapping[str, str],
    streams: Mapping[str, Mapping[str, Any]],
    *,
    bootstrap: str | None = None,
    name: str | None = None,
    client: Mapping[str, str] | None = None,
    **more: Any,
) -> Service:
    """A folder with a service file and rules. Topics have the service's own name in front, since brokers are shared.
    `client` are further settings of the Kafka client. Tunables are drawn, where the test does not say them.
    """
    name = name or unique("s")
    (folder / "rules").mkdir(parents=True)
    for file, text in rules.items():
        (folder / "rules" / f"{file}.yml").write_text(text)
    # Tests say themselves which partition a record goes to.
    topics = {stream: {"topic": f"{name}-{stream}", "repartition": False, **spec} for stream, spec in streams.items()}
    kafka = {} if bootstrap is None else {"log": {"kafka": {"bootstrap": bootstrap, **(client or {})}}}
    data = {"service": name, **kafka, "streams": topics, **tiny_section(random_of_test()), **more}
    (folder / "service.yml").write_text(json.dumps(data))  # YAML can read JSON
    return Service(folder, rules)


def twin(service: Service, folder: Path) -> Service:
    """The same service on an embedded log of its own, with the usual tunables, for a straight run of its input."""
    data = json.loads(service.config.read_text())
    for name in ("log", "replication", "tunables", "cache"):
        data.pop(name, None)
    (folder / "rules").mkdir(parents=True)
    for file, text in service.rules.items():
        (folder / "rules" / f"{file}.yml").write_text(text)
    (folder / "service.yml").write_text(json.dumps(data))
    made = Service(folder, service.rules)
    for stream, spec in service.settings.streams.items():
        for row_partition in range(service.partitions):
            rows = [row for row in service.read(spec.topic) if row.at.partition == row_partition]
            if rows:
                made.append_pairs(stream, [(row.key, row.value) for row in rows], row_partition)
    return made


# ---------------------------------------------------------------- stores


def position_of(store: Store) -> Position:
    data = store.get(POSITION)
    assert data is not None, "the store has no position"
    return unpack_position(data)


def digest_of(plan: Plan, store: Store) -> str:
    watermark = position_of(store).watermark
    rows = [(key[1:], value) for key, value in store.range(ROW, ROWS_END)]
    limits = plan.max_partials, plan.max_events
    assert overdue_in(plan, store, NO_TIME if watermark is None else watermark) is None, "timers were withheld"
    return digest_of_rows(plan.program, rows, NO_TIME if watermark is None else watermark, limits, plan.tunables)

"""`samovar repartition`: state moves to other partitions, and what comes after is as if it had always been there."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.record import WAITING
from samovar.changelog.log import Append, TopicPartition
from samovar.changelog.partitioner import key_text, partition_of
from samovar.common import failpoints
from samovar.common.errors import Refused
from samovar.common.failpoints import REPARTITIONS
from samovar.patterns.rulefile.rule_file import load_text
from samovar.service.recovery import repartition as repartitions
from samovar.service.recovery.repartition import RepartitionResult, plan_repartition, repartition
from samovar.service.runtime.running import container_of
from samovar.service.topology.stages import stage_of
from samovar.service.topology.topics import grown_inputs, marker_of
from samovar.state.rocks import RocksStore
from samovar.tasks.runtime.container import Container
from tests.support import small_service as small
from tests.support.random_rules import FIRST_TIME, SLACK_MS, TYPES, random_events, random_rule

SEED = int(os.environ.get("SAMOVAR_SEED", "0")) or time.time_ns() % 1_000_000
DAY = 86_400_000
STREAM = "s"
# Each event has a time of its own; so that none is late, the slack has room for that.
SLACK = f"{SLACK_MS + 1_000}ms"
PAIRS = {"pairs": "rule: pairs\nmatch: |\n  sequence by u with maxspan=1h\n    [a where true]\n    [b where true]\n"}
LEFTOVERS = [f"r.repartition{name}" for name in ("", ".switch", ".of.main", ".of.by-v")]
TASK = """
from samovar import Task

class Totals(Task):
    def process(self, event, ctx):
        total = ctx.store("totals").get(event.key, 0) + 1
        ctx.store("totals").put(event.key, total)
        ctx.timer(event.key, event.time + 7_000)

    def on_timer(self, name, ctx):
        ctx.emit("told", name, {"key": name, "total": ctx.store("totals").get(name), "at": ctx.now})

    def key_of(self, store, name):
        return name
"""


class Service(small.Service):
    """One whose producer places keys among as many partitions as the file says."""

    @property
    def partitions(self) -> int:
        found = self.settings.streams.values()
        return next(each.partitions for each in found if each.partitions)

    @contextmanager
    def container(self) -> Iterator[Container]:
        """All stages have read all that was sent on to them."""
        with self.log() as log:
            container = container_of(self.settings, log, 0, lambda _: None, self.clock)
            try:
                self.catch_up(container)
                yield container
            finally:
                container.close()

    def catch_up(self, container: Container) -> None:
        for _ in range(10_000):
            container.cycle()
            if container.caught_up() and container._all_caught_up():
                return
        raise AssertionError("it does not catch up")

    def settle(self, *, snapshot: bool = False) -> None:
        with self.container() as container:
            for _ in range(3):
                self.clock.pass_ms(6_000)
                self.catch_up(container)
            for task in container.tasks.values() if snapshot else ():
                task.take_snapshot()

    def produce(self, events: Sequence[dict[str, Any]], stream: str = STREAM) -> None:
        key = self.settings.streams[stream].key
        with self.log() as log:
            container_of(self.settings, log, 0, lambda _: None, self.clock)  # makes the topics
            pairs = [(key_text(event.get(key)) or b"", json.dumps(event).encode()) for event in events]
            log.append([Append(topic=stream, records=pairs, among=self.partitions)])

    def end(self) -> None:
        """Let event time pass everything: an event far ahead in every partition."""
        places: dict[int, str] = {}
        for number in range(200):
            places.setdefault(partition_of(f"end{number}".encode(), self.partitions), f"end{number}")
        self.process([{"type": "x", "ts": FIRST_TIME + DAY, "u": key, "v": key, "n": 0} for key in places.values()])
        self.settle()

    def results(self, what: str = "alerts") -> Counter[str]:
        """What was found, but for the places of the events."""
        done = small.run("read", self.config, what, "--json")
        assert done.exit_code == 0, done.output
        found = [json.loads(line)["value"] for line in done.stdout.splitlines()]
        plain = [{key: value for key, value in each.items() if key not in ("id", "steps", "at_ms")} for each in found]
        return Counter(json.dumps(each, sort_keys=True) for each in plain if each["at"] < FIRST_TIME + DAY)

    def to(self, partitions: int, *options: str, code: int = 0) -> dict[str, Any]:
        self.write_partitions(partitions)
        done = small.run("repartition", self.config, "--partitions", partitions, "--json", *options)
        assert done.exit_code == code, done.output + str(done.exception)
        found: dict[str, Any] = json.loads(done.stdout) if code == 0 else {"error": done.stderr}
        return found

    def write_partitions(self, partitions: int) -> None:
        self.config.write_text(re.sub(r"partitions: \d+", f"partitions: {partitions}", self.config.read_text()))

    def aside(self) -> int:
        """Dead letters and late events."""
        with self.log() as log:
            names = [name for name in ("r-dead-letters", "r-late") if name in log.topics(["r-dead-letters", "r-late"])]
            places = [
                TopicPartition(name, each) for name in names for each in range(log.topics([name])[name].partitions)
            ]
            return sum(end for _, end in log.bounds(places).values())


def serve(folder: Path, partitions: int, rules: dict[str, str], more: str = "") -> Service:
    (folder / "rules" if rules else folder).mkdir(parents=True)
    for name, text in rules.items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    stream = f"{{key: u, type: type, slack: {SLACK}, partitions: {partitions}}}"
    (folder / "service.yml").write_text(f"service: r\nstreams:\n  {STREAM}: {stream}\n{more}")
    (folder / "totals.py").write_text(TASK)
    return Service(folder / "service.yml")


def rules_by(rng: random.Random, key: str, count: int, folder: Path) -> dict[str, str]:
    """Random rules that can be keyed so; by nothing: one key over all."""
    streams = serve(folder / f"for-{key}", 3, PAIRS).settings.streams
    found: dict[str, str] = {}
    while len(found) < count:
        name = f"by{key}{len(found)}"
        text = random_rule(rng).replace("rule: random", f"rule: {name}")
        text = text.replace(" by u", f" by {key}" if key else "")
        rule = load_text(text).rule
        try:
            if rule is not None and "overlap=any" not in text and stage_of(rule, streams, 3) is not None:
                found[name] = text
        except Refused:
            continue
    return found


def unique(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events of one time are told apart by their places, and those are others in other partitions."""
    seen: set[int] = set()
    found = []
    for event in events:
        at = event["ts"]
        while at in seen:
            at += 1
        seen.add(at)
        found.append({**event, "ts": at})
    return found


# ---------------------------------------------------------------- as if it had always been


def test_alerts_are_those_of_a_service_that_had_as_many_from_the_start(tmp_path: Path) -> None:
    """Random rules in three kinds of stages, 3 to 5 to 2 partitions, with events that wait at each cut."""
    print(f"SAMOVAR_SEED={SEED}")  # noqa: T201 - the line that repeats a failure
    rng = random.Random(SEED)
    rules = rules_by(rng, "u", 8, tmp_path) | rules_by(rng, "v", 4, tmp_path) | rules_by(rng, "", 2, tmp_path)
    events = unique(random_events(rng, 240, [*TYPES, *"abc"]))
    straight = serve(tmp_path / "straight", 2, rules)
    straight.process(events)
    straight.end()
    service = serve(tmp_path / "moved", 3, rules)
    waited = 0
    for count, part in ((3, events[:80]), (5, events[80:160]), (2, events[160:])):
        if count != 3:
            waited += service.to(count)["repartitioned"]["waiting"]
        service.process(part)
    service.end()
    assert service.aside() == straight.aside()
    assert service.results() == straight.results()
    assert straight.results()
    assert waited, "nothing waited at a cut"


def test_a_task_of_the_users_takes_its_rows_and_timers_along(tmp_path: Path) -> None:
    more = "tasks:\n  totals: {class: 'totals:Totals', streams: [s], stores: {totals: {}}, emits: {told: told}}\n"
    rng = random.Random(SEED)
    keys = [f"k{number}" for number in range(12)]
    events = [{"type": "a", "ts": FIRST_TIME + 700 * at, "u": rng.choice(keys), "n": 1} for at in range(150)]
    told = {}
    for name, parts in {
        "straight": [(2, events)],
        "moved": [(3, events[:50]), (5, events[50:100]), (2, events[100:])],
    }.items():
        service = serve(tmp_path / name, parts[0][0], {}, more)
        for count, part in parts:
            if count != service.partitions:
                service.to(count)
            service.process(part)
        service.end()
        told[name] = service.results("told")
    assert told["moved"] == told["straight"]
    assert len(told["straight"]) > len(keys)


def test_a_task_that_does_not_know_whose_its_rows_are_is_refused(tmp_path: Path) -> None:
    more = "tasks:\n  totals: {class: 'totals:Totals', streams: [s], stores: {totals: {}}, emits: {told: told}}\n"
    service = serve(tmp_path / "s", 3, {}, more)
    (tmp_path / "s" / "totals.py").write_text(TASK.partition("    def key_of")[0])
    service.process([{"type": "a", "ts": FIRST_TIME, "u": "k1", "n": 1}])
    assert "repartition-task:" in service.to(5, code=2)["error"]
    # One that says so wrongly: a row must be where its key belongs.
    (tmp_path / "s" / "totals.py").write_text(TASK.replace("return name", "return name + '?'"))
    service.write_partitions(3)
    service.process([{"type": "a", "ts": FIRST_TIME + 1_000 * at, "u": f"k{at % 9}", "n": 1} for at in range(40)])
    assert "repartition-misplaced:" in service.to(5, code=2)["error"]
    with service.log() as log:
        assert log.topics(["r-journal"])["r-journal"].partitions == 3


def test_published_rules_go_on_and_no_storm_is_forgotten(tmp_path: Path) -> None:
    service = serve(tmp_path / "s", 2, PAIRS, "storm: {alerts: 1000, rules: {pairs: {alerts: 2, per: 1h}}}\n")
    events = [
        {"type": "ab"[at // 7 % 2], "ts": FIRST_TIME + 2_000 * at, "u": f"k{at % 7}", "n": 1} for at in range(240)
    ]
    later = tmp_path / "later.yml"
    later.write_text(PAIRS["pairs"].replace("pairs", "later").replace("1h", "1m"))
    service.process(events[:100])
    published = small.run("rules", "publish", service.config, later, "--yes")
    assert published.exit_code == 0, published.output
    service.process(events[100:160])
    before = alerts_of(service)
    assert before["pairs"] > 0, before
    assert before["later"] > 0, before
    service.to(3)
    service.process(events[160:])
    after = alerts_of(service)
    assert after["later"] > before["later"], after
    # Each partition was over its limit in the hour at hand, and so are the new ones.
    assert after["pairs"] == before["pairs"], after


def alerts_of(service: Service) -> Counter[str]:
    """How many there are of each rule."""
    return Counter(rule for each in service.results().elements() for rule in [json.loads(each)["rule"]])


def test_an_input_that_has_grown_is_taken_over(tmp_path: Path) -> None:
    """Its new partitions are read from their beginning; what moved before it was taken over is put back by redrive."""
    service = serve(tmp_path / "s", 2, PAIRS)
    keys = [f"k{number}" for number in range(20)]
    service.process([{"type": "a", "ts": FIRST_TIME + at, "u": key, "n": 1} for at, key in enumerate(keys)])
    later = [{"type": "b", "ts": FIRST_TIME + 10_000 + at, "u": key, "n": 1} for at, key in enumerate(keys)]
    with service.log() as log:
        log.grow(STREAM, 4)
        log.append(
            [Append(topic=STREAM, records=[(str(each["u"]).encode(), json.dumps(each).encode()) for each in later])]
        )
    service.process([])
    moved = [key for key in keys if partition_of(key.encode(), 4) >= 2]
    with service.log() as log:
        (grown,) = grown_inputs(service.settings, log)
    assert grown.unread == len(moved) > 0
    service.to(4)
    with service.log() as log:
        assert grown_inputs(service.settings, log) == []
    service.process([])
    service.end()
    assert sum(service.results().values()) == len(keys)
    assert service.aside() == 0


def test_what_was_read_before_there_were_fewer_is_not_unread(tmp_path: Path) -> None:
    service = serve(tmp_path / "s", 4, PAIRS)
    service.process([{"type": "a", "ts": FIRST_TIME + at, "u": f"k{at}", "n": 1} for at in range(30)])
    service.to(2)
    with service.log() as log:
        (grown,) = grown_inputs(service.settings, log)
        assert (grown.partitions, grown.read, grown.unread) == (4, 2, 0)
        log.append([Append(topic=STREAM, records=[(b"x", b"{}")], partition=3)])
        (grown,) = grown_inputs(service.settings, log)
        assert grown.unread == 1
    # Back to as many: the partitions that were left are read on, none of their records twice.
    service.to(4)
    service.process([])
    assert service.aside() == 1  # the record that is no event


# ---------------------------------------------------------------- killed, given up, begun again


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Counter[str]]:
    """A service with stages and state, the events to come, and what it must have found in the end."""
    folder = tmp_path_factory.mktemp("prepared")
    rng = random.Random(SEED)
    rules = rules_by(rng, "u", 3, folder) | rules_by(rng, "v", 2, folder)
    rules |= PAIRS
    events = unique(random_events(rng, 160, [*TYPES, *"abc"]))
    straight = serve(folder / "straight", 4, rules)
    straight.process(events)
    straight.end()
    serve(folder / "service", 2, rules).process(events[:80])
    return folder / "service", events[80:], straight.results()


@contextmanager
def copied(prepared: tuple[Path, Any, Any], to: Path) -> Iterator[Service]:
    shutil.copytree(prepared[0], to, symlinks=True)
    yield Service(to / "service.yml")


@pytest.mark.parametrize("point", REPARTITIONS)
def test_killed_at_every_point_it_goes_on(point: str, prepared: Any, tmp_path: Path) -> None:
    with copied(prepared, tmp_path / "s") as service:
        service.write_partitions(4)
        command = "repartition", service.config, "--partitions", 4
        killed = small.run_apart(*command, SAMOVAR_KILL=point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        started = small.run("run", service.config, "--until-caught-up")
        if point == "repartition.copied":  # nothing was touched: only the file says otherwise
            assert started.stderr.startswith("topic-partitions:"), started.output
        elif point not in ("repartition.switched", "repartition.done"):
            assert started.stderr.startswith("repartition-unfinished:"), started.output
            refused = [("verify", service.config), ("repartition", service.config, "--abort")]
            for each in refused[: 1 if point == "repartition.fenced" else 2]:  # till the copy is whole
                assert small.run(*each).stderr.startswith("repartition-unfinished:")
        done = small.run(*command)
        assert done.exit_code == 0, done.output
        with service.log() as log:
            assert marker_of(service.settings, log) is None
            assert not log.topics(LEFTOVERS)
        service.process(prepared[1])
        service.end()
        assert service.results() == prepared[2]


def test_what_was_copied_before_a_kill_is_followed(prepared: Any, tmp_path: Path) -> None:
    """Killed before the switch the service runs on; what it changed since goes after what was copied."""
    with copied(prepared, tmp_path / "s") as service:
        service.write_partitions(4)
        command = "repartition", service.config, "--partitions", 4
        assert small.run_apart(*command, SAMOVAR_KILL="repartition.copied").returncode == -signal.SIGKILL
        assert small.run("repartition", service.config, "--partitions", 3).stderr.startswith("repartition-")
        service.write_partitions(2)
        service.process(prepared[1][:40])
        service.to(4)
        service.process(prepared[1][40:])
        service.end()
        assert service.results() == prepared[2]


@pytest.mark.parametrize("point", ["repartition.copied", "repartition.fenced"])
def test_given_up_nothing_was_changed(point: str, prepared: Any, tmp_path: Path) -> None:
    with copied(prepared, tmp_path / "s") as service:
        digests = service.digests()
        assert small.run("repartition", service.config, "--abort").output == "nothing was begun\n"
        service.write_partitions(4)
        command = "repartition", service.config, "--partitions", 4
        assert small.run_apart(*command, SAMOVAR_KILL=point).returncode == -signal.SIGKILL
        assert small.run("repartition", service.config, "--abort").exit_code == 0
        service.write_partitions(2)
        with service.log() as log:
            assert not log.topics(LEFTOVERS)
        assert service.digests() == digests
        assert small.is_equal(service)


@dataclass
class Running:
    """A service that is driven by what a repartition says it waits for."""

    service: Service
    parts: list[list[dict[str, Any]]]  # of events that come while it is waited for
    waited: list[str] = field(default_factory=list)

    def to(self, partitions: int) -> RepartitionResult:
        with self.service.log() as log, ExitStack() as container:
            running = container.enter_context(self.service.container())

            def on_wait(blocked: Refused) -> None:
                self.waited.append(blocked.code)
                if self.parts:
                    self.service.produce(self.parts.pop(0))
                    self.service.catch_up(running)
                elif blocked.code == "group-active":
                    container.close()
                else:
                    self.service.write_partitions(partitions)

            plan = plan_repartition(self.service.settings, log, partitions)
            return repartition(plan, on_wait=on_wait, wait_s=60)


def test_the_service_runs_while_its_state_is_copied(
    prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States come, change and go after they were copied; killed on the way, it follows from where it was."""
    monkeypatch.setattr("samovar.service.recovery.repartition.FOLLOW", 50)
    with copied(prepared, tmp_path / "s") as service:
        events = prepared[1]
        with service.container() as running:
            command = "repartition", service.config, "--partitions", 4, "--wait", "1m"
            killed = small.run_apart(*command, SAMOVAR_KILL="repartition.copied")
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            service.produce(events[:20])
            service.catch_up(running)
        found = Running(service, [events[20:40], events[40:60]])
        moved = found.to(4)
        assert found.waited == ["group-active"] * 3 + ["repartition-file"]
        assert moved.rows > 0
        service.process(events[60:])
        service.end()
        assert service.results() == prepared[2]


def test_a_change_that_the_copy_lost_is_found(prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared after the copy is what has changed since, row by row."""
    append = repartitions._Copy._append

    def losing(self: Any, topic: str, batches: Any) -> None:
        is_copied = len(self.marker.done) == len(self.sources)
        append(self, topic, {place: rows[:-1] if is_copied else rows for place, rows in batches.items()})

    monkeypatch.setattr(repartitions._Copy, "_append", losing)
    with copied(prepared, tmp_path / "s") as service, pytest.raises(Refused) as refused:
        Running(service, [prepared[1][:20]]).to(4)
    assert refused.value.code == "repartition-differs"


@pytest.mark.parametrize("point", ["repartition.fenced", "repartition.made", "repartition.filled"])
def test_a_container_that_had_passed_its_check_does_not_come_in(
    point: str, prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before the switch, and joins during it: it sees the switch, and is seen."""
    with copied(prepared, tmp_path / "s") as service, service.log() as log:
        late = container_of(service.settings, log, 0, lambda _: None, service.clock)
        service.write_partitions(4)
        said: list[str] = []

        def on_pass(name: str) -> None:
            if name == point and not said:
                with pytest.raises(Refused) as refused:
                    service.catch_up(late)
                said.append(refused.value.code)

        monkeypatch.setattr(failpoints, "on_pass", on_pass)
        plan = plan_repartition(service.settings, log, 4)
        try:
            with pytest.raises(Refused) as seen:
                repartition(plan)
        finally:
            late.close()
        assert (said, seen.value.code) == (["repartition-unfinished"], "group-active")
        assert repartition(plan_repartition(service.settings, log, 4)).rows > 0
        service.process(prepared[1])
        service.end()
        assert service.results() == prepared[2]


def test_rows_that_differ_stop_it_before_the_switch(prepared: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The proof is of what is read again: a row that the copy lost is found."""
    append = repartitions._Copy._append

    def losing(self: Any, topic: str, batches: Any) -> None:
        append(self, topic, {place: rows[1:] for place, rows in batches.items()})

    monkeypatch.setattr(repartitions._Copy, "_append", losing)
    with copied(prepared, tmp_path / "s") as service:
        assert "repartition-differs:" in service.to(4, code=2)["error"]
        service.write_partitions(2)
        assert small.is_equal(service)


# ---------------------------------------------------------------- what it refuses, and what becomes impossible


def test_what_must_be_so_before(prepared: Any, tmp_path: Path) -> None:
    with copied(prepared, tmp_path / "s") as service:
        asked = "repartition", service.config
        assert small.run(*asked).exit_code == 2
        assert small.run(*asked, "--partitions", 4).stderr.startswith("repartition-file:")
        service.produce(prepared[1][:3])
        assert "repartition-behind:" in service.to(4, code=2)["error"]
        service.write_partitions(2)
        with service.container():
            assert "group-active:" in service.to(4, "--wait", "0", code=2)["error"]
            service.write_partitions(2)
        assert "repartition-stages:" in service.to(1, code=2)["error"]
        planned = service.to(4, "--dry-run")["plan"]
        assert planned["from"], planned["to"] == (2, 4)
        assert {"r-changelog", "r-journal", "r-changelog-by-v", "r-s-by-v"} <= set(planned["remade"])
        assert planned["grown"] == {STREAM: 2}
        assert "repartitioned" not in service.to(2)
        fresh = serve(tmp_path / "fresh", 3, PAIRS)
        assert "nothing-processed:" in fresh.to(3, code=2)["error"]


def test_the_past_is_refused_and_a_snapshot_since_then_serves(tmp_path: Path) -> None:
    service = serve(tmp_path / "s", 2, PAIRS)
    events = [{"type": "ab"[at % 2], "ts": FIRST_TIME + 500 * at, "u": f"k{at % 7}", "n": 1} for at in range(90)]
    service.process(events[:40], snapshot=True)
    stale = tmp_path / "stale"
    shutil.copytree(service.state, stale)
    service.to(3)
    service.process(events[40:60])
    assert small.run("verify", service.config).exit_code == 3
    for command in (
        ("restore", service.config, "--from", "source"),
        ("rewind", service.config, "--to-time", events[30]["ts"]),
    ):
        assert small.run(*command).stderr.startswith("state-repartitioned:"), command
    # A machine that was away has stores of before: they are replaced.
    digests = service.digests()
    shutil.rmtree(service.state)
    shutil.copytree(stale, service.state)
    service.process([], snapshot=True)
    assert service.digests() == digests
    service.process(events[60:])
    verified = small.run("verify", service.config)
    assert verified.exit_code == 0, verified.output
    rewound = small.run("rewind", service.config, "--to-time", events[75]["ts"])
    assert rewound.exit_code == 0, rewound.output
    service.process([])
    service.end()
    straight = serve(tmp_path / "t", 3, PAIRS)
    straight.process(events)
    straight.end()
    assert service.results() == straight.results()


def test_events_that_waited_leave_no_row_behind(tmp_path: Path) -> None:
    service = serve(tmp_path / "s", 2, PAIRS)
    events = [{"type": "ab"[at % 2], "ts": FIRST_TIME + 500 * at, "u": f"k{at % 7}", "n": 1} for at in range(40)]
    service.process(events)
    assert service.to(3)["repartitioned"]["waiting"] > 0
    service.process([])  # a restart in between: they are still there
    assert rows(service, 3) > 0
    service.end()
    assert rows(service, 3) == 0


def rows(service: Service, partitions: int) -> int:
    found = 0
    for partition in range(partitions):
        store = RocksStore(service.store(partition))
        found += sum(1 for _ in store.range(WAITING, bytes([WAITING[0] + 1])))
        store.close()
    return found

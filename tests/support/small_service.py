"""A small service with a history, for the tests of the commands that a person on call types."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.formats.record import CHECKPOINT, pack_checkpoint
from samovar.changelog.log import Append, TopicPartition
from samovar.changelog.partitioner import partition_of
from samovar.changelog.restore.restore import checkpoint_of
from samovar.patterns.engine.matcher import encode_key
from samovar.service.cli.main import app
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.runtime.running import container_of
from samovar.state.rocks import RocksStore
from samovar.tasks.model.clock import SetClock
from samovar.tasks.runtime.container import Container
from tests.support.project import ROOT

START = 1_767_600_000_000  # event time of the first event
HOUR = 3_600_000
SERVICE = """
service: s
streams:
  purchase: {key: card, partitions: 2, schema: {card: string, amount: double, country: string}, slack: 2s}
"""
RULES = {
    "testing": """
rule: testing
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=2..
    [purchase where amount > 200] as big
""",
    "countries": """
rule: countries
match: |
  aggregate by card over 15m
    [purchase where country != null]
    having distinct(country) >= 2
suppress: 1h
""",
    "unusual": """
rule: unusual
match: |
  sequence by card with maxspan=0ms
    [purchase where amount > 10 * avg(amount, 1d)] as p
""",
}


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin)


def run_apart(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "samovar.service.cli", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60
    )


@dataclass
class Service:
    """A service in a folder. Its log and its tasks go by a clock that the test sets."""

    config: Path
    clock: SetClock = field(default_factory=lambda: SetClock(int(time.time() * 1000)))

    @property
    def settings(self) -> ServiceFile:
        return load_service(self.config)

    @property
    def state(self) -> Path:
        return self.settings.state

    def store(self, partition: int) -> Path:
        return self.state / str(partition) / "store"

    @contextmanager
    def log(self) -> Iterator[EmbeddedLog]:
        folder = self.settings.log.embedded
        assert folder is not None
        log = EmbeddedLog(folder, clock=self.clock.wall_ms, tunables=self.settings.tunables)
        try:
            yield log
        finally:
            log.close()

    @contextmanager
    def container(self) -> Iterator[Container]:
        """A container that has caught up, and goes on when it is told to."""
        with self.log() as log:
            container = container_of(self.settings, log, 0, lambda _: None, self.clock)
            try:
                catch_up(container)
                yield container
            finally:
                container.close()

    def produce(self, events: Sequence[dict[str, Any]], stream: str = "purchase") -> None:
        with self.log() as log:
            container_of(self.settings, log, 0, lambda _: None, self.clock)  # makes the topics
            pairs = [(event["card"].encode(), json.dumps(event).encode()) for event in events]
            log.append([Append(topic=stream, records=pairs)])

    def process(self, events: Sequence[dict[str, Any]], *, snapshot: bool = False) -> None:
        """Produce and run until all of it is processed."""
        self.produce(events)
        with self.container() as container:
            for task in container.tasks.values() if snapshot else ():
                task.take_snapshot()

    def settle(self, *, snapshot: bool = False) -> None:
        """Let the wall clock pass until nothing waits for event time any more."""
        with self.container() as container:
            for _ in range(3):
                self.clock.pass_ms(6_000)
                catch_up(container)
            for task in container.tasks.values() if snapshot else ():
                task.take_snapshot()

    def partition(self, card: str) -> int:
        return partition_of(card.encode(), 2)

    def digests(self) -> dict[int, str]:
        done = run("state", "digest", self.config, "--json")
        assert done.exit_code == 0, done.output
        return {each["partition"]: each["digest"] for each in json.loads(done.stdout)}

    def changelog_end(self, partition: int) -> int:
        with self.log() as log:
            at = TopicPartition("s-changelog", partition)
            return log.bounds([at])[at].end

    def following_next(self, partition: int) -> int:
        store = RocksStore(self.store(partition))
        try:
            checkpoint = checkpoint_of(store)
            assert checkpoint is not None
            return checkpoint.next
        finally:
            store.close()


def make(folder: Path) -> Service:
    (folder / "rules").mkdir(parents=True)
    for name, text in RULES.items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    (folder / "service.yml").write_text(SERVICE)
    return Service(folder / "service.yml")


def catch_up(container: Container) -> None:
    for _ in range(10_000):
        container.cycle()
        if container.caught_up():
            return
    raise AssertionError("it does not catch up")


def purchase(card: str, second: float, amount: float, country: str = "US") -> dict[str, Any]:
    return {"card": card, "amount": amount, "country": country, "ts": START + int(second * 1000)}


def many(count: int, cards: int = 7, start_s: int = 0) -> list[dict[str, Any]]:
    """Events of several cards, with matches among them and something left open at the end."""
    amounts, countries = [1, 1.5, 30, 1, 900, 3], ["US", "US", "FR", "US", "DE"]
    return [
        purchase(f"c{n % cards}", start_s + n * 3, amounts[(n * 7) % 6], countries[(n * 5 + n % 3) % 5])
        for n in range(count)
    ]


def key_of(card: str) -> bytes:
    return encode_key([card])


# ---------------------------------------------------------------- restore


def restored(service: Service, *options: object, code: int = 0) -> dict[str, Any]:
    done = run("restore", service.config, "--json", *options)
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(service: Service, *options: object) -> str:
    done = run("restore", service.config, *options)
    assert done.exit_code == 2, done.output
    return done.stderr.split(":")[0]


def wipe(service: Service) -> None:
    for partition in (0, 1):
        shutil.rmtree(service.store(partition))


def is_equal(service: Service) -> bool:
    return run("verify", service.config).exit_code == 0


def edit_following(service: Service, partition: int, **changes: Any) -> None:
    store = RocksStore(service.store(partition))
    checkpoint = checkpoint_of(store)
    assert checkpoint is not None
    store.put(CHECKPOINT, pack_checkpoint(replace(checkpoint, **changes)))
    store.close()

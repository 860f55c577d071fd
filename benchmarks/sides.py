"""The two sides of the comparison: how each is started on a workload, and how its alerts read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.bed import Bed
from benchmarks.expected import Alert, Session
from benchmarks.processes import FailedError, Watched
from benchmarks.stream import W1, W2
from samovar.changelog.broker.jars import find_java

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "benchmarks" / "peers" / "kafka-streams"
BUILT = ROOT / "build" / "peers" / "kafka-streams"
RULES = {"w1": W1, "w2": W2}

SERVICE = """service: {name}
log: {log}
streams:
  purchase:
    topic: {topic}
    key: card
    time: ts
    schema: {{card: string, amount: double, merchant: string, country: string}}
    slack: 0s
    partitions: 4
rules: rules/
delivery: {delivery}
"""


class Side(Protocol):
    """One system on one workload. `name` is its group's name too."""

    @property
    def name(self) -> str: ...
    @property
    def alerts(self) -> str:
        """The topic that it writes to."""
        ...

    @property
    def changelog(self) -> str: ...
    @property
    def begins(self) -> str:
        """What it says when it begins with the first record."""
        ...

    def start(self) -> Watched: ...
    def wipe(self) -> None:
        """Lose the local store. The log stays."""
        ...

    def card_testing(self, alerts: Iterable[dict[str, Any]]) -> list[Alert]: ...
    def sessions(self, alerts: Iterable[dict[str, Any]]) -> list[Session]: ...


# ---------------------------------------------------------------- Samovar


@dataclass(frozen=True)
class Samovar:
    name: str
    folder: Path
    workload: str
    topic: str
    log: str  # as the service file says it
    containers: int = 1
    delivery: str = "exactly_once"

    # Its stores are open then, and the next thing it does is to ask for records.
    begins = r"running partitions \d"

    @property
    def alerts(self) -> str:
        return f"{self.name}-alerts"

    @property
    def changelog(self) -> str:
        return f"{self.name}-changelog"

    @property
    def config(self) -> Path:
        return self.folder / "service.yml"

    def start(self) -> Watched:
        (self.folder / "rules").mkdir(parents=True, exist_ok=True)
        (self.folder / "rules" / f"{self.workload}.yml").write_text(RULES[self.workload])
        settings = {"name": self.name, "log": self.log, "topic": self.topic, "delivery": self.delivery}
        self.config.write_text(SERVICE.format(**settings))
        command = [sys.executable, "-m", "samovar.service.cli", "run", str(self.config)]
        more = ["--containers", str(self.containers)] if self.containers > 1 else []
        return Watched([*command, *more], self.folder / "run.log", {"PYTHONPATH": str(ROOT)})

    def wipe(self) -> None:
        shutil.rmtree(self.folder / ".samovar" / "state")

    def card_testing(self, alerts: Iterable[dict[str, Any]]) -> list[Alert]:
        return [Alert(each["key"]["card"], each["at"], len(each["steps"]["probe"])) for each in alerts]

    def sessions(self, alerts: Iterable[dict[str, Any]]) -> list[Session]:
        return [
            Session(
                each["key"]["card"], each["start"], each["end"], each["emit"]["count"], cents(each["emit"]["spent"])
            )
            for each in alerts
        ]


def on_kafka(bed: Bed, name: str, workload: str, topic: str, **more: Any) -> Samovar:
    return Samovar(name, bed.place(name), workload, topic, f'{{kafka: {{bootstrap: "{bed.address}"}}}}', **more)


# ---------------------------------------------------------------- Kafka Streams

# A heap that is never short, and of the settings that were tried those that together took the least processor time:
# the throughput collector, larger polls and batches, compression as ours, no record cache.
JAVA = ("-Xms1g", "-Xmx2g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


TUNED = {
    "consumer.max.poll.records": "5000",
    "consumer.max.partition.fetch.bytes": str(4 << 20),
    "buffered.records.per.partition": "5000",
    "producer.batch.size": str(128 << 10),
    "producer.compression.type": "lz4",
    "cached": "false",
}


@dataclass(frozen=True)
class Streams:
    name: str
    folder: Path
    workload: str
    topic: str
    address: str
    commit_ms: int = 1_000
    threads: int = 2
    more: Mapping[str, str] = field(default_factory=dict)

    begins = r"^first$"

    @property
    def alerts(self) -> str:
        return f"{self.name}-alerts"

    @property
    def changelog(self) -> str:
        return f"{self.name}-{'probes' if self.workload == 'w1' else 'sessions'}-changelog"

    def start(self) -> Watched:
        settings = {
            "application.id": self.name,
            "bootstrap.servers": self.address,
            "state.dir": str(self.folder / "state"),
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": str(self.commit_ms),
            "num.stream.threads": str(self.threads),
            **TUNED,
            **self.more,
        }
        classes = f"{BUILT / 'peer.jar'}:{BUILT / 'lib'}/*"
        command = [find_java().path, *JAVA, "-cp", classes, "samovar.peer.Peer", self.workload, self.topic, self.alerts]
        return Watched([*command, *(f"{name}={value}" for name, value in settings.items())], self.folder / "run.log")

    def wipe(self) -> None:
        shutil.rmtree(self.folder / "state")

    def card_testing(self, alerts: Iterable[dict[str, Any]]) -> list[Alert]:
        return [Alert(each["card"], each["at"], each["probes"]) for each in alerts]

    def sessions(self, alerts: Iterable[dict[str, Any]]) -> list[Session]:
        return [
            Session(each["card"], each["start"], each["end"], each["count"], cents(each["spent"])) for each in alerts
        ]


def streams_on(bed: Bed, name: str, workload: str, topic: str, **more: Any) -> Streams:
    return Streams(name, bed.place(name), workload, topic, bed.address, **more)


def cents(amount: float) -> int:
    return round(amount * 100)


def built() -> bool:
    """Build the Kafka Streams side where it is not built yet. False where there is no Maven."""
    jar = BUILT / "peer.jar"
    sources = [PROJECT / "pom.xml", *PROJECT.rglob("*.java")]
    if jar.exists() and jar.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return True
    maven = shutil.which("mvn")
    if maven is None:
        return False
    command = [maven, "-B", "-q", "-f", str(PROJECT / "pom.xml"), "package"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise FailedError(f"{' '.join(command)} failed:\n{ran.stdout[-3000:]}{ran.stderr[-1000:]}")
    return True

"""A Kafka broker on this machine: one KRaft node, broker and controller in one, for trials and tests.

    FOLDER/server.properties   its settings, written at every start
    FOLDER/broker.json         the process that was started (`Process`), there while it should run
    FOLDER/broker.log, .old    what it says, and what the one before it said
    FOLDER/data/               its logs; deleting it forgets everything
    FOLDER/lock                held while a start or a stop is under way

It listens on 127.0.0.1 only, with no password: nothing for production.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from samovar.changelog.broker.jars import VERSION, Java, Say, cache_folder, find_java, kafka_jars, tail
from samovar.changelog.broker.process import alive, begun_of, end, free_port, spawn, wait_for, write_whole
from samovar.common.errors import Refused
from samovar.common.folders import make_private

HOST = "127.0.0.1"
START_S = 90  # until a broker must answer
STOP_S = 60  # until a broker that was asked to end is killed
ANSWER_S = 2

# C1 only and no parallel collector: up in half the time, and the other core stays free for the one who asked.
JAVA_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
)
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    # one node: internal topics with one copy and few partitions
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # There is nobody to hand leadership to: while a single node tried, it would forget to end transactions whose commit
    # it has acknowledged ("Couldn't find leader endpoint for partitions ... likely deleted already").
    "controlled.shutdown.enable": "false",
    # nobody waits for others that may join, or for the broker that was killed before this one
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # compaction and retention take effect within seconds, with a small buffer
    "log.initial.task.delay.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}


@dataclass(frozen=True, kw_only=True)
class Process:
    """A broker that was started. Pid and start time together name a process: a pid alone is given out again."""

    pid: int
    begun: str
    port: int
    cluster: str
    kafka: str
    archive: str = ""  # where Java writes its classes when it ends, if it was asked to


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A broker as it is now. `answers` is False while it starts, or hangs."""

    address: str
    pid: int
    folder: Path
    log: Path
    kafka: str
    answers: bool
    started: bool = False  # by this very call


def start(folder: Path, port: int, say: Say, extra: Mapping[str, str] | None = None) -> Broker:
    """Start a broker and wait until it answers. One that runs already in this folder is left as it is."""
    folder = folder.absolute()
    with locked(folder):
        running = running_in(folder)
        if running is not None:
            if running.port != port:
                what = f"a broker runs in {folder} already, on port {running.port}, not {port}"
                raise Refused("kafka-other-port", what, "Stop it first, or name another folder with --dir.")
            wait_until_answers(folder, running)
            return seen(folder, running, answers=True)
        java = find_java()
        refuse_taken(port)
        jars = kafka_jars(java, say)
        say(f"starting Kafka {VERSION} on {HOST}:{port}")
        process = launch(folder, port, java, jars, extra or {})
        wait_until_answers(folder, process)
        return seen(folder, process, answers=True, started=True)


def status(folder: Path) -> Broker | None:
    """The broker of this folder, or None where none runs."""
    folder = folder.absolute()
    process = running_in(folder)
    return None if process is None else seen(folder, process, answers=answers(process))


def stop(folder: Path) -> bool:
    """End the broker that was started in this folder, and wait until it is gone. False where none runs."""
    folder = folder.absolute()
    if not (folder / "broker.json").exists():
        return False
    with locked(folder):
        process = running_in(folder)
        if process is not None:
            end(process.pid, process.begun, STOP_S)  # one that is killed reads its logs through at its next start
            written = Path(process.archive)
            if process.archive and written.is_file():
                # Java's classes go to the cache. Only a broker's quick start depends on it.
                with suppress(Refused, OSError):
                    kept = cache_folder("kafka", VERSION) / f"java-{find_java().version}.jsa"
                    temporary = kept.with_suffix(f".{os.getpid()}")
                    shutil.move(written, temporary)
                    temporary.replace(kept)
        (folder / "broker.json").unlink(missing_ok=True)
        return process is not None


def seen(folder: Path, process: Process, *, answers: bool, started: bool = False) -> Broker:
    address = f"{HOST}:{process.port}"
    return Broker(
        address=address,
        pid=process.pid,
        folder=folder,
        log=folder / "broker.log",
        kafka=process.kafka,
        answers=answers,
        started=started,
    )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One start or stop at a time. The system lets go of the lock when its process ends, however it ends."""
    try:
        make_private(folder)
        with (folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        hint = "Name another folder with --dir, or make this one writable."
        raise Refused("kafka-dir-unusable", f"the broker's folder {folder} cannot be used: {error}", hint) from None


def launch(
    folder: Path,
    port: int,
    java: Java,
    jars: Sequence[Path],
    extra: Mapping[str, str],
    *,
    cluster: str = "",
    java_options: Sequence[str] = (),
) -> Process:
    """`cluster` is that of the other nodes, where there are others; `java_options` come after ours."""
    cluster, controller = cluster or cluster_of(folder), free_port(HOST)
    settings = SETTINGS | {
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "log.dirs": str(folder / "data"),
    }
    lines = [f"{name}={value}\n" for name, value in (settings | dict(extra)).items()]
    write_whole(folder / "server.properties", "".join(lines))
    archive = cache_folder("kafka", VERSION) / f"java-{java.version}.jsa"
    classpath = ["-cp", os.pathsep.join(map(str, jars))]
    sharing = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
    command = [java.path, *JAVA_OPTIONS, *LOG_OPTIONS, *java_options]
    formatting = [*command, *sharing, *classpath, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
    formatting += ["-t", cluster, "-c", str(folder / "server.properties")]
    try:
        ran = subprocess.run(formatting, capture_output=True, text=True, timeout=START_S, check=False)
        said, failed = ran.stdout + ran.stderr, ran.returncode != 0
    except subprocess.TimeoutExpired:
        said, failed = f"no end within {START_S} s", True
    if failed:
        hint = "Its data may be of another Kafka version: delete the folder, or name another with --dir."
        raise Refused("kafka-broker-died", "the broker's data folder could not be prepared", hint, tail(said))
    # Without an archive of its classes the broker writes one when it ends; `stop` puts it where the next one finds it.
    learned = "" if sharing else str(folder / "classes.jsa")
    learning = [f"-XX:ArchiveClassesAtExit={learned}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if learned else []
    log = folder / "broker.log"
    if log.exists():
        log.replace(folder / "broker.log.old")
    pid = spawn([*command, *sharing, *learning, *classpath, "kafka.Kafka", str(folder / "server.properties")], log)
    process = Process(pid=pid, begun=begun_of(pid) or "", port=port, cluster=cluster, kafka=VERSION, archive=learned)
    write_whole(folder / "broker.json", json.dumps(asdict(process)) + "\n")
    return process


def cluster_of(folder: Path) -> str:
    """The cluster that the data belongs to; a new one where there is no data yet."""
    with suppress(OSError):
        for line in (folder / "data" / "meta.properties").read_text("utf-8").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "cluster.id":
                return value.strip()
    first, *rest = uuid.uuid4().bytes
    made = bytes([first & 0x7F, *rest])  # so that it does not begin with a dash, which Kafka's tools take for an option
    return urlsafe_b64encode(made).decode().rstrip("=")


def running_in(folder: Path) -> Process | None:
    """The process that was started in this folder, if it is still that one."""
    try:
        written: dict[str, Any] = json.loads((folder / "broker.json").read_text("utf-8"))
        process = Process(**written)
    except (OSError, ValueError, TypeError):
        return None
    return process if alive(process.pid, process.begun) else None


def answers(process: Process) -> bool:
    """Whether it is this very broker that answers at its address."""
    with suppress(OSError, KafkaException):
        socket.create_connection((HOST, process.port), ANSWER_S).close()
        # Its own threads would write their complaints to our stderr.
        quiet: dict[str, Any] = {"bootstrap.servers": f"{HOST}:{process.port}", "log_level": "0"}
        told = AdminClient(quiet | {"error_cb": lambda _error: None}).list_topics(timeout=ANSWER_S)
        return str(told.cluster_id) == process.cluster and bool(told.brokers)
    return False


def wait_until_answers(folder: Path, process: Process) -> None:
    log = folder / "broker.log"
    if not wait_for(lambda: not alive(process.pid, process.begun) or answers(process), START_S):
        hint = f"Look into {log}, or stop it and start it again."
        raise Refused("kafka-no-answer", f"the broker did not answer within {START_S} s", hint, last_words(log))
    if not alive(process.pid, process.begun):
        (folder / "broker.json").unlink(missing_ok=True)
        hint = f"The whole log is {log}. If its data is damaged, delete {folder} and start again."
        raise Refused("kafka-broker-died", "the broker ended by itself", hint, last_words(log))


def last_words(log: Path) -> str:
    with suppress(OSError):
        return tail(log.read_text("utf-8", "replace"))
    return "it wrote no log"


def refuse_taken(port: int) -> None:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except OSError as error:
        hint = "Choose another with --port, or end what listens there."
        raise Refused("kafka-port-taken", f"port {port} cannot be used: {error.strerror}", hint) from None

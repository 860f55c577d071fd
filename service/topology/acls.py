"""The least access rights that a service needs of Kafka, and the plan of its topics as text, JSON and commands.

The document of `samovar topics plan --json`:

    {"service": text, "log": "embedded" | "kafka", "topics": "create" | "check",
     "plan": [{"name", "role", "partitions", "replication", "settings": {...}}, ...],
     "rights": [{"who", "resource", "name", "pattern": "literal" | "prefixed", "operations": [...]}, ...]}

and of `samovar topics check --json`:

    {"ok": bool, "topics": how many, "mismatches": [{"code", "topic", "what", "fix"}, ...]}
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samovar.changelog.log import Delivery
from samovar.common.errors import Refused
from samovar.service.config.addresses import is_loopback
from samovar.service.config.models import ServiceFile
from samovar.service.topology.topics import (
    Mismatch,
    PlannedTopic,
    TopicRole,
    archive_group,
    bootstrap_of,
    create_command,
    redrive_group,
    sink_group,
    spark_topic,
    traffic_labels_topic,
    traffic_topic,
)
from samovar.tasks.runtime.repartition_fence import switch_topic

SERVICE, HTTP, PRODUCERS, TRAFFIC, READERS = "service", "http", "producers", "traffic", "readers"
SPARK = "spark"
AUTHORS, ANALYSTS, OPERATORS = "authors", "analysts", "operators"
# Whose rights a command needs. The service's own do for what is asked next to a container, as its user. `repartition`
# deletes topics and makes them: that is for who administers the cluster.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    SERVICE: (
        "run", "restore", "verify", "status", "doctor", "topics check", "archive",
        "state get", "state scan", "state history", "state digest", "state diff",
    ),
    HTTP: ("serve",),
    PRODUCERS: ("produce",),
    TRAFFIC: ("traffic",),
    SPARK: ("df.write",),  # no command: docs/spark.md
    READERS: ("read",),
    AUTHORS: (
        "rules publish", "rules disable", "rules enable", "rules rollback", "rules history", "rules diff", "rules plan",
        "lists add", "lists remove", "lists show",
    ),
    ANALYSTS: (
        "rules backtest", "rules sample", "views rebuild", "views refresh", "views get", "sql", "tables list",
        "tables show", "tables export", "tables query",
    ),
    OPERATORS: ("rewind", "dlq show", "dlq redrive", "tokens add", "tokens list", "tokens remove"),
}  # fmt: skip

# READ and WRITE let one describe a topic as well; its settings are always looked at.
READ, WRITE = ("READ", "DESCRIBE_CONFIGS"), ("WRITE", "DESCRIBE_CONFIGS")
BOTH, DESCRIBE = ("READ", "WRITE", "DESCRIBE_CONFIGS"), ("DESCRIBE", "DESCRIBE_CONFIGS")
OPERATIONS = {"-": (), "r": READ, "w": WRITE, "rw": BOTH, "d": DESCRIBE}
# With `+` they make topics of this role, where the service file says `topics: create`. The service writes rules and the
# audit trail where a rule goes to quarantine. Producers see from the journal how many partitions keys are placed among.
_MATRIX = """
             service http producers traffic readers authors analysts operators spark
INPUT        r+      rw+  w+        w+      -       d       r        rw        w+
ALERTS       w+      r+   -         -       r       -       r        r         -
LATE         w+      r+   -         -       r       -       r        -         -
DEAD_LETTERS w+      r+   -         -       r       -       r        r         -
CHANGELOG    rw+     r+   -         -       -       -       r        rw        -
JOURNAL      rw+     r+   d         d       -       r       r        rw        d
REPARTITION  rw+     d+   -         -       -       -       -        r         -
EMITTED      w+      d+   -         -       r       -       -        -         -
CONTAINERS   rw+     r+   -         -       -       -       -        -         -
RULES        rw+     rw+  -         -       -       rw+     r        r         -
LABELS       d+      rw+  -         -       -       -       r        -         -
ACCESS       d+      rw+  -         -       -       -       -        rw+       -
AUDIT        w+      rw+  -         -       -       w+      -        w+        -
REDRIVEN     d+      rw+  -         -       -       -       -        rw+       -
"""
_HEADING, *_ROWS = (line.split() for line in _MATRIX.strip().splitlines())
_CELLS = {(who, TopicRole[role]): cell for role, *cells in _ROWS for who, cell in zip(_HEADING, cells, strict=True)}


@dataclass(frozen=True, kw_only=True)
class AclEntry:
    """What one principal may do with one resource."""

    who: str
    resource: str  # topic, group or transactional-id
    name: str
    operations: tuple[str, ...]
    pattern: str = "literal"


def rights(settings: ServiceFile, specs: Sequence[PlannedTopic]) -> list[AclEntry]:
    """The least that each role needs for its commands."""
    return [each for who in COMMANDS for each in (*_topic_rights(who, settings, specs), *_other_rights(who, settings))]


def _topic_rights(who: str, settings: ServiceFile, specs: Sequence[PlannedTopic]) -> Iterator[AclEntry]:
    # The host at which containers serve metrics, as far as the settings say: this machine's own where they do not.
    metrics_host = (settings.run.metrics or "").rpartition(":")[0].strip("[]") or "127.0.0.1"
    written = {
        settings.streams[to].topic for task in settings.tasks.values() for to in task.emits if to in settings.streams
    }
    of_tasks = {f"{settings.journal.topic}-{name}" for name in settings.tasks}  # no rule ever changed in these
    for spec in specs:
        cell = _CELLS[who, spec.role]
        wanted = OPERATIONS[cell.rstrip("+")]
        if who in (AUTHORS, ANALYSTS, HTTP) and spec.name in of_tasks:
            wanted = ()
        if (
            who in (PRODUCERS, TRAFFIC, SPARK)
            and spec.role is TopicRole.JOURNAL
            and spec.name != settings.journal.topic
        ):
            wanted = ()  # the main stage's tells the number of partitions
        if who == SERVICE and spec.name in written:
            wanted = BOTH
        if who == SERVICE and spec.role is TopicRole.ALERTS and settings.archive is not None:
            wanted = BOTH
        if who == SERVICE and spec.role is TopicRole.ACCESS and not is_loopback(metrics_host):
            wanted = READ  # metrics are served to who shows a token
        if settings.topics == "create" and cell.endswith("+"):
            wanted = (*wanted, "CREATE")
        if wanted:
            yield AclEntry(who=who, resource="topic", name=spec.name, operations=wanted)


def _other_rights(who: str, settings: ServiceFile) -> Iterator[AclEntry]:
    """Groups and transactions; and the topics that only traffic has."""
    group, redrives, traffics = settings.service, redrive_group(settings.service), traffic_topic(settings.service)
    if who in (SERVICE, HTTP, OPERATORS):  # whether the topics are being made again
        yield AclEntry(who=who, resource="topic", name=switch_topic(group), operations=("DESCRIBE",))
    if who == SERVICE and settings.archive is not None:
        yield AclEntry(who=who, resource="group", name=archive_group(group), operations=("READ",))
    if who in (SERVICE, OPERATORS):
        yield AclEntry(who=who, resource="group", name=group, operations=("READ",))
        if settings.delivery is Delivery.EXACTLY_ONCE:
            # One id per container, named by the container's number.
            yield AclEntry(
                who=who, resource="transactional-id", name=f"{group}-", operations=("WRITE",), pattern="prefixed"
            )
    if who == HTTP:
        yield AclEntry(who=who, resource="group", name=group, operations=("DESCRIBE",))
        yield from (
            AclEntry(who=who, resource="group", name=sink_group(group, name), operations=("READ",))
            for name in settings.sinks
        )
    if who in (HTTP, OPERATORS):
        yield AclEntry(who=who, resource="group", name=redrives, operations=("READ",))
    if who == HTTP or (who == OPERATORS and settings.delivery is not Delivery.EXACTLY_ONCE):
        yield AclEntry(
            who=who, resource="transactional-id", name=f"{redrives}-", operations=("WRITE",), pattern="prefixed"
        )
    if who == TRAFFIC:
        yield AclEntry(who=who, resource="topic", name=traffics, operations=(*BOTH, "CREATE"))
        yield AclEntry(who=who, resource="topic", name=traffic_labels_topic(group), operations=(*WRITE, "CREATE"))
        yield AclEntry(who=who, resource="group", name=traffics, operations=("READ",))
        yield AclEntry(
            who=who, resource="transactional-id", name=f"{traffics}-", operations=("WRITE",), pattern="prefixed"
        )
    if who == SPARK:  # a group and a transactional id for each query
        queries = spark_topic(group)
        yield AclEntry(who=who, resource="topic", name=queries, operations=(*BOTH, "CREATE"))
        for resource, operation in (("group", "READ"), ("transactional-id", "WRITE")):
            yield AclEntry(who=who, resource=resource, name=f"{queries}-", operations=(operation,), pattern="prefixed")


def as_json(settings: ServiceFile, specs: Sequence[PlannedTopic]) -> str:
    document: dict[str, Any] = {
        "service": settings.service,
        "log": "kafka" if settings.log.kafka else "embedded",
        "topics": settings.topics,
        "plan": [asdict(spec) for spec in specs],
        "rights": [asdict(right) for right in rights(settings, specs)] if settings.log.kafka else [],
    }
    return json.dumps(document, indent=2)


def as_text(settings: ServiceFile, specs: Sequence[PlannedTopic]) -> str:
    """Topics with their settings, then by role what it is for and its rights."""
    width = max(len(spec.name) for spec in specs)
    lines = [f"Topics of {settings.service} (topics: {settings.topics})", ""]
    for spec in specs:
        replicas = f", {spec.replication} replicas" if spec.replication > 1 else ""
        lines.append(f"  {spec.name:<{width}}  {spec.role}, {spec.partitions} partitions{replicas}")
        lines.append(f"  {'':<{width}}  {', '.join(f'{name}={value}' for name, value in spec.settings.items())}")
    if not any(stream.partitions for stream in settings.streams.values()):
        lines += ["", "  Where inputs exist already, their partition count holds for all."]
    if settings.log.kafka is None:
        return "\n".join([*lines, "", "The embedded log has no access rights: who may write its folder may do all."])
    lines += ["", "Least access rights", ""]
    granted = rights(settings, specs)
    for who, commands in COMMANDS.items():
        lines += textwrap.wrap(f"{who}: {', '.join(commands)}", 110, initial_indent="  ", subsequent_indent="    ")
        for right in granted:
            star = "*" if right.pattern == "prefixed" else ""
            if right.who == who:
                lines.append(f"    {', '.join(right.operations)} on {right.resource} {right.name}{star}")
    return "\n".join(lines)


def as_commands(settings: ServiceFile, specs: Sequence[PlannedTopic]) -> str:
    """The commands of Kafka that make the topics and grant the rights; principals are names to fill in."""
    bootstrap = bootstrap_of(settings)
    if bootstrap is None:
        raise Refused("no-kafka", "the embedded log needs no commands", "`samovar run` makes its topics")
    lines = [create_command(spec, bootstrap) for spec in specs]
    for right in rights(settings, specs):
        operations = " ".join(f"--operation {each.title().replace('_', '')}" for each in right.operations)
        pattern = " --resource-pattern-type prefixed" if right.pattern == "prefixed" else ""
        lines.append(
            f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:{right.who.upper()} "
            f"{operations} --{right.resource} {right.name}{pattern}"
        )
    return "\n".join(lines)


def check_text(specs: Sequence[PlannedTopic], found: Sequence[Mismatch]) -> str:
    if not found:
        return f"all {len(specs)} topics are as they should be"
    return "\n".join(f"{each.code}: {each.what}\n  {each.fix}" for each in found)


def check_json(specs: Sequence[PlannedTopic], found: Sequence[Mismatch]) -> str:
    document = {"ok": not found, "topics": len(specs), "mismatches": [asdict(each) for each in found]}
    return json.dumps(document, indent=2)

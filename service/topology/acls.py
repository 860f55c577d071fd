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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samovar.changelog.log import Delivery
from samovar.common.errors import Refused
from samovar.service.config.addresses import is_loopback
from samovar.service.config.models import ServiceFile
from samovar.service.topology.topics import (
    SIDE_ROLES,
    Mismatch,
    PlannedTopic,
    TopicRole,
    bootstrap_of,
    create_command,
    redrive_group,
    sink_group,
    traffic_labels_topic,
    traffic_topic,
)

SERVICE, HTTP, PRODUCERS, TRAFFIC, READERS = "service", "http", "producers", "traffic", "readers"
AUTHORS, ANALYSTS, OPERATORS = "authors", "analysts", "operators"
# Whose rights a command needs. The service's own do for what is asked next to a container, as its user.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    SERVICE: (
        "run", "restore", "verify", "status", "doctor", "topics check",
        "state get", "state scan", "state history", "state digest", "state diff",
    ),
    HTTP: ("serve",),
    PRODUCERS: ("produce",),
    TRAFFIC: ("traffic",),
    READERS: ("read",),
    AUTHORS: (
        "rules publish", "rules disable", "rules enable", "rules rollback", "rules history", "rules diff", "rules plan",
        "lists add", "lists remove", "lists show",
    ),
    ANALYSTS: ("rules backtest", "views rebuild", "views refresh"),
    OPERATORS: ("rewind", "dlq show", "dlq redrive", "tokens add", "tokens list", "tokens remove"),
}  # fmt: skip

# READ and WRITE let one describe a topic as well; its settings are always looked at.
LOOK, READ, WRITE = ("DESCRIBE_CONFIGS",), ("READ", "DESCRIBE_CONFIGS"), ("WRITE", "DESCRIBE_CONFIGS")
BOTH, ONLY_LOOK = ("READ", "WRITE", "DESCRIBE_CONFIGS"), ("DESCRIBE", "DESCRIBE_CONFIGS")
_WRITTEN = (TopicRole.ALERTS, TopicRole.LATE, TopicRole.DEAD_LETTERS, TopicRole.EMITTED)
_NEEDED: Mapping[str, Mapping[TopicRole, tuple[str, ...]]] = {
    SERVICE: {
        TopicRole.INPUT: READ,
        **dict.fromkeys(_WRITTEN, WRITE),
        # The rules topic and the audit trail are written where a rule goes to quarantine.
        **dict.fromkeys(
            (TopicRole.CHANGELOG, TopicRole.JOURNAL, TopicRole.REPARTITION, TopicRole.CONTAINERS, TopicRole.RULES), BOTH
        ),
        **dict.fromkeys(SIDE_ROLES, ONLY_LOOK),
        TopicRole.AUDIT: WRITE,
    },
    # It writes events that are posted, letters that are put back, changes of rules and lists, and what only it has.
    HTTP: {
        **dict.fromkeys(TopicRole, READ),
        **dict.fromkeys((TopicRole.INPUT, TopicRole.RULES, *SIDE_ROLES), BOTH),
        **dict.fromkeys((TopicRole.REPARTITION, TopicRole.EMITTED), ONLY_LOOK),
    },
    # The journal has as many partitions as the state: keys are placed among these.
    PRODUCERS: {TopicRole.INPUT: WRITE, TopicRole.JOURNAL: ONLY_LOOK},
    TRAFFIC: {TopicRole.INPUT: WRITE, TopicRole.JOURNAL: ONLY_LOOK},
    READERS: dict.fromkeys(_WRITTEN, READ),
    AUTHORS: {TopicRole.INPUT: ONLY_LOOK, TopicRole.JOURNAL: READ, TopicRole.RULES: BOTH, TopicRole.AUDIT: WRITE},
    ANALYSTS: dict.fromkeys(
        (*_WRITTEN[:3], TopicRole.INPUT, TopicRole.CHANGELOG, TopicRole.JOURNAL, TopicRole.RULES, TopicRole.LABELS),
        READ,
    ),
    OPERATORS: {
        **dict.fromkeys((TopicRole.ALERTS, TopicRole.DEAD_LETTERS, TopicRole.RULES, TopicRole.REPARTITION), READ),
        **dict.fromkeys(
            (TopicRole.INPUT, TopicRole.CHANGELOG, TopicRole.JOURNAL, TopicRole.ACCESS, TopicRole.REDRIVEN), BOTH
        ),
        TopicRole.AUDIT: WRITE,
    },
}
# Who looks at the journal only for the number of partitions needs nothing of the journals of stages and tasks.
_COUNTING: Mapping[str, tuple[str, ...]] = {PRODUCERS: (), TRAFFIC: ()}
# Who makes topics, where the service file says `topics: create`: those that he needs.
_MAKES: Mapping[str, Collection[TopicRole]] = {
    SERVICE: tuple(TopicRole),
    HTTP: tuple(TopicRole),
    PRODUCERS: (TopicRole.INPUT,),
    TRAFFIC: (TopicRole.INPUT,),
    AUTHORS: (TopicRole.RULES, TopicRole.AUDIT),
    OPERATORS: (TopicRole.ACCESS, TopicRole.AUDIT, TopicRole.REDRIVEN),
}


@dataclass(frozen=True)
class AclEntry:
    """What one principal may do with one resource."""

    who: str
    resource: str  # topic, group or transactional-id
    name: str
    operations: tuple[str, ...]
    pattern: str = "literal"


def rights(settings: ServiceFile, specs: Sequence[PlannedTopic]) -> list[AclEntry]:
    """The least that each role needs for its commands."""
    return [
        right for who in COMMANDS for right in (*_topic_rights(who, settings, specs), *_other_rights(who, settings))
    ]


def _topic_rights(who: str, settings: ServiceFile, specs: Sequence[PlannedTopic]) -> Iterator[AclEntry]:
    creates = settings.topics == "create"
    written = {
        settings.streams[to].topic for task in settings.tasks.values() for to in task.emits if to in settings.streams
    }
    of_tasks = {f"{settings.journal.topic}-{name}" for name in settings.tasks}  # no rule ever changed in these
    for spec in specs:
        wanted = _NEEDED[who].get(spec.role, ())
        if who in (AUTHORS, ANALYSTS, HTTP) and spec.name in of_tasks:
            wanted = ()
        if spec.role is TopicRole.JOURNAL and spec.name != settings.journal.topic and who in _COUNTING:
            wanted = _COUNTING[who]
        if who == SERVICE and spec.name in written:
            wanted = BOTH
        if who == SERVICE and spec.role is TopicRole.ACCESS and not is_loopback(metrics_host(settings)):
            wanted = READ  # metrics are served to who shows a token
        if creates and spec.role in _MAKES.get(who, ()):
            wanted = (*wanted, "CREATE")
        if wanted:
            yield AclEntry(who, "topic", spec.name, wanted)


def metrics_host(settings: ServiceFile) -> str:
    """The host at which containers serve metrics, as far as the settings say: this machine's own where they do not."""
    return (settings.run.metrics or "").rpartition(":")[0].strip("[]") or "127.0.0.1"


def _other_rights(who: str, settings: ServiceFile) -> Iterator[AclEntry]:
    """Groups and transactions; and the topics that only traffic has."""
    group, redrives, traffics = settings.service, redrive_group(settings.service), traffic_topic(settings.service)
    if who in (SERVICE, OPERATORS):
        yield AclEntry(who, "group", group, ("READ",))
        if settings.delivery is Delivery.EXACTLY_ONCE:
            # One id per container, named by the container's number.
            yield AclEntry(who, "transactional-id", f"{group}-", ("WRITE",), "prefixed")
    if who == HTTP:
        yield AclEntry(who, "group", group, ("DESCRIBE",))
        yield from (AclEntry(who, "group", sink_group(group, name), ("READ",)) for name in settings.sinks)
    if who in (HTTP, OPERATORS):
        yield AclEntry(who, "group", redrives, ("READ",))
    if who == HTTP or (who == OPERATORS and settings.delivery is not Delivery.EXACTLY_ONCE):
        yield AclEntry(who, "transactional-id", f"{redrives}-", ("WRITE",), "prefixed")
    if who == TRAFFIC:
        yield AclEntry(who, "topic", traffics, (*BOTH, "CREATE"))
        yield AclEntry(who, "topic", traffic_labels_topic(group), (*WRITE, "CREATE"))
        yield AclEntry(who, "group", traffics, ("READ",))
        yield AclEntry(who, "transactional-id", f"{traffics}-", ("WRITE",), "prefixed")


# ---------------------------------------------------------------- showing it


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
    """Topics with their settings, then rights."""
    width = max(len(spec.name) for spec in specs)
    given = any(stream.partitions for stream in settings.streams.values())
    lines = [f"Topics of {settings.service} (topics: {settings.topics})", ""]
    for spec in specs:
        replicas = f", {spec.replication} replicas" if spec.replication > 1 else ""
        lines.append(f"  {spec.name:<{width}}  {spec.role}, {spec.partitions} partitions{replicas}")
        lines.append(f"  {'':<{width}}  {', '.join(f'{name}={value}' for name, value in spec.settings.items())}")
    lines += [] if given else ["", "  Where inputs exist already, their partition count holds for all."]
    if settings.log.kafka is None:
        return "\n".join([*lines, "", "The embedded log has no access rights: who may write its folder may do all."])
    return "\n".join([*lines, "", "Least access rights", "", *_right_lines(rights(settings, specs))])


def as_commands(settings: ServiceFile, specs: Sequence[PlannedTopic]) -> str:
    """The commands of Kafka that make the topics and grant the rights."""
    bootstrap = bootstrap_of(settings)
    if bootstrap is None:
        raise Refused("no-kafka", "the embedded log needs no commands", "`samovar run` makes its topics")
    topics = [create_command(spec, bootstrap) for spec in specs]
    return "\n".join([*topics, *(acl_command(right, bootstrap) for right in rights(settings, specs))])


def _right_lines(given: Sequence[AclEntry]) -> Iterator[str]:
    """By role: what it is for, and then its rights."""
    for who, commands in COMMANDS.items():
        yield from textwrap.wrap(f"{who}: {', '.join(commands)}", 110, initial_indent="  ", subsequent_indent="    ")
        for right in given:
            star = "*" if right.pattern == "prefixed" else ""
            if right.who == who:
                yield f"    {', '.join(right.operations)} on {right.resource} {right.name}{star}"


def acl_command(right: AclEntry, bootstrap: str) -> str:
    """The command that grants a right; the principal is a name to fill in."""
    operations = " ".join(f"--operation {_camel(operation)}" for operation in right.operations)
    target = f"--{right.resource} {right.name}"
    pattern = " --resource-pattern-type prefixed" if right.pattern == "prefixed" else ""
    return (
        f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:{right.who.upper()} "
        f"{operations} {target}{pattern}"
    )


def _camel(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))


def check_text(specs: Sequence[PlannedTopic], found: Sequence[Mismatch]) -> str:
    if not found:
        return f"all {len(specs)} topics are as they should be"
    return "\n".join(f"{each.code}: {each.what}\n  {each.fix}" for each in found)


def check_json(specs: Sequence[PlannedTopic], found: Sequence[Mismatch]) -> str:
    document = {"ok": not found, "topics": len(specs), "mismatches": [asdict(each) for each in found]}
    return json.dumps(document, indent=2)

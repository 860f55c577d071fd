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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samovar.changelog.errors import Refused
from samovar.changelog.log import Delivery
from samovar.service.settings_models import ServiceFile
from samovar.service.side_topics import redrive_group, sink_group
from samovar.service.topics import SIDE_ROLES, Mismatch, Planned, Role, bootstrap_of, create_command

SERVICE, HTTP, PRODUCERS, READERS, AUTHORS = "service", "http", "producers", "readers", "authors"
LOOK = ("DESCRIBE", "DESCRIBE_CONFIGS")

_OF_THE_SERVICE = {
    Role.INPUT: ("READ", *LOOK),
    Role.ALERTS: ("WRITE", *LOOK),
    Role.LATE: ("WRITE", *LOOK),
    Role.DEAD_LETTERS: ("WRITE", *LOOK),
    Role.CHANGELOG: ("READ", "WRITE", *LOOK),
    Role.JOURNAL: ("READ", "WRITE", *LOOK),
    Role.REPARTITION: ("READ", "WRITE", *LOOK),
    Role.EMITTED: ("WRITE", *LOOK),
    Role.CONTAINERS: ("READ", "WRITE", *LOOK),
    Role.RULES: ("READ", *LOOK),
}
# `samovar serve` reads all topics of the plan, and writes these: events that are posted, letters that are put back,
# changes of rules and lists, and what only it has.
_HTTP_WRITES = (Role.INPUT, Role.RULES, *SIDE_ROLES)
# Whoever publishes from the command line leaves a trace, too.
_AUTHORS_WRITE = (Role.RULES, Role.AUDIT)


@dataclass(frozen=True)
class Right:
    """What one principal may do with one resource."""

    who: str
    resource: str  # topic, group, transactional-id or cluster
    name: str
    operations: tuple[str, ...]
    pattern: str = "literal"


def rights(settings: ServiceFile, specs: Sequence[Planned]) -> list[Right]:
    """For the service's containers, its HTTP API, and those who produce input, read output, or publish rules."""
    return [*_service_rights(settings, specs), *_http_rights(settings, specs), *_others_rights(specs)]


def _service_rights(settings: ServiceFile, specs: Sequence[Planned]) -> Iterator[Right]:
    creating = ("CREATE",) if settings.topics == "create" else ()
    written = {
        settings.streams[to].topic for task in settings.tasks.values() for to in task.emits if to in settings.streams
    }
    for spec in specs:
        writing = ("WRITE",) if spec.name in written else ()
        wanted = _OF_THE_SERVICE.get(spec.role, LOOK if creating else ()) + writing + creating
        if wanted:
            yield Right(SERVICE, "topic", spec.name, wanted)
    yield Right(SERVICE, "group", settings.service, ("READ", "DESCRIBE"))
    if settings.delivery is Delivery.EXACTLY_ONCE:
        # One id a container, named by the container's number.
        yield Right(SERVICE, "transactional-id", f"{settings.service}-", ("WRITE", "DESCRIBE"), "prefixed")
    else:
        # Brokers before 2.8 want it for an idempotent producer without transactions; later ones take WRITE on a topic.
        yield Right(SERVICE, "cluster", "kafka-cluster", ("IDEMPOTENT_WRITE",))


def _http_rights(settings: ServiceFile, specs: Sequence[Planned]) -> Iterator[Right]:
    """Of `samovar serve`. Where `run --http` starts it beside the containers, one user needs both."""
    creating = ("CREATE",) if settings.topics == "create" else ()
    for spec in specs:
        writing = ("WRITE",) if spec.role in _HTTP_WRITES else ()
        yield Right(HTTP, "topic", spec.name, ("READ", *writing, *LOOK, *creating))
    yield Right(HTTP, "group", settings.service, ("DESCRIBE",))
    yield Right(HTTP, "group", redrive_group(settings.service), ("READ", "DESCRIBE"))
    yield Right(HTTP, "transactional-id", f"{redrive_group(settings.service)}-", ("WRITE", "DESCRIBE"), "prefixed")
    for name in settings.sinks:
        yield Right(HTTP, "group", sink_group(settings.service, name), ("READ", "DESCRIBE"))


def _others_rights(specs: Sequence[Planned]) -> Iterator[Right]:
    for spec in specs:
        if spec.role is Role.INPUT:
            yield Right(PRODUCERS, "topic", spec.name, ("WRITE", "DESCRIBE"))
    for spec in specs:
        if spec.role in (Role.ALERTS, Role.LATE, Role.DEAD_LETTERS, Role.EMITTED):
            yield Right(READERS, "topic", spec.name, ("READ", "DESCRIBE"))
    for spec in specs:
        if spec.role in _AUTHORS_WRITE:
            yield Right(AUTHORS, "topic", spec.name, ("READ", "WRITE", *LOOK))


# ---------------------------------------------------------------- showing it


def as_json(settings: ServiceFile, specs: Sequence[Planned]) -> str:
    document: dict[str, Any] = {
        "service": settings.service,
        "log": "kafka" if settings.log.kafka else "embedded",
        "topics": settings.topics,
        "plan": [asdict(spec) for spec in specs],
        "rights": [asdict(right) for right in rights(settings, specs)] if settings.log.kafka else [],
    }
    return json.dumps(document, indent=2)


def as_text(settings: ServiceFile, specs: Sequence[Planned]) -> str:
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


def as_commands(settings: ServiceFile, specs: Sequence[Planned]) -> str:
    """The commands of Kafka that make the topics and grant the rights."""
    bootstrap = bootstrap_of(settings)
    if bootstrap is None:
        raise Refused("no-kafka", "the embedded log needs no commands", "`samovar run` makes its topics")
    topics = [create_command(spec, bootstrap) for spec in specs]
    return "\n".join([*topics, *(acl_command(right, bootstrap) for right in rights(settings, specs))])


def _right_lines(given: Sequence[Right]) -> Iterator[str]:
    width = max(len(right.who) for right in given)
    for right in given:
        star = "*" if right.pattern == "prefixed" else ""
        yield f"  {right.who:<{width}}  {', '.join(right.operations)} on {right.resource} {right.name}{star}"


def acl_command(right: Right, bootstrap: str) -> str:
    """The command that grants a right; the principal is a name to fill in."""
    operations = " ".join(f"--operation {_camel(operation)}" for operation in right.operations)
    target = "--cluster" if right.resource == "cluster" else f"--{right.resource} {right.name}"
    pattern = " --resource-pattern-type prefixed" if right.pattern == "prefixed" else ""
    return (
        f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:{right.who.upper()} "
        f"{operations} {target}{pattern}"
    )


def _camel(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))


def check_text(specs: Sequence[Planned], found: Sequence[Mismatch]) -> str:
    if not found:
        return f"all {len(specs)} topics are as they should be"
    return "\n".join(f"{each.code}: {each.what}\n  {each.fix}" for each in found)


def check_json(specs: Sequence[Planned], found: Sequence[Mismatch]) -> str:
    document = {"ok": not found, "topics": len(specs), "mismatches": [asdict(each) for each in found]}
    return json.dumps(document, indent=2)

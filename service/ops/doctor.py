"""`samovar doctor CONFIG`: what a service stands on, looked at one by one. It changes nothing.

Each finding is `ok`, `warn` (works now, may not tomorrow) or `fail` (will not work, or not rightly), and says what to
do. The document of `--json`:

    {"ok": bool, "findings": [{"about", "state": "ok" | "warn" | "fail", "what", "fix"}],
     "counts": {"ok", "warn", "fail"}}
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samovar.changelog.formats.heartbeat import HeartbeatRecord, all_seen
from samovar.changelog.log import Log
from samovar.changelog.schema_registry import Registry, RegistryUnavailable
from samovar.common.errors import LogUnavailable, Refused
from samovar.common.texts import counted
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.ops import machine
from samovar.service.ops.findings import FAIL, OK, WARN, Diagnosis, fine, refused
from samovar.service.topology.acls import HTTP, SERVICE, AclEntry, rights
from samovar.service.topology.logs import opened
from samovar.service.topology.rule_registry import with_rulebook
from samovar.service.topology.ruleset import rules_of
from samovar.service.topology.topics import (
    GROWN_FIX,
    PlannedTopic,
    bootstrap_of,
    check,
    counted_topics,
    grown_inputs,
    partitions_of,
    plan,
)

SKEW_MS = 2_000  # between two clocks, from which on it is worth a word
SKEW_FAIL_MS = 60_000

_Granted = Mapping[str, frozenset[str] | None]  # what this user may do with each; None where nobody could say


# ---------------------------------------------------------------- all of it


def examine(config: Path) -> Iterator[Diagnosis]:
    """Findings as they come; what cannot be looked at because of an earlier one is left out."""
    yield from machine.versions()
    yield machine.java()
    try:
        settings = load_service(config)
    except Refused as error:
        yield Diagnosis("service file", FAIL, str(error), "fix the file; nothing else can be looked at before")
        return
    yield fine("service file", f"{settings.service}, {counted(len(settings.streams), 'stream')}, {config}")
    yield from machine.state(settings)
    yield from registries(settings)
    yield from _with_log(settings)


def _with_log(settings: ServiceFile) -> Iterator[Diagnosis]:
    missing = machine.embedded(settings)
    yield from missing
    if any(each.state == FAIL for each in missing) or not machine.has_log(settings):
        yield rules(settings, None)
        return
    with ExitStack() as stack:
        try:
            log = stack.enter_context(opened(settings))
            found = _asked(settings, log)
        except LogUnavailable as error:
            yield Diagnosis("log", FAIL, str(error), _reach(settings))
            found = [rules(settings, None)]
        except Refused as error:
            found = [refused("log", error), rules(settings, None)]
        yield from found


def _reach(settings: ServiceFile) -> str:
    return f"see that a broker runs at {bootstrap_of(settings)} and can be reached from here"


def _asked(settings: ServiceFile, log: Log) -> list[Diagnosis]:
    """All that only the log can answer."""
    settings = with_rulebook(settings, log)
    are_fine = rules(settings, None).state == OK  # without rules nobody knows which further stages there are
    found = [*cluster(settings, plan(settings, stages=are_fine))]
    if any(each.state == FAIL for each in found):
        return [*found, rules(settings, None)]
    existing = log.topics(counted_topics(settings))
    specs = plan(settings, existing, stages=are_fine)
    found += topics(settings, log, specs)
    partitions = partitions_of(settings, existing)
    found.append(rules(settings, partitions))
    members = log.members(settings.service)
    seen = all_seen(log, settings.service)
    found.append(fine("containers", f"{counted(len(members), 'container')} in the group"))
    found += clocks(settings, seen, int(time.time() * 1000))
    found += machine.limits(settings, partitions)
    found += machine.stores(settings)
    found += machine.locks(settings, bool(members))
    return found


# ---------------------------------------------------------------- the log


def cluster(settings: ServiceFile, specs: Sequence[PlannedTopic]) -> Iterator[Diagnosis]:
    """Brokers, their version, and what this user may do there."""
    if settings.log.kafka is None:
        yield fine("log", f"embedded, {settings.log.embedded}")
        yield fine("rights", "the embedded log has none: who may write its folder may do all")
        return
    from samovar.changelog.kafka.facts import client_version, facts_of  # noqa: PLC0415 - its client takes long to load

    try:
        facts = facts_of(settings.log.kafka.librdkafka(), [spec.name for spec in specs], settings.service)
    except LogUnavailable as error:
        yield Diagnosis("log", FAIL, str(error), _reach(settings))
        return
    version = f"Kafka {facts.version}" if facts.version else "Kafka, which does not say its version over this protocol"
    yield fine("log", f"{version}, {counted(len(facts.brokers), 'broker')} ({', '.join(facts.brokers)})")
    yield fine("client", f"librdkafka {client_version()}")
    yield from _replicas(settings, len(facts.brokers))
    if facts.authorizer == "":
        yield fine("rights", "the cluster has no authorizer: everybody may do all")
        return
    wanted = rights(settings, specs)
    yield from _missing_rights(wanted, facts.topics, {settings.service: facts.group}, facts.on_cluster)


def _replicas(settings: ServiceFile, brokers: int) -> Iterator[Diagnosis]:
    if settings.replication > brokers:
        what = f"`replication: {settings.replication}` with {counted(brokers, 'broker')}: topics cannot be made"
        yield Diagnosis("replication", FAIL, what, f"write `replication: {brokers}`, or add brokers")
    elif settings.replication == 1:
        what = "one copy of everything: a broker's disk that is lost loses the service's state and alerts"
        yield Diagnosis("replication", WARN, what, "write `replication: 3` where there are three brokers")


def _missing_rights(
    wanted: Sequence[AclEntry], topics: _Granted, groups: _Granted, on_cluster: frozenset[str]
) -> Iterator[Diagnosis]:
    """Containers do not run without theirs; the HTTP API may be another user's."""
    granted = {"topic": topics, "group": groups, "cluster": {"kafka-cluster": on_cluster}}
    fix = "grant them: `samovar topics plan --commands` prints how"
    if lacking := _lacking(SERVICE, wanted, granted):
        yield Diagnosis("rights", FAIL, f"this user lacks {'; '.join(lacking)}", fix)
    else:
        yield fine("rights", "this user may do all that the service needs; of transactional ids nobody can be asked")
    if lacking := _lacking(HTTP, wanted, granted):
        fix = f"nothing, where `samovar serve` runs as another user; else {fix}"
        yield Diagnosis("rights", WARN, f"for `samovar serve` this user lacks {'; '.join(lacking)}", fix)


def _lacking(who: str, wanted: Sequence[AclEntry], granted: Mapping[str, _Granted]) -> list[str]:
    """What somebody needs and this user has not, where the cluster could be asked."""
    found = []
    for right in wanted:
        has = granted.get(right.resource, {}).get(right.name)
        if right.who == who and has is not None:
            missing = [each for each in right.operations if each not in has and each != "CREATE"]
            found += [f"{', '.join(missing)} on {right.resource} {right.name}"] if missing else []
    return found


def topics(settings: ServiceFile, log: Log, specs: Sequence[PlannedTopic]) -> Iterator[Diagnosis]:
    found = check(log, specs, bootstrap_of(settings))
    made = [each for each in found if each.code == "topic-missing" and settings.topics == "create"]
    for each in found:
        if each not in made:
            yield Diagnosis("topics", FAIL, f"{each.code}: {each.what}", each.fix)
    if made:
        names = ", ".join(each.topic for each in made)
        yield fine("topics", f"{counted(len(made), 'topic')} not there yet, which `samovar run` makes: {names}")
    grown = grown_inputs(settings, log)
    for each_grown in grown:
        yield Diagnosis("topics", WARN, each_grown.text, GROWN_FIX)
    if not found and not grown:
        parts = counted(specs[0].partitions, "partition")
        yield fine("topics", f"all {len(specs)} are as they should be, {parts} each input")


def registries(settings: ServiceFile) -> Iterator[Diagnosis]:
    """The schema registry of each stream that has one: whether it answers, and knows the stream's schema."""
    for name, stream in settings.streams.items():
        if stream.registry is not None:
            yield registry(name, f"{stream.topic}-value", Registry(stream.registry.settings()))


def registry(stream: str, subject: str, asked: Registry) -> Diagnosis:
    try:
        number = asked.latest_number(subject)
        usable = number is None or asked.find(number) is not None
    except RegistryUnavailable as error:
        fix = "see that it runs and can be reached from here: containers wait for it, and end when it stays away"
        return Diagnosis("registry", FAIL, str(error), fix)
    except Refused as error:
        return refused("registry", error)
    if number is None:
        what = f"{asked.place} answers, and has nothing under {subject}"
        return Diagnosis(
            "registry", WARN, what, f"register the schema of {stream} there, unless writers name it otherwise"
        )
    if not usable:
        fix = "messages of it would be dead letters: register a schema that can be read"
        return Diagnosis("registry", FAIL, asked.missing(number), fix)
    return fine("registry", f"{asked.place} answers; {subject} is schema {number}")


def rules(settings: ServiceFile, partitions: int | None) -> Diagnosis:
    try:
        found = rules_of(settings, partitions)
    except Refused as error:
        return refused("rules", error)
    return fine("rules", f"{counted(len(found.rules), 'rule')} without errors")


# ---------------------------------------------------------------- clocks


def clocks(settings: ServiceFile, seen: dict[int, HeartbeatRecord], now_ms: int) -> Iterator[Diagnosis]:
    """Each container's clock against the broker's, by what it told last; this machine's by what the log has already."""
    if settings.log.embedded is not None:
        yield fine("clock", "the embedded log goes by this machine's own")
        return
    wrong = [
        (slot, each.log_ms - each.presence.time_ms)
        for slot, each in seen.items()
        if abs(each.log_ms - each.presence.time_ms) > SKEW_MS
    ]
    for slot, skew_ms in wrong:
        host = seen[slot].presence.host
        what = f"the clock of container {slot} on {host} is {abs(skew_ms) / 1000:,.1f} s {_side(skew_ms)} the broker's"
        yield Diagnosis("clock", FAIL if abs(skew_ms) > SKEW_FAIL_MS else WARN, what, f"set the clock of {host} by NTP")
    newest = max((each.log_ms for each in seen.values()), default=None)
    if newest is not None and newest - now_ms > SKEW_MS:
        what = f"this machine's clock is at least {(newest - now_ms) / 1000:,.1f} s behind the broker's"
        yield Diagnosis("clock", WARN, what, "set it by NTP")
    elif not wrong:
        told = (
            f"within {SKEW_MS / 1000:g} s of the broker's" if seen else "no container told a time yet to compare with"
        )
        yield fine("clock", told)


def _side(skew_ms: int) -> str:
    return "behind" if skew_ms > 0 else "ahead of"


# ---------------------------------------------------------------- showing it


def document(findings: Sequence[Diagnosis]) -> dict[str, Any]:
    counts = Counter(each.state for each in findings)
    return {
        "ok": not counts[FAIL],
        "findings": [asdict(each) for each in findings],
        "counts": {state: counts[state] for state in (OK, WARN, FAIL)},
    }


def worst(findings: Sequence[Diagnosis], *, strict: bool) -> bool:
    """Whether something is wrong; a warning counts if `strict`."""
    bad = (FAIL, WARN) if strict else (FAIL,)
    return any(each.state in bad for each in findings)

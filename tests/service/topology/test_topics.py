"""The topics of a service: planned, compared with what is there, and made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Topic, TopicSpec
from samovar.common.errors import Refused
from samovar.service.auth.tokens import ensure_access
from samovar.service.config.loading import ServiceFile, load_service
from samovar.service.topology import acls
from samovar.service.topology.acls import rights
from samovar.service.topology.logs import opened
from samovar.service.topology.topics import (
    SIDE_ROLES,
    Mismatch,
    PlannedTopic,
    TopicRole,
    check,
    create_command,
    ensure,
    mismatches,
    plan,
)

OWN = ["f-alerts", "f-late", "f-dead-letters", "f-changelog", "f-journal"]
LOOK = "DESCRIBE_CONFIGS"
OF_STAGES = (
    TopicRole.REPARTITION,
    TopicRole.EMITTED,
)  # tests/service/topology/test_stages.py and tests/tasks/user/test_user_service.py
CONTAINERS, RULES = "f-containers", "f-rules"  # one partition, however many the inputs have
SIDE = ["f-labels", "f-access", "f-audit", "f-redriven"]
SINGLE = (TopicRole.CONTAINERS, TopicRole.RULES, *SIDE_ROLES)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], ServiceFile]:
    (tmp_path / "rules").mkdir()

    def loaded(text: str) -> ServiceFile:
        path = tmp_path / "service.yml"
        path.write_text("service: f\n" + text)
        return load_service(path)

    return loaded


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path / "log")
    yield log
    log.close()


def by_role(specs: list[PlannedTopic], role: TopicRole) -> PlannedTopic:
    (found,) = (spec for spec in specs if spec.role is role)
    return found


def as_planned(spec: PlannedTopic, **other: Any) -> Topic:
    """A topic that is just as it should be, but for what is given."""
    changed: Mapping[str, str] = other.pop("settings", {})
    topic = Topic(
        name=spec.name,
        partitions=spec.partitions,
        settings={**spec.settings, **changed},
        id="id",
        replication=spec.replication,
    )
    return replace(topic, **other)


# ---------------------------------------------------------------- the plan


def test_the_plan_has_inputs_and_the_services_own(load: Callable[[str], ServiceFile]) -> None:
    specs = plan(load("streams: {a: {key: k, topic: tx}, b: {key: k}}"))
    assert [spec.name for spec in specs] == ["tx", "b", *OWN, CONTAINERS, RULES, *SIDE]
    assert {spec.partitions for spec in specs if spec.role not in SINGLE} == {4}
    for role in SINGLE:
        assert by_role(specs, role).partitions == 1
        assert by_role(specs, role).settings["cleanup.policy"] == ("delete" if role is TopicRole.AUDIT else "compact")
    assert by_role(specs, TopicRole.CHANGELOG).settings == {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": "86400000",
        "delete.retention.ms": "86400000",
        "max.message.bytes": "1048588",
    }
    journal = by_role(specs, TopicRole.JOURNAL).settings
    assert journal == {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    kept = [spec for spec in specs if spec.role not in (TopicRole.CHANGELOG, *SINGLE)]
    assert all("compact" not in spec.settings["cleanup.policy"] for spec in kept)


def test_one_partition_count_holds_for_all(load: Callable[[str], ServiceFile]) -> None:
    specs = plan(load("streams: {a: {key: k}, b: {key: k, partitions: 6}}"))
    assert {spec.partitions for spec in specs if spec.role not in SINGLE} == {6}


def test_replicas_and_retentions(load: Callable[[str], ServiceFile]) -> None:
    text = (
        "streams: {a: {key: k, retention: 2d}}\nlog: {kafka: {bootstrap: h}}\nreplication: 3\nalerts: {retention: 1h}"
    )
    specs = plan(load(text))
    assert {(spec.replication, spec.settings["min.insync.replicas"]) for spec in specs} == {(3, "2")}
    assert by_role(specs, TopicRole.INPUT).settings["retention.ms"] == "172800000"
    assert by_role(specs, TopicRole.ALERTS).settings["retention.ms"] == "3600000"


# ---------------------------------------------------------------- what is otherwise

WRONG: list[tuple[TopicRole, dict[str, Any], str, str]] = [
    (TopicRole.INPUT, {"partitions": 3}, "topic-partitions", "write `partitions: 3`"),
    (TopicRole.CHANGELOG, {"partitions": 8}, "topic-partitions", "changed under keyed state"),
    (TopicRole.JOURNAL, {"partitions": 1}, "topic-partitions", "changed under keyed state"),
    (
        TopicRole.INPUT,
        {"settings": {"cleanup.policy": "compact"}},
        "topic-settings",
        "--add-config cleanup.policy=delete",
    ),
    (TopicRole.ALERTS, {"settings": {"cleanup.policy": "compact,delete"}}, "topic-settings", "cleanup.policy=delete"),
    (TopicRole.CHANGELOG, {"settings": {"cleanup.policy": "delete"}}, "topic-settings", "cleanup.policy=compact"),
    (
        TopicRole.CHANGELOG,
        {"settings": {"cleanup.policy": "compact, delete"}},
        "topic-settings",
        "cleanup.policy=compact",
    ),
    (
        TopicRole.CHANGELOG,
        {"settings": {"min.compaction.lag.ms": "0"}},
        "topic-settings",
        "min.compaction.lag.ms=86400000",
    ),
    (
        TopicRole.CHANGELOG,
        {"settings": {"delete.retention.ms": "60000"}},
        "topic-settings",
        "delete.retention.ms=86400000",
    ),
    (TopicRole.CHANGELOG, {"settings": {"max.message.bytes": "1000"}}, "topic-settings", "max.message.bytes=1048588"),
    (TopicRole.JOURNAL, {"settings": {"retention.ms": "604800000"}}, "topic-settings", "retention.ms=-1"),
    (TopicRole.JOURNAL, {"settings": {"retention.bytes": "1000"}}, "topic-settings", "retention.bytes=-1"),
    (TopicRole.CHANGELOG, {"replication": 1}, "topic-replication", "write `replication: 1`"),
    (TopicRole.LABELS, {"settings": {"cleanup.policy": "delete"}}, "topic-settings", "cleanup.policy=compact"),
    (TopicRole.ACCESS, {"settings": {"cleanup.policy": "compact,delete"}}, "topic-settings", "cleanup.policy=compact"),
    (TopicRole.AUDIT, {"settings": {"cleanup.policy": "compact"}}, "topic-settings", "cleanup.policy=delete"),
    (TopicRole.REDRIVEN, {"replication": 1}, "topic-replication", "write `replication: 1`"),
    (TopicRole.ALERTS, {"replication": 2}, "topic-replication", "kafka-reassign-partitions.sh"),
]

FINE: list[tuple[TopicRole, dict[str, Any]]] = [
    *((role, {}) for role in TopicRole if role not in OF_STAGES),
    (TopicRole.INPUT, {"replication": 1}),
    (TopicRole.INPUT, {"settings": {"retention.ms": "1000"}}),
    (TopicRole.ALERTS, {"partitions": 1, "settings": {"retention.ms": "1000"}}),
    (TopicRole.CHANGELOG, {"replication": 5, "settings": {"min.compaction.lag.ms": "90000000"}}),
    (TopicRole.CHANGELOG, {"settings": {"delete.retention.ms": "90000000", "max.message.bytes": "2000000"}}),
]

ON_KAFKA = 'streams: {a: {key: k}}\nlog: {kafka: {bootstrap: "h:9092"}}\nreplication: 3'


@pytest.mark.parametrize(("role", "change", "code", "fix"), WRONG)
def test_a_mismatch_has_a_code_and_says_the_fix(
    role: TopicRole, change: dict[str, Any], code: str, fix: str, load: Callable[[str], ServiceFile]
) -> None:
    spec = by_role(plan(load(ON_KAFKA)), role)
    (found,) = mismatches(spec, as_planned(spec, **change), "h:9092")
    assert (found.code, found.topic) == (code, spec.name)
    assert fix in found.fix
    assert spec.name in found.what


@pytest.mark.parametrize(("role", "change"), FINE)
def test_what_does_no_harm_is_no_mismatch(
    role: TopicRole, change: dict[str, Any], load: Callable[[str], ServiceFile]
) -> None:
    spec = by_role(plan(load(ON_KAFKA)), role)
    assert list(mismatches(spec, as_planned(spec, **change), "h:9092")) == []


def test_a_setting_that_a_topic_does_not_have_is_kafkas_default(load: Callable[[str], ServiceFile]) -> None:
    spec = by_role(plan(load(ON_KAFKA)), TopicRole.CHANGELOG)
    (found,) = mismatches(
        spec,
        Topic(name=spec.name, partitions=4, settings={"cleanup.policy": "compact"}, id="id", replication=3),
        "h:9092",
    )
    assert found.what == "the topic f-changelog (changelog) has min.compaction.lag.ms=0 instead of 86400000"
    assert found.fix == (
        "kafka-configs.sh --bootstrap-server h:9092 --alter --entity-type topics --entity-name f-changelog "
        "--add-config min.compaction.lag.ms=86400000"
    )


# ---------------------------------------------------------------- on a log


def test_ensure_makes_what_is_missing(load: Callable[[str], ServiceFile], log: EmbeddedLog) -> None:
    settings = load("streams: {a: {key: k}}")
    specs = ensure(log, settings)
    assert set(log.topics([spec.name for spec in specs])) == {"a", *OWN, CONTAINERS, RULES, *SIDE}
    assert check(log, specs) == []
    assert ensure(log, settings) == specs


def test_an_existing_inputs_partition_count_wins_over_the_default(
    load: Callable[[str], ServiceFile], log: EmbeddedLog
) -> None:
    log.create([TopicSpec("a", 7)])
    ensure(log, load("streams: {a: {key: k}, b: {key: k}}"))
    assert {topic.partitions for topic in log.topics(["a", "b", *OWN]).values()} == {7}


def test_a_given_partition_count_does_not_bend(load: Callable[[str], ServiceFile], log: EmbeddedLog) -> None:
    log.create([TopicSpec("a", 7)])
    with pytest.raises(Refused) as caught:
        ensure(log, load("streams: {a: {key: k, partitions: 2}}"))
    assert caught.value.code == "topic-partitions"
    assert set(log.topics(OWN)) == set()  # refused before anything was made


def test_inputs_must_have_equally_many_partitions(load: Callable[[str], ServiceFile], log: EmbeddedLog) -> None:
    log.create([TopicSpec("a", 2), TopicSpec("b", 3)])
    with pytest.raises(Refused) as caught:
        ensure(log, load("streams: {a: {key: k}, b: {key: k}}"))
    assert (caught.value.code, caught.value.what) == ("topic-partitions", "the topic b (input) has 3 partitions, not 2")


def test_a_changelog_of_another_count_is_refused(load: Callable[[str], ServiceFile], log: EmbeddedLog) -> None:
    ensure(log, load("streams: {a: {key: k, partitions: 2}}"))
    log.delete(["a"])
    with pytest.raises(Refused) as caught:
        ensure(log, load("streams: {a: {key: k, partitions: 3}}"))
    assert caught.value.code == "topic-partitions"
    assert "f-journal" in caught.value.detail  # all of it is told, not the first alone


def test_settings_of_an_older_service_file_are_refused(load: Callable[[str], ServiceFile], log: EmbeddedLog) -> None:
    ensure(log, load("streams: {a: {key: k}}\nchangelog: {min_compaction_lag: 1h}"))
    with pytest.raises(Refused) as caught:
        ensure(log, load("streams: {a: {key: k}}"))
    assert caught.value.code == "topic-settings"
    assert "min.compaction.lag.ms=3600000 instead of 86400000" in caught.value.what


def test_topics_check_never_makes_one(load: Callable[[str], ServiceFile], log: EmbeddedLog) -> None:
    settings = load("streams: {a: {key: k}}\ntopics: check")
    with pytest.raises(Refused) as caught:
        ensure(log, settings)
    assert caught.value.code == "topic-missing"
    assert all(name in str(caught.value) for name in ["a", *OWN])
    assert log.topics(["a", *OWN]) == {}


def test_a_service_without_a_rules_topic_runs_the_rules_of_its_folder(
    load: Callable[[str], ServiceFile], log: EmbeddedLog
) -> None:
    """As one did before there was such a topic; anyone who publishes must have it made."""
    ensure(log, load("streams: {a: {key: k}}"))
    log.delete([RULES, *SIDE])
    settings = load("streams: {a: {key: k}}\ntopics: check")
    assert [each.topic for each in check(log, ensure(log, settings))] == [RULES, *SIDE]
    assert log.topics([RULES, *SIDE]) == {}


def test_tokens_are_not_put_where_they_would_vanish(load: Callable[[str], ServiceFile], log: EmbeddedLog) -> None:
    """A container runs next to a wrong topic that it has no use for; anyone who needs it refuses."""
    settings = load("streams: {a: {key: k}}")
    log.create([TopicSpec("f-access", 1, {"cleanup.policy": "delete"})])
    ensure(log, settings)
    with pytest.raises(Refused) as caught:
        ensure_access(settings, log)
    assert (caught.value.code, "f-access (access) has cleanup.policy=delete" in caught.value.what) == (
        "topic-settings",
        True,
    )


def test_check_changes_nothing(load: Callable[[str], ServiceFile], log: EmbeddedLog) -> None:
    specs = plan(load("streams: {a: {key: k}}"))
    assert {found.code for found in check(log, specs)} == {"topic-missing"}
    assert log.topics([spec.name for spec in specs]) == {}


# ---------------------------------------------------------------- rights


def test_containers_read_tokens_only_where_others_reach_their_metrics(load: Callable[[str], ServiceFile]) -> None:
    text = 'log: {kafka: {bootstrap: "b:1"}}\nstreams:\n  p: {key: card}\n'
    for metrics, reads in (("9400", False), ("127.0.0.1:9400", False), ('"[::1]:9400"', False), ("0.0.0.0:9400", True)):
        settings = load(f"{text}run: {{metrics: {metrics}}}\n")
        given = rights(settings, plan(settings, stages=False))
        (found,) = (each for each in given if (each.who, each.name) == ("service", "f-access"))
        assert ("READ" in found.operations) is reads, metrics


def test_rights_are_the_least_that_do(load: Callable[[str], ServiceFile]) -> None:
    settings = load(ON_KAFKA + "\ntopics: check\nsinks: {desk: {file: alerts.jsonl}}")
    found = {(right.who, right.resource, right.name): right for right in rights(settings, plan(settings))}
    read, write, both = (("READ", LOOK), ("WRITE", LOOK), ("READ", "WRITE", LOOK))
    assert {place: right.operations for place, right in found.items()} == {
        ("service", "topic", "a"): read,
        **{("service", "topic", f"f-{name}"): write for name in ("alerts", "late", "dead-letters")},
        **{("service", "topic", name): both for name in ("f-changelog", "f-journal", CONTAINERS, RULES)},
        **{("service", "topic", name): ("DESCRIBE", LOOK) for name in SIDE},
        ("service", "topic", "f-audit"): write,
        ("service", "group", "f"): ("READ",),
        ("service", "transactional-id", "f-"): ("WRITE",),
        **{("http", "topic", name): read for name in (*OWN, CONTAINERS)},
        **{("http", "topic", name): both for name in ("a", RULES, *SIDE)},
        ("http", "group", "f"): ("DESCRIBE",),
        ("http", "group", "f-redrive"): ("READ",),
        ("http", "group", "f-sink-desk"): ("READ",),
        ("http", "transactional-id", "f-redrive-"): ("WRITE",),
        **{(who, "topic", "a"): write for who in ("producers", "traffic", "spark")},
        **{(who, "topic", "f-journal"): ("DESCRIBE", LOOK) for who in ("producers", "traffic", "spark")},
        ("traffic", "topic", "f-traffic"): (*both, "CREATE"),
        ("traffic", "topic", "f-traffic-labels"): (*write, "CREATE"),
        ("traffic", "group", "f-traffic"): ("READ",),
        ("traffic", "transactional-id", "f-traffic-"): ("WRITE",),
        ("spark", "topic", "f-spark"): (*both, "CREATE"),
        ("spark", "group", "f-spark-"): ("READ",),
        ("spark", "transactional-id", "f-spark-"): ("WRITE",),
        **{("readers", "topic", f"f-{name}"): read for name in ("alerts", "late", "dead-letters")},
        ("authors", "topic", "a"): ("DESCRIBE", LOOK),
        ("authors", "topic", "f-journal"): read,
        ("authors", "topic", RULES): both,
        ("authors", "topic", "f-audit"): write,
        **{("analysts", "topic", name): read for name in ("a", *OWN, RULES, "f-labels")},
        **{("operators", "topic", name): both for name in ("a", "f-changelog", "f-journal", "f-access", "f-redriven")},
        **{("operators", "topic", name): read for name in ("f-alerts", "f-dead-letters", RULES)},
        ("operators", "topic", "f-audit"): write,
        **{(who, "topic", "f.repartition.switch"): ("DESCRIBE",) for who in ("service", "http", "operators")},
        ("operators", "group", "f"): ("READ",),
        ("operators", "group", "f-redrive"): ("READ",),
        ("operators", "transactional-id", "f-"): ("WRITE",),
    }
    assert found["service", "transactional-id", "f-"].pattern == "prefixed"


def test_create_is_a_right_only_where_topics_are_made(load: Callable[[str], ServiceFile]) -> None:
    for mode, wanted in (("create", 12), ("check", 0)):
        settings = load(ON_KAFKA + f"\ntopics: {mode}")
        found = [right for right in rights(settings, plan(settings)) if right.name != "f-traffic"]
        assert sum(right.who == "service" and "CREATE" in right.operations for right in found) == wanted
        assert any("CREATE" in right.operations for right in found if right.who == "producers") == bool(wanted)


def test_at_least_once_needs_no_transactions(load: Callable[[str], ServiceFile]) -> None:
    settings = load(ON_KAFKA + "\ndelivery: at_least_once")
    found = rights(settings, plan(settings))
    assert not any(right.who == "service" and right.resource == "transactional-id" for right in found)


def test_commands_of_kafka(load: Callable[[str], ServiceFile]) -> None:
    settings = load(ON_KAFKA)
    specs = plan(settings)
    text = acls.as_commands(settings, specs)
    assert create_command(specs[0], "h:9092") == (
        "kafka-topics.sh --bootstrap-server h:9092 --create --topic a --partitions 4 --replication-factor 3 "
        "--config cleanup.policy=delete --config retention.ms=604800000 --config min.insync.replicas=2"
    )
    assert text.splitlines()[0] == create_command(specs[0], "h:9092")
    assert "--operation DescribeConfigs" in text
    assert "--transactional-id f- --resource-pattern-type prefixed" in text


def test_the_plan_as_json(load: Callable[[str], ServiceFile]) -> None:
    settings = load(ON_KAFKA)
    document = json.loads(acls.as_json(settings, plan(settings)))
    assert (document["service"], document["log"], document["topics"]) == ("f", "kafka", "create")
    assert [topic["role"] for topic in document["plan"]] == [role.value for role in TopicRole if role not in OF_STAGES]
    assert document["rights"][0]["operations"] == ["READ", "DESCRIBE_CONFIGS", "CREATE"]


def test_mismatches_as_text_and_json(load: Callable[[str], ServiceFile]) -> None:
    specs = plan(load(ON_KAFKA))
    found = [Mismatch("topic-missing", "a", "the topic a does not exist", "make it")]
    assert acls.check_text(specs, found) == "topic-missing: the topic a does not exist\n  make it"
    assert json.loads(acls.check_json(specs, found))["mismatches"][0]["fix"] == "make it"
    assert json.loads(acls.check_json(specs, []))["ok"] is True


# ---------------------------------------------------------------- on Kafka


def test_kafka_keeps_what_was_planned(kafka: str, tmp_path: Path) -> None:
    """A real broker gives back every setting that was asked for, and a changed one is found."""
    (tmp_path / "rules").mkdir()
    name = f"plan-{uuid4().hex[:12]}"
    path = tmp_path / "service.yml"
    streams = f"streams: {{{name}: {{key: k, partitions: 2}}}}"
    path.write_text(f'service: {name}\n{streams}\nlog: {{kafka: {{bootstrap: "{kafka}"}}}}\n')
    settings = load_service(path)
    with opened(settings) as log:
        specs = ensure(log, settings)
        try:
            assert check(log, specs, kafka) == []
            assert ensure(log, settings) == specs
            path.write_text(path.read_text() + "changelog: {min_compaction_lag: 48h}\n")
            with pytest.raises(Refused) as caught:
                ensure(log, load_service(path))
            assert caught.value.code == "topic-settings"
            assert "min.compaction.lag.ms=86400000 instead of 172800000" in caught.value.what
            assert f"kafka-configs.sh --bootstrap-server {kafka} --alter" in caught.value.hint
        finally:
            log.delete([spec.name for spec in specs])

"""Which rules get a stage of their own, what topics that makes, and the commands that know stages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from samovar.changelog.log import Append
from samovar.changelog.partitioner import partition_of
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.service.cli.main import app
from samovar.service.config.loading import ServiceFile, load_service
from samovar.service.topology.acls import rights
from samovar.service.topology.copartitioning import misplaced
from samovar.service.topology.logs import opened
from samovar.service.topology.plans import plans_of, rule_plans
from samovar.service.topology.topics import TopicRole, check, ensure, plan

RULE = "rule: {id}\nmatch: |\n  {match}\n"
T0 = 1_700_000_000_000


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., ServiceFile]:
    def written(streams: str, *matches: str, more: str = "") -> ServiceFile:
        (tmp_path / "rules").mkdir(exist_ok=True)
        for number, match in enumerate(matches):
            (tmp_path / "rules" / f"r{number}.yml").write_text(RULE.format(id=f"r{number}", match=match))
        path = tmp_path / "service.yml"
        path.write_text(f"service: s\nstreams: {streams}\n{more}")
        return load_service(path)

    return written


ONE = "{a: {key: card, partitions: 3}}"
TWO = "{a: {key: x, partitions: 3}, b: {key: y}}"
STAGES: list[tuple[str, str, str, dict[str, str | None]]] = [
    (ONE, "sequence by card with maxspan=1m [a where true] [a where true]", "", {}),
    (ONE, "sequence by card, shop with maxspan=1m [a where true] [a where true]", "", {}),
    (ONE, "sequence by shop with maxspan=1m [a where true] [a where true]", "by-shop", {"a": "shop"}),
    (ONE, "sequence by shop.id with maxspan=1m [a where true] [a where true]", "by-shop_id", {"a": "shop.id"}),
    (ONE, "window every 1m [a where true]", "by-one-key", {"a": None}),
    (TWO, "sequence with maxspan=1m [a where true] by x [b where true] by y", "", {}),
    (TWO, "sequence by x with maxspan=1m [a where true] [b where true]", "by-x", {"a": "x", "b": "x"}),
    (TWO, "sequence with maxspan=1m [a where true] by u [b where true] by v", "by-u.v", {"a": "u", "b": "v"}),
    (TWO, "session by x with gap=1m [a where true]", "", {}),
    (TWO, "session by x with gap=1m [any where true]", "by-x", {"a": "x", "b": "x"}),
    # The second has every event of the key between its steps, of whatever stream.
    (TWO, "sequence by x with maxspan=1m [a where true] next [a where true]", "by-x", {"a": "x", "b": "x"}),
    ("{a: {key: x, partitions: 1}}", "window every 1m [a where true]", "", {}),
    ("{a: {key: x, partitions: 3, repartition: true}}", "session by x with gap=1m [a where true]", "by-x", {"a": "x"}),
]


@pytest.mark.parametrize(("streams", "match", "stage", "fields"), STAGES)
def test_a_rule_gets_the_stage_that_its_key_needs(
    streams: str, match: str, stage: str, fields: dict[str, str | None], write: Callable[..., ServiceFile]
) -> None:
    settings = write(streams, match)
    partitions = next(iter(settings.streams.values())).partitions or 1
    main, *others = rule_plans(settings, partitions)
    assert [each.stage for each in others] == ([stage] if stage else [])
    owner = others[0] if others else main
    assert [rule.id for rule in owner.rules] == ["r0"]
    assert {each.stream: each.field for each in main.forwards} == fields
    assert {spec.stream for spec in main.inputs} == set(settings.streams)
    for forward, spec in zip(main.forwards, others[0].inputs if others else (), strict=True):
        assert forward.topic == spec.topic == f"s-{forward.stream}-{stage}"
        assert spec.origin == settings.streams[forward.stream].topic


def test_rules_with_the_same_field_share_a_stage(write: Callable[..., ServiceFile]) -> None:
    settings = write(
        TWO,
        "session by u with gap=1m [a where true]",
        "sequence by u with maxspan=2h [a where true] [b where true]",
        "session by w with gap=3m [b where true]",
    )
    main, by_u, by_w = rule_plans(settings, 3)
    assert ([rule.id for rule in by_u.rules], [rule.id for rule in by_w.rules]) == (["r0", "r1"], ["r2"])
    assert [(each.stream, each.field, each.lasting_ms) for each in main.forwards] == [
        ("a", "u", 7_200_000),
        ("b", "u", 7_200_000),
        ("b", "w", 180_000),
    ]
    assert (by_u.topics.changelog, by_u.topics.journal) == ("s-changelog-by-u", "s-journal-by-u")
    assert by_u.topics.alerts == main.topics.alerts


def test_a_computed_key_is_refused_with_what_to_do(write: Callable[..., ServiceFile]) -> None:
    settings = write(
        "{a: {key: card, type: kind, partitions: 3}}",
        "sequence with maxspan=1m [login where true] by user [pay where true] by account",
    )
    with pytest.raises(Refused) as caught:
        rule_plans(settings, 3)
    assert caught.value.code == "key-mismatch"
    assert "streams of their own" in caught.value.hint
    assert "the topic a is keyed by card" in caught.value.detail
    assert rule_plans(settings, 1)[0].rules  # what the topics have is what counts


def test_fields_whose_names_make_one_stage_are_refused(write: Callable[..., ServiceFile]) -> None:
    settings = write(ONE, "session by a.b with gap=1m [a where true]", "session by a_b with gap=1m [a where true]")
    with pytest.raises(Refused, match="stage-clash"):
        rule_plans(settings, 3)


def test_a_task_reads_streams_whose_keys_are_anywhere_through_topics_that_all_tasks_share(
    write: Callable[..., ServiceFile], tmp_path: Path
) -> None:
    """All streams of such a task, so that events of a key meet; a task of other streams reads these as they are."""
    (tmp_path / "mine.py").write_text(
        "from samovar import Task\n\n\nclass Mine(Task):\n    def process(self, event, ctx):\n        pass\n"
    )
    settings = write(
        "{a: {key: card, partitions: 3, repartition: true}, b: {key: card}, c: {key: user}}",
        "session by card with gap=1m [a where true]",
        more="tasks: {one: {class: 'mine:Mine', streams: [a]}, two: {class: 'mine:Mine', streams: [a, b]},"
        " three: {class: 'mine:Mine', streams: [b, c]}}\n",
    )
    found = {each.stage: each for each in plans_of(settings, 3)}
    read = {stage: [(each.topic, each.origin) for each in found[stage].inputs] for stage in settings.tasks}
    assert read == {
        "one": [("s-a-for-tasks", "a")],
        "two": [("s-a-for-tasks", "a"), ("s-b-for-tasks", "b")],
        "three": [("b", "b"), ("c", "c")],
    }
    sent = {each.topic: (each.field, each.endless) for each in found[""].forwards}
    assert sent == {
        "s-a-by-card": ("card", False),
        "s-a-for-tasks": ("card", True),
        "s-b-for-tasks": ("card", True),
    }
    assert sent.keys() <= {each.name for each in plan(settings) if each.role is TopicRole.REPARTITION}
    assert not any(each.forwards for each in plans_of(settings, 1))  # one partition has all keys


# ---------------------------------------------------------------- topics


def test_the_topics_of_stages_are_planned_made_and_checked(write: Callable[..., ServiceFile]) -> None:
    settings = write("{a: {key: card, partitions: 3, retention: 3d}}", "session by shop with gap=1m [a where true]")
    specs = {spec.name: spec for spec in plan(settings)}
    assert {"s-a-by-shop", "s-changelog-by-shop", "s-journal-by-shop"} <= set(specs)
    own = specs["s-a-by-shop"]
    assert (own.role, own.partitions) == (TopicRole.REPARTITION, 3)
    assert own.settings["retention.ms"] == str(3 * 86_400_000)
    assert specs["s-changelog-by-shop"].settings == specs["s-changelog"].settings
    needed = rights(settings, list(specs.values()))
    granted = {right.name: right.operations for right in needed if right.who == "service"}
    assert granted["s-a-by-shop"][:2] == ("READ", "WRITE")
    with opened(settings) as log:
        assert {found.topic for found in check(log, list(specs.values()))} >= {"s-a-by-shop"}
        ensure(log, settings)
        assert check(log, list(specs.values())) == []


def test_produce_needs_no_rules(write: Callable[..., ServiceFile], tmp_path: Path) -> None:
    settings = write(ONE, "this is not a rule")
    (tmp_path / "events.jsonl").write_text('{"card": "c", "ts": 1700000000000}\n')
    done = CliRunner().invoke(app, ["produce", str(settings.path), "a", str(tmp_path / "events.jsonl")])
    assert done.exit_code == 0, done.output


# ---------------------------------------------------------------- co-partitioning


def record(card: str, key: str | None = None) -> tuple[bytes | None, bytes]:
    value = json.dumps({"card": card, "ts": T0}).encode()
    return None if key == "" else (key or card).encode(), value


@contextmanager
def placed(settings: ServiceFile, *appends: Append) -> Iterator[Any]:
    with opened(settings) as log:
        ensure(log, settings)
        log.append(list(appends))
        yield lambda: misplaced(log, settings, rule_plans(settings, 3), 3)


MISPLACED = [
    (
        Append(topic="a", records=[record("c1")], partition=(partition_of(b"c1", 3) + 1) % 3),
        "murmur2 places it in partition",
    ),
    (Append(topic="a", records=[record("c1", "other")]), "has the key `other`, and its `card` is `c1`"),
    (Append(topic="a", records=[record("c1", "")], partition=0), "has no key, and its `card` is `c1`"),
]


@pytest.mark.parametrize(("append", "words"), MISPLACED)
def test_one_record_in_the_wrong_place_is_found_by_a_check_and_stops_nothing(
    append: Append, words: str, write: Callable[..., ServiceFile]
) -> None:
    settings = write(ONE, "session by card with gap=1m [a where true]")
    good = Append(topic="a", records=[record(f"c{number}") for number in range(50)])
    with placed(settings, good, append) as look:
        (found,) = look()
    assert found.code == "key-misplaced"
    assert words in found.what
    assert "murmur2_random" in found.fix
    assert "repartition: true" in found.fix
    done = CliRunner().invoke(app, ["topics", "check", str(settings.path)])
    assert (done.exit_code, "key-misplaced" in done.output) == (1, True)
    done = CliRunner().invoke(app, ["run", str(settings.path), "--until-caught-up"])
    assert (done.exit_code, "51 events" in done.output) == (0, True)


@pytest.mark.parametrize(("bad", "code"), [(50, 0), (51, 2)])
def test_a_first_start_refuses_a_topic_that_is_mostly_keyed_otherwise(
    bad: int, code: int, write: Callable[..., ServiceFile]
) -> None:
    settings = write(ONE, "session by card with gap=1m [a where true]")
    keyed = [record(f"c{number}", f"x{number}" if number < bad else None) for number in range(100)]
    with placed(settings, Append(topic="a", records=keyed)):
        pass
    done = CliRunner().invoke(app, ["run", str(settings.path), "--until-caught-up"])
    assert (done.exit_code, "key-misplaced: " in done.output) == (code, code == 2)


def test_a_topic_that_is_keyed_otherwise_later_on_stops_no_service(write: Callable[..., ServiceFile]) -> None:
    settings = write(ONE, "session by card with gap=1m [a where true]")
    with placed(settings, Append(topic="a", records=[record("c1")])):
        pass
    run = ["run", str(settings.path), "--until-caught-up"]
    assert CliRunner().invoke(app, run).exit_code == 0
    wrong = (partition_of(b"c1", 3) + 1) % 3
    with placed(settings, Append(topic="a", records=[record("c1")] * 1_000, partition=wrong)):
        pass
    done = CliRunner().invoke(app, run)
    assert (done.exit_code, "1,000 events" in done.output, "1,000 dead" in done.output) == (0, True, True)


@pytest.mark.parametrize(
    ("streams", "match"),
    [
        ("{a: {key: card, partitions: 3, repartition: true}}", "session by card with gap=1m [a where true]"),
        ("{a: {key: card, partitions: 3, repartition: false}}", "session by card with gap=1m [a where true]"),
        # No rule looks for its events where the topic has them.
        (ONE, "session by shop with gap=1m [a where true]"),
    ],
)
def test_where_it_does_not_matter_nothing_is_refused(
    streams: str, match: str, write: Callable[..., ServiceFile]
) -> None:
    settings = write(streams, match)
    with placed(settings, *(append for append, _ in MISPLACED)) as look:
        assert look() == []


def test_what_is_well_placed_is_fine(write: Callable[..., ServiceFile]) -> None:
    settings = write(ONE, "session by card with gap=1m [a where true]")
    good = [record(f"c{number}") for number in range(200)]
    odd = [(b"x", b"{"), (None, b'{"ts": 1700000000000}')]  # no events, and so nobody's
    with placed(settings, Append(topic="a", records=good), Append(topic="a", records=odd)) as look:
        assert look() == []


# ---------------------------------------------------------------- commands


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A service that ran: a rule by the topic's key, one by another field, one over all events."""
    (tmp_path / "rules").mkdir()
    rules = {
        "cards": "session by card with gap=1m [buy where true]",
        "shops": "sequence by shop with maxspan=1h [buy where n == 1] as one [buy where n == 2] as two",
        "busy": "window every 1h [buy where true]",
    }
    for name, match in rules.items():
        (tmp_path / "rules" / f"{name}.yml").write_text(RULE.format(id=name, match=match))
    path = tmp_path / "service.yml"
    path.write_text("service: s\nstreams: {buy: {key: card, partitions: 2}}\n")
    events = [
        {"card": f"c{number}", "shop": f"s{number % 3}", "n": 2 if number in (6, 9) else 1, "ts": T0 + number * 1000}
        for number in range(12)
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    ran("produce", path, "buy", tmp_path / "events.jsonl")
    said = ran("run", path, "--until-caught-up")
    assert "stages by-one-key, by-shop" in said
    return path


def ran(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_the_commands_know_stages(shop: Path, tmp_path: Path) -> None:
    assert "(partition" in ran("state", "get", shop, "c3")
    found = json.loads(ran("state", "get", shop, "s1", "--json"))
    assert [(each["stage"], each["key"]) for each in found] == [("by-shop", ["s1"])]
    events = [event["event"] for event in found[0]["rules"][0]["partials"][0]["bound"]]
    assert {event["shop"] for event in events} == {"s1"}  # as the stream has them
    assert "of by-shop, event time" in ran("state", "get", shop, "s1")
    assert {each.get("stage") for each in json.loads(ran("state", "scan", shop, "--json"))} == {
        None,
        "by-shop",
        "by-one-key",
    }
    assert all("by-shop/" in line for line in ran("state", "scan", shop, "--stage", "by-shop").splitlines())
    assert len(ran("state", "digest", shop).splitlines()) == 6
    assert {each["stage"] for each in json.loads(ran("state", "history", shop, "s1", "--json"))} == {"by-shop"}
    assert "unknown-stage" in ran("state", "digest", shop, "--stage", "by-shops", code=2)
    verified = ran("verify", shop)
    assert verified.count("equal (store, changelog, source)") == 6
    assert "partition 1 of by-shop: equal" in verified


def test_stages_are_restored_from_everywhere(shop: Path, tmp_path: Path) -> None:
    before = ran("state", "digest", shop)
    for source in ("changelog", "source"):
        said = ran("restore", shop, "--from", source, "--verify")
        assert "partition 0 of by-one-key: restored from" in said
        assert ran("state", "digest", shop) == before
    ran("restore", shop, "--stage", "by-shop", "--out", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["by-shop"]
    assert "stage-missing" in ran("restore", shop, "--to-offset", 1, "--partition", 0, "--out", tmp_path / "o", code=2)


def test_a_stage_is_restored_to_a_moment(shop: Path, tmp_path: Path) -> None:
    """As a service is that never had what came after it."""
    moment = T0 + 7_500
    ran("restore", shop, "--from", "source", "--to-time", moment, "--out", tmp_path / "past")
    found = json.loads(ran("state", "get", shop, "s1", "--store", tmp_path / "past", "--json"))
    (state,) = found
    assert state["watermark"] == moment + 1
    bound = [event["event"] for partial in state["rules"][0]["partials"] for event in partial["bound"]]
    assert [event["ts"] - T0 for event in bound] == [7_000]  # the newest of its shop until then


def test_stages_are_restored_and_verified_on_spark(spark: OpenSession, shop: Path) -> None:
    """P2: every stage, from its changelog and from what came through its repartition topics."""
    before = ran("state", "digest", shop)
    for source in ("changelog", "source"):
        said = ran("restore", shop, "--engine", "spark", "--from", source)
        assert "partition 0 of by-one-key: restored from" in said
        assert ran("state", "digest", shop) == before
    verified = ran("verify", shop, "--engine", "spark")
    assert verified.count("equal (store, changelog, source)") == 6

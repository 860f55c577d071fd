"""Every command on a broker that allows nothing by itself, with exactly the rights that `samovar topics plan` prints.

One story is told once, each command by a user of its role. The broker's authorizer writes down all that it is asked: so
it shows as well that no right is planned that nobody uses.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from samovar.changelog.broker import node
from samovar.changelog.kafka.log import KafkaLog
from samovar.changelog.log import Append
from samovar.changelog.spark.session import OpenSession
from samovar.service.cli.main import app
from samovar.service.config.loading import load_service
from samovar.service.recovery.archiving import Archiver
from samovar.service.rules.publishing import quarantine
from samovar.service.spark.write import sink_of
from samovar.service.topology.acls import (
    ANALYSTS,
    AUTHORS,
    COMMANDS,
    HTTP,
    OPERATORS,
    PRODUCERS,
    READERS,
    SERVICE,
    SPARK,
    TRAFFIC,
    AclEntry,
    rights,
)
from samovar.service.topology.logs import opened
from samovar.service.topology.rule_registry import load_registry
from samovar.service.topology.topics import archive_group, plan, sink_group
from tests.support.doc_snippets import run_command
from tests.support.http_server import Served, served, wait_for
from tests.support.kafka_secure import Decision, SecureKafka, certificates, password_of, secure_kafka
from tests.support.small_service import Service

# They touch no log: files only, or a broker that they start.
OFFLINE = {
    "match", "generate", "init", "demo", "rules test", "rules check", "rules explain", "kafka start", "kafka stop",
    "kafka status", "topics plan", "config show", "config check", "views list", "views show", "views query",
    "views rollback", "views path", "views maintain", "tables maintain",
}  # fmt: skip
ADMINISTRATORS = {"repartition"}  # it deletes topics and makes them: no role has these rights
START_MS = 1_767_600_000_000
RULES = {
    "testing": """
rule: testing
lists: {risky: [X1]}
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2 or country in $risky] as probe with runs=2..
    [purchase where amount > 200] as big
""",
    "spread": """
rule: spread
match: |
  aggregate by country over 1m [purchase where true] having distinct(card) >= 4
""",
}
# A view of all that views can read.
TABLES = ("alerts", "late", "dead_letters", "labels", "states", "changes", "purchase")
COUNTS = ", ".join(f"(select count(*) from {table}) as {table}" for table in TABLES)
CODE = """
from samovar import Context, Event, Task


class Totals(Task):
    def process(self, event: Event, ctx: Context) -> None:
        totals = ctx.store("totals")
        totals.put(event.key, totals.get(event.key, 0) + event["amount"])
        ctx.emit("seen", event.key, {"card": event.key, "ts": event.time})
"""


@dataclass
class Place:
    """A service of its own on the broker, and what its users did there."""

    kafka: SecureKafka
    folder: Path
    name: str
    said: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # by command

    @property
    def config(self) -> Path:
        return self.folder / "service.yml"

    @property
    def planned(self) -> list[AclEntry]:
        settings = load_service(self.config, lenient=True)
        return rights(settings, plan(settings))

    def user(self, role: str) -> str:
        return f"{self.name}-{role}"

    def run(self, role: str, *words: object) -> tuple[int, str]:
        """A command, by a user of this role. CONFIG stands for the service file."""
        texts = [str(self.config) if word == "CONFIG" else str(word) for word in words]
        with as_user(self.user(role)):
            text, code = run_command(texts)
        return code, text

    def told(self, role: str, command: str, *words: object) -> None:
        """The same, as a step of the story."""
        self.said.setdefault(command, []).append(self.run(role, *command.split(), "CONFIG", *words))


@contextmanager
def as_user(user: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(KAFKA_USER=user, KAFKA_PASSWORD=password_of(user))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def make_place(kafka: SecureKafka, folder: Path, name: str, topics: str) -> Place:
    """A service file whose user and password are in the environment; users who have what is planned and no more."""
    for part in ("rules", "views"):
        (folder / part).mkdir(parents=True)
    for rule, text in RULES.items():
        (folder / "rules" / f"{rule}.yml").write_text(text)
    (folder / "views" / "counts.yml").write_text(f"view: counts\nsql: select {COUNTS}\nkey: alerts\n")
    cards = "sql: select card, count(*) as purchases from purchase group by card\nkey: card\nserve: true\n"
    (folder / "views" / "cards.yml").write_text(f"view: cards\n{cards}")
    (folder / "totals.py").write_text(CODE)
    client = {**kafka.client("x"), "sasl.username": "${KAFKA_USER}", "sasl.password": "${KAFKA_PASSWORD}"}
    schema = {"card": "string", "amount": "double", "country": "string"}
    purchase = {"topic": f"{name}-purchase", "key": "card", "partitions": 2, "slack": "2s", "schema": schema}
    task = {"class": "totals:Totals", "streams": ["purchase"], "emits": ["seen"], "stores": {"totals": {}}}
    data = {
        "service": name,
        "log": {"kafka": client},
        "topics": topics,
        "state": "state",
        "streams": {"purchase": purchase},
        "tasks": {"totals": task},
        "sinks": {"desk": {"file": "alerts.jsonl"}},
        "archive": {"to": "archive"},
        "tables": ["alerts"],
    }
    (folder / "service.yml").write_text(json.dumps(data))
    place = Place(kafka, folder, name)
    kafka.add_users([place.user(role) for role in COMMANDS])
    for role in COMMANDS:
        kafka.grant(place.user(role), [right for right in place.planned if right.who == role])
    return place


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with secure_kafka(tmp_path_factory.mktemp("secure") / "kafka") as started:
        yield started


@pytest.fixture(scope="module")
def shop(kafka: SecureKafka, spark: OpenSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A service that makes its topics, and all that its users did, by command. Commands find Spark open."""
    assert isinstance(spark, OpenSession)
    place = make_place(kafka, tmp_path_factory.mktemp("shop"), "shop", "create")
    tell_story(place)
    return place


# ---------------------------------------------------------------- the story


def events() -> list[dict[str, Any]]:
    cards = [f"c{number}" for number in range(8)]
    found = []
    for number in range(160):
        card, amount = cards[number % 8], (1, 1.5, 300)[number // 8 % 3]
        event = {"type": "purchase", "ts": START_MS + number * 500, "card": card, "amount": amount, "country": "GB"}
        found.append(event)
    return [*found, {**found[0], "card": "c0"}]  # the last one is late


def tell_story(place: Place) -> None:
    run = ("--until-caught-up",)
    place.told(SERVICE, "run", *run)
    with serving(place) as site:  # the first one makes what pseudonyms are made with
        site.get("/status")
    lines = place.folder / "events.jsonl"
    lines.write_text("".join(json.dumps(event) + "\n" for event in events()))
    place.told(PRODUCERS, "produce", "purchase", lines)
    post_bad(place)
    place.told(SERVICE, "run", *run)
    for topic in ("alerts", "late", "dead-letters", "seen"):
        place.told(READERS, "read", topic, "--json")
    change_rules(place)
    place.told(SERVICE, "run", *run)
    look_at(place)
    archive(place)
    restore(place)
    operate(place)
    serve(place)
    analyse(place)
    write_from_spark(place)
    for _ in range(2):  # the second one goes on from the mark of the first
        place.told(TRAFFIC, "traffic", "--for", "200ms", "--rate", "20", "--backfill", "0s")
    place.told(SERVICE, "run", *run)
    take_out_a_rule(place)


def write_from_spark(place: Place) -> None:
    """As a query of Spark does, whose last batch is repeated."""
    with as_user(place.user(SPARK)):
        sink = sink_of({"config": str(place.config), "stream": "purchase", "query": "q"}, "", is_stream=True)
        packed = sink.pack(iter([events()[0]]))
        for _ in range(2):
            sink.commit([packed], 0)
    place.said["df.write"] = [(0, "")]


def take_out_a_rule(place: Place) -> None:
    """As a container does with a rule that took too much."""
    with as_user(place.user(SERVICE)):
        settings = load_service(place.config)
        with opened(settings) as log:
            entry = load_registry(settings, log).entry("spread")
            assert entry is not None
            assert quarantine(settings, log, "spread", entry.version, "too much")


def post_bad(place: Place) -> None:
    """What becomes a dead letter, by somebody whom nobody asked for rights."""
    log = KafkaLog({"bootstrap.servers": place.kafka.admins})
    log.append([Append(topic=f"{place.name}-purchase", records=[(b"c1", b"{")])])
    log.close()


def change_rules(place: Place) -> None:
    newer = place.folder / "newer.yml"
    newer.write_text(RULES["testing"].replace("> 200", "> 150"))
    for command, words in {
        "rules plan": ("--json",),
        "rules publish": (newer, "--yes"),
        "rules disable": ("testing", "--yes"),
        "rules enable": ("testing", "--yes"),
        "rules rollback": ("testing", "--to", "1", "--yes"),
        "rules history": (),
        "rules diff": ("testing", "1", "2"),
        "lists add": ("risky", "X2", "--yes"),
        "lists remove": ("risky", "X2", "--yes"),
        "lists show": (),
    }.items():
        place.told(AUTHORS, command, *words)


def look_at(place: Place) -> None:
    copy = place.folder / "copy"
    shutil.copytree(place.folder / "state" / "0" / "store", copy)
    for command, words in {
        "status": (),
        "doctor": (),
        "topics check": (),
        "verify": (),
        "state get": ("card=c1",),
        "state scan": (),
        "state history": ("card=c1",),
        "state digest": (),
        "state diff": (copy, copy),
    }.items():
        place.told(SERVICE, command, *words)


def archive(place: Place) -> None:
    """Once, and then as the process does that follows."""
    place.told(SERVICE, "archive")
    with as_user(place.user(SERVICE)):
        settings = load_service(place.config)
        with opened(settings) as log:
            follower = Archiver(settings, log, 0, lambda _: None)
            thread = Thread(target=follower.run)
            thread.start()
            joined = Decision(place.user(SERVICE), True, "READ", "group", archive_group(place.name))
            try:
                wait_for(lambda: joined in place.kafka.decisions())
            finally:
                follower.stopped.set()
                thread.join()


def restore(place: Place) -> None:
    for how in (["--from", "changelog"], ["--from", "source"], ["--engine", "spark"]):
        shutil.rmtree(place.folder / "state")
        place.told(SERVICE, "restore", "--verify", *how)


def operate(place: Place) -> None:
    shutil.rmtree(place.folder / "state")
    place.told(OPERATORS, "rewind", "--to-time", START_MS + 40_000)
    place.told(OPERATORS, "dlq show")
    for _ in range(2):  # the second one finds the marks of the first
        place.told(OPERATORS, "dlq redrive")
    place.told(SERVICE, "run", "--until-caught-up")
    place.told(OPERATORS, "tokens add", "desk", "--role", "operator", "--json")
    place.told(OPERATORS, "tokens add", "gone", "--role", "viewer")
    place.told(OPERATORS, "tokens remove", "gone")
    place.told(OPERATORS, "tokens list")


def analyse(place: Place) -> None:
    place.said["rules backtest"] = [place.run(ANALYSTS, "rules", "backtest", place.folder / "rules", "CONFIG")]
    place.said["rules sample"] = [place.run(ANALYSTS, "rules", "sample", "CONFIG")]
    place.told(ANALYSTS, "sql", f"select {COUNTS}")
    place.told(ANALYSTS, "tables export")
    place.told(ANALYSTS, "tables list")
    place.told(ANALYSTS, "tables show", "alerts")
    place.told(ANALYSTS, "tables query", "alerts")
    place.told(ANALYSTS, "views rebuild")
    place.told(ANALYSTS, "views refresh")
    place.told(ANALYSTS, "views get", "cards", "c1")


@contextmanager
def serving(place: Place) -> Iterator[Served]:
    with as_user(place.user(HTTP)):
        settings = load_service(place.config)
        with served(Service(place.config), settings) as site:
            yield site


def serve(place: Place) -> None:
    """The HTTP API, with everything that it does to the log."""
    token = json.loads(place.said["tokens add"][0][1])["token"]
    with serving(place) as anyone:
        site = anyone.as_(token)
        site.caught_up()
        alert = site.get("/alerts")["alerts"][0]["id"]
        site.put(f"/alerts/{alert}/label", {"label": "confirmed"})
        for path in (
            "/status", "/streams", "/streams/purchase/events", "/late", "/dead-letters", "/keys", f"/alerts/{alert}",
            "/rules", "/rules/testing/history", "/rules/spread/history", "/lists", "/audit",
        ):  # fmt: skip
            site.get(path)
        for key, rule in (("c1", "testing"), ("GB", "spread")):
            for what in ("", "/events", "/why"):
                site.get(f"/keys/{key}{what}", params={"rule": rule})
        site.post("/rules/try", {"text": RULES["spread"], "minutes": 10_000})
        site.post("/streams/purchase/events", events()[0])
        site.post("/rules/testing/disable", {"note": "n"})
        site.post("/dead-letters/redrive", {"dry_run": False})
        job = site.post("/rules/backtest", {"text": RULES["testing"]}, 202)["job"]
        wait_for(lambda: site.get(f"/jobs/{job}")["state"] not in ("waiting", "running"))
        joined = Decision(place.user(HTTP), True, "READ", "group", sink_group(place.name, "desk"))
        wait_for(lambda: joined in place.kafka.decisions())
        place.said["serve"] = [(0, "")]


# ---------------------------------------------------------------- what it shows

# Not all is well, but nothing is missing: no container runs, and two versions of a rule differ.
OTHER_CODES = {"status": 1, "rules diff": 1}
# The client asks for the coordinator of a group that it never joins, and whether there ever was a group; `doctor` asks
# the cluster for what nobody needs.
ASKED_IN_VAIN = {("group", "samovar-reader"), ("topic", "__consumer_offsets"), ("cluster", "kafka-cluster")}


def all_commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, TyperGroup):
        yield " ".join(words)
    else:
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from all_commands(command.get_command(context, name), (*words, name))


def test_every_command_has_a_role_or_touches_no_log() -> None:
    """One that is new must say whose rights it needs, and join the story."""
    with_roles = [command for who, commands in COMMANDS.items() if who != SPARK for command in commands]
    assert sorted([*with_roles, *OFFLINE, *ADMINISTRATORS]) == sorted(all_commands(typer.main.get_command(app)))


@pytest.mark.parametrize("command", [command for commands in COMMANDS.values() for command in commands])
def test_a_command_runs_with_the_planned_rights_of_its_role(shop: Place, command: str) -> None:
    for code, text in shop.said[command]:
        assert code == OTHER_CODES.get(command, 0), text
        assert "denied" not in text


def test_restore_runs_from_all_sources_with_planned_rights(shop: Place) -> None:
    assert [code for code, _ in shop.said["restore"]] == [0, 0, 0]
    assert all("equal" in text for _, text in shop.said["restore"])


def test_nothing_was_denied_and_no_right_is_planned_in_vain(shop: Place) -> None:
    """What somebody creates depends on who comes first; see below."""
    asked = {each for each in shop.kafka.decisions() if each.who.startswith(f"{shop.name}-")}
    denied = {each for each in asked if not each.allowed}
    assert {each for each in denied if (each.resource, each.name) not in ASKED_IN_VAIN} == set()
    wanted = [(right, operation) for right in shop.planned for operation in right.operations if operation != "CREATE"]
    idle = [
        f"{right.who}: {operation} on {right.name}"
        for right, operation in wanted
        if not used(shop, right, operation, asked)
    ]
    assert idle == []


def used(place: Place, right: AclEntry, operation: str, asked: set[Decision]) -> bool:
    return any(
        (each.who, each.operation, each.resource) == (place.user(right.who), operation, right.resource)
        and (each.name.startswith(right.name) if right.pattern == "prefixed" else each.name == right.name)
        for each in asked
    )


# The first command of each role that may make topics.
FIRST: Mapping[str, tuple[str, ...]] = {
    PRODUCERS: ("produce", "CONFIG", "purchase", "EVENTS"),
    TRAFFIC: ("traffic", "CONFIG", "--for", "100ms", "--backfill", "0s"),
    AUTHORS: ("rules", "publish", "CONFIG", "RULE", "--yes"),
    OPERATORS: ("tokens", "add", "CONFIG", "desk", "--role", "viewer"),
}


@pytest.mark.parametrize("role", FIRST)
def test_whoever_comes_first_may_make_the_topics_that_it_needs(kafka: SecureKafka, tmp_path: Path, role: str) -> None:
    place = make_place(kafka, tmp_path / "s", f"first-{role}", "create")
    lines, rule = tmp_path / "events.jsonl", tmp_path / "newer.yml"
    rule.write_text(RULES["testing"].replace("> 200", "> 150"))
    lines.write_text(json.dumps(events()[0]) + "\n")
    code, text = place.run(role, *({"EVENTS": lines, "RULE": rule}.get(word, word) for word in FIRST[role]))
    assert code == 0, text
    made = {each.name for each in kafka.decisions() if each.who == place.user(role) and each.operation == "CREATE"}
    assert made <= {right.name for right in place.planned if right.who == role and "CREATE" in right.operations}
    assert made


# ---------------------------------------------------------------- what is missing is said


@pytest.fixture(scope="module")
def bank(kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A service whose topics an administrator makes. It has an event to process, and one that is bad."""
    place = make_place(kafka, tmp_path_factory.mktemp("bank"), "bank", "check")
    with as_user(place.user(SERVICE)):
        settings = load_service(place.config)
    log = KafkaLog({"bootstrap.servers": kafka.admins})
    log.create(plan(settings))
    log.append([Append(topic="bank-purchase", records=[(b"c0", json.dumps(events()[0]).encode()), (b"c0", b"{")])])
    log.close()
    return place


def test_a_service_runs_on_topics_that_others_made(bank: Place) -> None:
    for words in (("run", "CONFIG", "--until-caught-up"), ("topics", "check", "CONFIG"), ("doctor", "CONFIG")):
        code, text = bank.run(SERVICE, *words)
        assert code == 0, text


# Who lacks what, and the command that says so.
LACKING = [
    (SERVICE, "READ", "topic", "bank-purchase", ("run", "CONFIG", "--until-caught-up")),
    (SERVICE, "WRITE", "topic", "bank-changelog", ("run", "CONFIG", "--until-caught-up")),
    (SERVICE, "WRITE", "topic", "bank-seen", ("run", "CONFIG", "--until-caught-up")),
    (SERVICE, "READ", "topic", "bank-purchase-by-country", ("run", "CONFIG", "--until-caught-up")),
    (SERVICE, "READ", "group", "bank", ("run", "CONFIG", "--until-caught-up")),
    (SERVICE, "WRITE", "transactional-id", "bank-", ("run", "CONFIG", "--until-caught-up")),
    (SERVICE, "DESCRIBE_CONFIGS", "topic", "bank-alerts", ("topics", "check", "CONFIG")),
    (SERVICE, "DESCRIBE", "topic", "bank-labels", ("topics", "check", "CONFIG")),
    (READERS, "READ", "topic", "bank-alerts", ("read", "CONFIG", "alerts")),
    (PRODUCERS, "WRITE", "topic", "bank-purchase", ("produce", "CONFIG", "purchase", "EVENTS")),
    (AUTHORS, "WRITE", "topic", "bank-rules", ("rules", "publish", "CONFIG", "RULE", "--yes")),
    (OPERATORS, "WRITE", "topic", "bank-access", ("tokens", "add", "CONFIG", "desk", "--role", "viewer")),
    (OPERATORS, "READ", "group", "bank-redrive", ("dlq", "redrive", "CONFIG")),
]


@pytest.mark.parametrize(("role", "operation", "resource", "name", "words"), LACKING)
def test_a_denial_names_what_is_missing_and_on_what(
    bank: Place, tmp_path: Path, role: str, operation: str, resource: str, name: str, words: tuple[str, ...]
) -> None:
    """Every time a single right is taken away."""
    (planned,) = (each for each in bank.planned if (each.who, each.resource, each.name) == (role, resource, name))
    assert operation in planned.operations
    lines, rule = tmp_path / "events.jsonl", tmp_path / "newer.yml"
    rule.write_text(RULES["testing"].replace("> 200", "> 150"))
    lines.write_text(json.dumps(events()[0]) + "\n")
    post(bank, events()[1])  # so that there is something to do
    taken, user = replace(planned, operations=(operation,)), bank.user(role)
    bank.kafka.revoke(user, [taken])
    try:
        code, text = bank.run(role, *({"EVENTS": lines, "RULE": rule}.get(word, word) for word in words))
    finally:
        bank.kafka.grant(user, [taken])
    assert code == 2, text
    whole = f"{name}0" if planned.pattern == "prefixed" else name
    told = {f"log-access-denied: Kafka denies user {user} {each} on {resource} {whole}" for each in said_as(operation)}
    assert any(line in told for line in text.splitlines()), text


def said_as(operation: str) -> tuple[str, ...]:
    """Without READ or WRITE a topic cannot be described either, which may be asked for first."""
    return (operation, "DESCRIBE") if operation in ("READ", "WRITE") else (operation,)


def post(place: Place, event: Mapping[str, Any]) -> None:
    log = KafkaLog({"bootstrap.servers": place.kafka.admins})
    log.append(
        [Append(topic=f"{place.name}-purchase", records=[(str(event["card"]).encode(), json.dumps(event).encode())])]
    )
    log.close()


def test_doctor_lists_rights_that_are_missing(bank: Place) -> None:
    taken = AclEntry(who=SERVICE, resource="topic", name="bank-changelog", operations=("WRITE",))
    bank.kafka.revoke(bank.user(SERVICE), [taken])
    try:
        code, text = bank.run(SERVICE, "doctor", "CONFIG")
    finally:
        bank.kafka.grant(bank.user(SERVICE), [taken])
    assert code != 0
    assert "this user lacks WRITE on topic bank-changelog" in text


# ---------------------------------------------------------------- no way in

STRANGERS: Mapping[str, tuple[Mapping[str, str], str, str]] = {
    "a wrong password": ({"sasl.password": "guessed"}, "log-login-refused", "Kafka does not let user bank-service in"),
    "an unknown user": ({"sasl.username": "nobody"}, "log-login-refused", "Kafka does not let user nobody in"),
    "another mechanism": ({"sasl.mechanisms": "PLAIN"}, "log-login-refused", "Kafka does not let user"),
    "an unknown authority": ({"ssl.ca.location": "OTHER"}, "log-tls-failed", "self-signed certificate"),
    "another name": ({"bootstrap": "LOCALHOST"}, "log-tls-failed", "mismatch"),
    "no TLS": ({"security.protocol": "SASL_PLAINTEXT"}, "log-tls-failed", "speaks TLS"),
    "no TLS and no password": ({"security.protocol": "PLAINTEXT"}, "log-tls-failed", "speaks TLS"),
    "TLS to a port without": ({"bootstrap": "PORT"}, "log-tls-failed", "does not speak TLS"),
}


@pytest.mark.parametrize(
    ("command", "how"),
    [*((("topics", "check"), how) for how in STRANGERS), (("doctor",), "a wrong password"), (("doctor",), "no TLS")],
)
def test_what_is_wrong_with_a_connection_is_said(
    bank: Place, tmp_path: Path, command: tuple[str, ...], how: str
) -> None:
    change, code, words = STRANGERS[how]
    kafka = bank.kafka
    _, other = certificates(tmp_path) if "OTHER" in change.values() else (None, None)
    localhost = kafka.address.replace(node.HOST, "localhost")
    stands_for = {"OTHER": str(other), "LOCALHOST": localhost, "PORT": kafka.admins}
    data = json.loads(bank.config.read_text())
    data["log"]["kafka"] |= {name: stands_for.get(value, value) for name, value in change.items()}
    path = bank.folder / "stranger.yml"
    path.write_text(json.dumps(data))
    exit_code, text = bank.run(SERVICE, *command, path)
    assert exit_code != 0
    assert code in text, text
    assert words in text, text
    assert "see that a broker runs" not in text
    assert password_of(bank.user(SERVICE)) not in text

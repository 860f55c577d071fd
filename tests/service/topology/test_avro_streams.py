"""A service whose stream is in Avro does what the same service does with JSON; schemas change under way."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from samovar.changelog.kafka.log import KafkaLog
from samovar.changelog.log import Append
from samovar.changelog.partitioner import partition_of
from samovar.changelog.schema_registry import RegistryUnavailable
from samovar.common.errors import Refused
from samovar.patterns.engine.avro.codec import framed
from samovar.service.config.loading import load_service
from samovar.service.runtime.running import container_of
from samovar.tasks.runtime import container as containers
from samovar.tasks.runtime.container import Container
from tests.support.avro_making import encoded
from tests.support.schema_registry import USER, TestRegistry, running
from tests.support.small_service import RULES, START, Service, catch_up, is_equal, many, purchase, restored, run, wipe

V1 = {
    "type": "record",
    "name": "Purchase",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "card", "type": "string"},
        {"name": "amount", "type": "float"},
        {"name": "land", "type": {"type": "enum", "name": "Land", "symbols": ["US", "FR", "DE"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
V2 = {
    "type": "record",
    "name": "Purchase",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "country", "type": ["null", "string"], "default": None, "aliases": ["none_such"]},
        {"name": "amount", "type": "double"},
        {"name": "channel", "type": "string", "default": "shop"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
PLAIN = {
    "type": "record",
    "name": "Purchase",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "country", "type": ["null", "string"], "default": None},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
STREAM = "service: s\nstreams:\n  purchase: {{key: card, partitions: 2, slack: 2s, {format}}}\n"


@pytest.fixture
def registry() -> Iterator[TestRegistry]:
    with running(TestRegistry(password=USER)) as served:
        yield served


@dataclass
class AvroService(Service):
    """Writes its events with one schema after the other."""

    number: int | None = None
    schema: Any = None

    def values(self, events: Sequence[dict[str, Any]]) -> list[bytes]:
        data = [encoded(self.schema, event) for event in events]
        return data if self.number is None else [framed(self.number, each) for each in data]

    def produce(self, events: Sequence[dict[str, Any]], stream: str = "purchase") -> None:
        pairs = zip((event["card"].encode() for event in events), self.values(events), strict=True)
        self.append(list(pairs), stream)

    def append(self, pairs: Sequence[tuple[bytes, bytes]], stream: str = "purchase") -> None:
        with self.log() as log:
            container_of(self.settings, log, 0, lambda _: None, self.clock)  # makes the topics
            log.append([Append(topic=stream, records=list(pairs))])


def make(folder: Path, format: str, rules: dict[str, str] | None = None) -> AvroService:
    (folder / "rules").mkdir(parents=True)
    for name, text in (rules or RULES).items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    for name, schema in (("v1", V1), ("v2", V2), ("plain", PLAIN)):
        (folder / f"{name}.avsc").write_text(json.dumps(schema))
    (folder / "service.yml").write_text(STREAM.format(format=format))
    return AvroService(folder / "service.yml")


@contextmanager
def waiting(
    service: AvroService, events: Sequence[dict[str, Any]], tell: Callable[[str], None] = lambda _: None
) -> Iterator[Container]:
    """A container that was made before these events came, so that it knows no schema yet."""
    with service.log() as log:
        container = container_of(service.settings, log, 0, tell, service.clock)
        service.produce(events)
        yield container


def with_registry(registry: TestRegistry) -> str:
    more = "max.retries: 1, retries.wait.ms: 1, retries.max.wait.ms: 1"
    return f'format: avro, registry: {{url: "{registry.url}", basic.auth.user.info: "{USER}", {more}}}'


def records(service: Service, topic: str) -> list[dict[str, Any]]:
    done = run("read", service.config, topic, "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def alerts(service: Service) -> list[Any]:
    return sorted((each["value"] for each in records(service, "alerts")), key=lambda each: str(each["id"]))


def dead(service: Service) -> list[tuple[str, str]]:
    headers = [each["headers"] for each in records(service, "dead-letters")]
    return [(each["__streams.errors.exception"], each["__streams.errors.message"]) for each in headers]


# ---------------------------------------------------------------- the same as JSON

W1 = """
rule: w1
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=3..
    [purchase where amount > 200] as big
emit: {spent: sum(probe.amount) + big.amount, where: big.country}
"""


# Keyed by another field than the topic: its events go through a repartition topic, as the bytes that they are.
ABROAD = """
rule: abroad
match: |
  aggregate by country over 20s [purchase where amount > 150] having count() >= 4
"""


def golden(count: int) -> list[dict[str, Any]]:
    """The stream of the benchmark W1, in small: few cards, so that many match."""
    drawn = random.Random(5)
    return [
        purchase(
            f"card-{drawn.randrange(120):04}",
            n * 0.5,
            round(drawn.choice((drawn.uniform(0.1, 1.99), drawn.uniform(2, 300))), 2),
            drawn.choice(("US", "DE", "SG")),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("how", ["plain", "listed", "registry"])
def test_the_alerts_are_those_of_the_same_events_in_json(tmp_path: Path, registry: TestRegistry, how: str) -> None:
    rules = RULES | {"w1": W1, "abroad": ABROAD}
    in_json = Service(make(tmp_path / "json", "format: json", rules).config)
    formats = {
        "plain": "format: avro, schema: plain.avsc",
        "listed": "format: avro, schemas: {7: plain.avsc}",
        "registry": with_registry(registry),
    }
    in_avro = make(tmp_path / "avro", formats[how], rules)
    in_avro.schema, in_avro.number = PLAIN, {"plain": None, "listed": 7}.get(how, registry.add(PLAIN))
    events = golden(3_000)
    in_json.produce(events)
    in_avro.produce(events)
    for service in (in_json, in_avro):
        with service.container() as container:
            for _ in range(3):  # what one stage forwards comes to the other a cycle later
                container.cycle()
    found = alerts(in_avro)
    assert len(found) > 50
    assert {each["rule"] for each in found} >= {"w1", "testing", "abroad"}
    assert found == alerts(in_json)
    assert in_avro.digests() == in_json.digests()
    assert dead(in_avro) == []


def test_a_task_of_ones_own_is_given_the_fields_of_an_event(tmp_path: Path) -> None:
    service = make(tmp_path / "s", "format: avro, schemas: {3: plain.avsc}")
    service.schema, service.number = PLAIN, 3
    (service.config.parent / "told.py").write_text(
        "from samovar import Context, Event, Task\n\n\n"
        "class Told(Task):\n"
        "    def process(self, event: Event, ctx: Context) -> None:\n"
        "        ctx.emit('told', event.key, dict(event.fields))\n"
    )
    with service.config.open("a") as file:
        file.write("tasks: {told: {class: 'told:Told', streams: [purchase], emits: [told]}}\n")
    events = many(10)
    service.process(events)
    service.settle()
    told = sorted((each["value"] for each in records(service, "s-told")), key=lambda each: int(each["ts"]))
    assert told == events


SUMS = """
from samovar import Context, Event, Task


class Sums(Task):
    def process(self, event: Event, ctx: Context) -> None:
        sums = ctx.store("sums")
        total = sums.get(event.key, 0) + event["amount"]
        sums.put(event.key, total)
        ctx.emit("sum", event.key, {"card": event.key, "ts": event.time, "total": total if total < 1000 else "much"})
"""
SUM = {
    "type": "record",
    "name": "Sum",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "total", "type": "double"},
    ],
}
RICH = """
rule: rich
match: |
  aggregate by card over 1h [sum where total > 500] having count() >= 1
"""


def summing(folder: Path, registry: TestRegistry, format: str) -> AvroService:
    service = make(folder / "s", "format: avro, schemas: {3: plain.avsc}", {"rich": RICH})
    service.schema, service.number = PLAIN, 3
    (service.config.parent / "sums.py").write_text(SUMS)
    (service.config.parent / "sum.avsc").write_text(json.dumps(SUM))
    registry.add(SUM, "sum-value")
    with service.config.open("a") as file:
        file.write(f"  sum: {{key: card, {format}}}\n")
        file.write("tasks: {sums: {class: 'sums:Sums', streams: [purchase], emits: [sum], stores: [sums]}}\n")
    return service


def test_a_registry_that_does_not_answer_is_no_fault_of_the_task(tmp_path: Path, registry: TestRegistry) -> None:
    """P1, P8: the container begins again, and nothing is put aside."""
    service = summing(tmp_path, registry, with_registry(registry))
    service.produce([purchase("c1", second, 10) for second in range(4)])
    registry.trouble = 503
    with service.log() as log:
        container = container_of(service.settings, log, 0, lambda _: None, service.clock)
        with pytest.raises(RegistryUnavailable):
            catch_up(container)
        container.close()
    registry.trouble = None
    service.process([purchase("c1", 60, 10)])
    assert [each["value"]["total"] for each in records(service, "sum")] == [10, 20, 30, 40]
    assert dead(service) == []


@pytest.mark.parametrize("how", ["schema: sum.avsc", "schemas: {7: sum.avsc}", "registry"])
def test_a_task_of_ones_own_emits_avro(tmp_path: Path, registry: TestRegistry, how: str) -> None:
    """With the stream's schema, whatever names it; what that cannot hold is a fault of the call, and kept."""
    service = summing(tmp_path, registry, with_registry(registry) if how == "registry" else f"format: avro, {how}")
    service.process([purchase("c1", second, amount) for second, amount in enumerate((300, 250, 400, 100))])
    service.settle()
    told = [each["value"] for each in records(service, "sum")]
    assert [(each["card"], each["ts"] - START, each["total"]) for each in told] == [
        ("c1", 0, 300), ("c1", 1_000, 550), ("c1", 2_000, 950),
    ]  # fmt: skip
    ((kind, message),) = dead(service)
    assert kind == "TASK_FAILED"
    assert "AvroValueError" in message
    assert "total" in message
    assert [alert["rule"] for alert in alerts(service)] == ["rich"]


# ---------------------------------------------------------------- schemas that change


def test_the_schema_changes_in_the_middle_of_the_stream(tmp_path: Path, registry: TestRegistry) -> None:
    """P2: what the writers wrote is read as one shape, live, after a restart, and from the source."""
    service = make(tmp_path / "avro", f"{with_registry(registry)}, schema: v2.avsc")
    in_json = Service(make(tmp_path / "json", "format: json").config)
    events = many(240)
    for first in range(0, 240, 60):
        part = events[first : first + 60]
        old = first in (0, 120)
        service.schema, service.number = (V1, registry.add(V1)) if old else (V2, registry.add(V2))
        service.process([as_v1(event) if old else {**event, "ts": event["ts"] * 1000} for event in part])
        # What has no country in the old schema has none in JSON; and a double is a double.
        known = [{**event, "amount": float(event["amount"])} for event in part]
        in_json.process([{**event, "country": None} if old else event for event in known])
    assert alerts(service) == alerts(in_json)
    assert len(alerts(service)) > 5
    assert service.digests() == in_json.digests()
    assert is_equal(service)
    before = service.digests()
    wipe(service)
    restored(service, "--from", "source", "--verify")
    assert service.digests() == before
    # Each number is asked for once by each process that reads the stream, here by each container and each command.
    assert all(path.startswith("GET /schemas/ids/") for path in registry.asked)


def as_v1(event: dict[str, Any]) -> dict[str, Any]:
    return {"ts": event["ts"], "card": event["card"], "amount": event["amount"], "land": event["country"]}


def test_a_field_of_a_new_schema_is_read_from_then_on(tmp_path: Path, registry: TestRegistry) -> None:
    rule = """
rule: online
match: |
  sequence by card with maxspan=0ms
    [purchase where channel == "web"] as p
"""
    service = make(tmp_path / "s", f"{with_registry(registry)}, schema: v2.avsc", {"online": rule})
    service.schema, service.number = PLAIN, registry.add(PLAIN)
    service.process([purchase("c1", 1, 5)])
    service.schema, service.number = V2, registry.add(V2)
    later = {"card": "c1", "country": None, "amount": 1.0, "ts": (START + 9_000) * 1000}
    service.process([{**later, "channel": "web"}, {**later, "channel": "shop", "ts": (START + 20_000) * 1000}])
    assert [each["start"] for each in alerts(service)] == [START + 9_000]


# ---------------------------------------------------------------- what is not there


def test_a_message_of_an_unknown_schema_is_a_dead_letter_and_the_others_go_on(
    tmp_path: Path, registry: TestRegistry
) -> None:
    service = make(tmp_path / "s", with_registry(registry))
    service.schema, service.number = PLAIN, registry.add(PLAIN)
    good = service.values(many(60))
    pairs = [(event["card"].encode(), value) for event, value in zip(many(60), good, strict=True)]
    strange = framed(99, good[0][5:])
    pairs[10:10] = [(b"c0", strange), (b"c0", b"\0\0"), (b"c0", good[0][:-1]), (b"c0", strange)]
    service.append(pairs)
    with service.container() as container:
        assert container.status().counts.dead == 4
        assert container.status().counts.events == 64
    assert dead(service) == [
        ("UNKNOWN_SCHEMA", f"its schema is not known: the registry at {registry.url} has no schema 99"),
        ("NOT_FRAMED", "not in the wire format (0, then four bytes with the schema's number): it has 2 bytes"),
        ("NOT_AVRO", "not Avro: it ends too early in `ts` (schema 1), at byte 20"),
        ("UNKNOWN_SCHEMA", f"its schema is not known: the registry at {registry.url} has no schema 99"),
    ]
    assert registry.asked.count("GET /schemas/ids/99") == 1 + 1  # by the service, and by `samovar read`
    assert is_equal(service)


def test_p2_what_was_a_dead_letter_stays_one_when_its_schema_is_registered_later(
    tmp_path: Path, registry: TestRegistry
) -> None:
    """P2: a rebuild, and what is read again after a restart, take no message that was put aside at its time."""
    service = make(tmp_path / "s", f"{with_registry(registry)}, schema: plain.avsc")
    service.schema, service.number = PLAIN, registry.add(PLAIN)
    events = [{**event, "ts": START + n * 300} for n, event in enumerate(many(60))]
    known = service.values(events)

    def append(first: int) -> None:
        """Twenty events, of which every third is of the schema with the number 9."""
        numbered = [(framed(9, value[5:]) if n % 3 == 1 else value) for n, value in enumerate(known)]
        keys = [event["card"].encode() for event in events]
        service.append(list(zip(keys, numbered, strict=True))[first : first + 20])

    append(0)
    with service.container() as container:
        assert container.status().counts.dead == 7
        waited = waiting_in(container)
        assert waited == still_waiting([event for n, event in enumerate(events[:20]) if n % 3 != 1])
    registry.add({**PLAIN, "doc": "the same, under another number"}, number=9)
    with service.container() as container:  # reads again what waited, with all that is known today
        assert waiting_in(container) == waited
    append(20)
    with service.container() as container:
        assert container.status().counts.dead == 0
        inputs = [task.processor.position().inputs["purchase"] for task in container.tasks.values()]
        assert all(each.until is not None for input_ in inputs for each in input_.unknown)
    append(40)
    with service.container():
        pass
    assert [code for code, _ in dead(service)] == ["UNKNOWN_SCHEMA"] * 7
    assert is_equal(service)
    before = service.digests()
    wipe(service)
    restored(service, "--from", "source", "--verify")
    assert service.digests() == before
    entries = [each["value"] for each in records(service, "journal") if each["value"]["kind"] == "schema"]
    noted = sorted((each["schema"], each["known"]) for each in entries)
    assert noted == [(9, False), (9, False), (9, True), (9, True)]  # once a partition each


def waiting_in(container: Container) -> list[int]:
    pending = [task.processor.source.buffer.pending.time.tolist() for task in container.tasks.values()]
    return sorted(time for times in pending for time in times)


def still_waiting(events: Sequence[dict[str, Any]]) -> list[int]:
    """The times of those that are less than the slack behind the latest of their partition."""
    parts: dict[int, list[int]] = {}
    for event in events:
        parts.setdefault(partition_of(event["card"].encode(), 2), []).append(event["ts"])
    return sorted(ts for times in parts.values() for ts in times if ts >= max(times) - 2_000)


def test_a_registry_that_does_not_answer_makes_no_dead_letters(tmp_path: Path, registry: TestRegistry) -> None:
    """The container begins again and says why, until the registry is back; then nothing is missing."""
    service = make(tmp_path / "s", with_registry(registry))
    service.schema, service.number = PLAIN, registry.add(PLAIN)
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        if len([each for each in said if "starts again" in each]) == 3:
            registry.trouble = None

    with waiting(service, many(60), tell) as container:
        registry.trouble = 503
        counts = container.run(until_caught_up=True)
    again = [each for each in said if "starts again" in each]
    assert len(again) == 3
    assert f"RegistryUnavailable: the schema registry at {registry.url} does not answer, asked for schema 1" in again[0]
    assert (counts.events, counts.dead) == (60, 0)
    assert records(service, "dead-letters") == []
    assert is_equal(service)


def test_a_registry_that_stays_away_ends_the_container_loudly_with_nothing_lost(
    tmp_path: Path, registry: TestRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "TROUBLE_S", 0.2)
    service = make(tmp_path / "s", with_registry(registry))
    service.schema, service.number = PLAIN, registry.add(PLAIN)
    with waiting(service, many(20)) as container:
        registry.trouble = 500
        with pytest.raises(Refused, match=r"the schema registry at .* does not answer") as refused:
            container.run(until_caught_up=True)
    assert refused.value.code == "log-unusable"
    done = run("read", service.config, "purchase")
    assert done.exit_code == 2
    assert done.stderr.startswith("registry-unavailable: the schema registry at")
    registry.trouble = None
    with service.container() as container:
        assert container.status().counts.events == 20
    assert records(service, "dead-letters") == []


def test_a_wrong_password_is_refused_and_makes_no_dead_letters(tmp_path: Path, registry: TestRegistry) -> None:
    service = make(tmp_path / "s", with_registry(registry))
    service.schema, service.number = PLAIN, registry.add(PLAIN)
    with waiting(service, many(20)) as container:
        registry.password = "another:one"
        with pytest.raises(Refused) as refused:
            container.run(until_caught_up=True)
    assert refused.value.code == "registry-refused"
    registry.password = USER
    assert records(service, "dead-letters") == []


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("how", ["plain", "listed", "registry"])
def test_produce_writes_avro_and_read_shows_it(tmp_path: Path, registry: TestRegistry, how: str) -> None:
    formats = {
        "plain": "format: avro, schema: plain.avsc",
        "listed": "format: avro, schemas: {1: v1.avsc, 300: plain.avsc}",
        "registry": f"{with_registry(registry)}, schema: plain.avsc",
    }
    service = make(tmp_path / "s", formats[how])
    events = many(20)
    lines = tmp_path / "events.jsonl"
    bad = [{**events[0], "amount": "much"}, {**events[0], "shop": "s1"}]
    lines.write_text("".join(json.dumps(event) + "\n" for event in [*events[:10], *bad, *events[10:]]))
    done = run("produce", service.config, "purchase", lines, "--skip-bad")
    assert done.exit_code == 0, done.output
    assert f'{lines}:11: `amount` is "much", and should be double' in done.stderr
    assert f"{lines}:12: `Purchase` has no field `shop`" in done.stderr
    shown = records(service, "purchase")
    assert sorted(shown, key=lambda each: each["value"]["ts"])[0]["value"] == {**events[0], "amount": 1.0}
    assert len(shown) == 20
    with service.container() as container:
        assert (container.status().counts.events, container.status().counts.dead) == (20, 0)
    key = run("state", "get", service.config, "c0")
    assert key.exit_code == 0, key.output
    if how == "registry":
        assert registry.subjects == {"purchase-value": [1]}


def test_produce_stops_at_a_line_that_is_no_value_of_the_schema(tmp_path: Path) -> None:
    service = make(tmp_path / "s", "format: avro, schema: plain.avsc")
    lines = tmp_path / "events.jsonl"
    events = [*many(3), {"card": "c1", "ts": 1}, *many(2)]
    lines.write_text("".join(json.dumps(event) + "\n" for event in events))
    done = run("produce", service.config, "purchase", lines)
    assert done.exit_code == 3
    assert f"{lines}:4: `amount` is missing, and has no default" in done.stderr
    assert len(records(service, "purchase")) == 3


def test_late_events_and_dead_letters_are_shown_as_what_they_are(tmp_path: Path) -> None:
    service = make(tmp_path / "s", "format: avro, schema: plain.avsc")
    service.schema = PLAIN
    late, far = purchase("c1", -500, 3), {**purchase("c1", 0, 4), "ts": START + 10**12}
    service.produce([purchase("c1", 0, 1), late, far])
    service.append([(b"c1", b"\x02")])
    with service.container():
        pass
    assert [each["value"] for each in records(service, "late")] == [{**late, "amount": 3.0}]
    future, broken = records(service, "dead-letters")
    assert future["value"] == {**far, "amount": 4.0}
    assert broken["value"] == "\x02"


# ---------------------------------------------------------------- on Kafka


def test_messages_of_confluents_own_serializer_on_kafka(tmp_path: Path, kafka: str, registry: TestRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url, "basic.auth.user.info": USER})
    serialize = AvroSerializer(client, json.dumps(PLAIN))
    name = f"avro-{random.SystemRandom().randrange(10**9)}"
    service = make(tmp_path / "s", with_registry(registry))
    text = (
        service.config.read_text().replace("service: s", f"service: {name}").replace("slack", f"topic: {name}, slack")
    )
    service.config.write_text(f'{text}log: {{kafka: {{bootstrap: "{kafka}"}}}}\n')
    settings = load_service(service.config)
    where = SerializationContext(name, MessageField.VALUE)
    events = many(60)
    pairs = [(event["card"].encode(), bytes(serialize(event, where) or b"")) for event in events]
    pairs.insert(30, (b"c1", framed(12345, b"?")))
    in_json = Service(make(tmp_path / "json", "format: json").config)
    in_json.process(events)
    log = KafkaLog({"bootstrap.servers": kafka})
    try:
        container = container_of(settings, log, 0, lambda _: None)
        log.append([Append(topic=name, records=pairs)])
        counts = container.run(until_caught_up=True)
    finally:
        log.close()
    assert (counts.events, counts.dead) == (61, 1)
    assert [code for code, _ in dead(service)] == ["UNKNOWN_SCHEMA"]
    found = [(each["rule"], each["key"], each["at"]) for each in alerts(service)]
    assert sorted(found, key=str) == sorted(
        [(each["rule"], each["key"], each["at"]) for each in alerts(in_json)], key=str
    )

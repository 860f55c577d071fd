"""The service file: what it means, its defaults, and errors that show the place and what to write."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from samovar.changelog.kafka import settings as kafka_settings
from samovar.changelog.log import Delivery
from samovar.common.errors import Refused
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.tree import Span
from samovar.service.config import models
from samovar.service.config.loading import BadServiceFile, ServiceFile, allowed_names, load_service
from samovar.service.config.values import is_secret
from samovar.service.topology.ruleset import rules_of, schema_of
from tests.support.project import ROOT

LEAST = """
service: fraud
streams:
  purchase: {key: card}
"""

FULL = """
service: fraud
log: {kafka: {bootstrap: "127.0.0.1:9092", sasl.username: me, sasl.password: "${PW}", socket.keepalive.enable: true}}
streams:
  purchase:
    topic: tx
    format: json
    key: card
    time: ts
    schema: {card: string, amount: double, merchant: string, country: string}
    slack: 2s
    idle: 1m
    partitions: 8
    max_future_skew: 1h
    retention: forever
  visits:
    key: user.id
    type: kind
    schema: {login: {user: {id: string}}, logout: {user: {id: string}}}
rules: [rules/a.yml, rules]
alerts: hits
late: {topic: tardy, retention: 1d}
changelog: {min_compaction_lag: 1h, delete_retention: 48h}
state: /var/lib/samovar
delivery: at_least_once
topics: check
replication: 3
params: {limit: 5}
lists: {risky: [a, b]}
max_events: 100
max_partials: 7
snapshots: {every: 1h, keep: 5}
cache: 1GB
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a service file into a folder with an empty folder of rules."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "a.yml").touch()

    def written(text: str) -> Path:
        path = tmp_path / "service.yml"
        path.write_text(text)
        return path

    return written


def refused(path: Path, **environment: str) -> BadServiceFile:
    with pytest.raises(BadServiceFile) as caught:
        load_service(path, environment)
    return caught.value


def test_defaults(write: Callable[[str], Path], tmp_path: Path) -> None:
    settings = load_service(write(LEAST))
    stream = settings.streams["purchase"]
    assert (stream.topic, stream.time, stream.type, stream.partitions) == ("purchase", "ts", None, None)
    assert (stream.slack_ms, stream.idle_ms, stream.max_future_skew_ms) == (0, 5_000, 86_400_000)
    assert settings.log.embedded == tmp_path / ".samovar" / "log"
    assert settings.rules == (tmp_path / "rules",)
    assert settings.state == tmp_path / ".samovar" / "state"
    own = (settings.alerts, settings.late, settings.dead_letters, settings.changelog, settings.journal)
    assert [topic.topic for topic in own] == [
        "fraud-alerts", "fraud-late", "fraud-dead-letters", "fraud-changelog", "fraud-journal",
    ]  # fmt: skip
    assert (settings.delivery, settings.topics, settings.replication) == (Delivery.EXACTLY_ONCE, "create", 1)
    assert (settings.snapshots.every_ms, settings.snapshots.keep, settings.cache_bytes) == (600_000, 2, 128_000_000)
    assert (settings.path, settings.folder) == (tmp_path / "service.yml", tmp_path)


def test_every_setting(write: Callable[[str], Path], tmp_path: Path) -> None:
    settings = load_service(write(FULL), {"PW": "geheim"})
    stream = settings.streams["purchase"]
    assert (stream.topic, stream.slack_ms, stream.idle_ms, stream.partitions) == ("tx", 2_000, 60_000, 8)
    assert (stream.max_future_skew_ms, stream.retention_ms) == (3_600_000, -1)
    assert settings.log.kafka is not None
    assert settings.log.kafka.librdkafka() == {
        "bootstrap.servers": "127.0.0.1:9092",
        "sasl.username": "me",
        "sasl.password": "geheim",
        "socket.keepalive.enable": "true",
    }
    assert settings.rules == (tmp_path / "rules" / "a.yml", tmp_path / "rules")
    assert settings.alerts.topic == "hits"
    assert (settings.late.topic, settings.late.retention_ms) == ("tardy", 86_400_000)
    assert settings.changelog.topic == "fraud-changelog"
    assert (settings.changelog.min_compaction_lag_ms, settings.changelog.delete_retention_ms) == (
        3_600_000,
        172_800_000,
    )
    assert settings.state == Path("/var/lib/samovar")
    assert (settings.delivery, settings.topics, settings.replication) == (Delivery.AT_LEAST_ONCE, "check", 3)
    assert (settings.params, settings.lists) == ({"limit": 5}, {"risky": ["a", "b"]})
    assert (settings.max_events, settings.max_partials, settings.cache_bytes) == (100, 7, 10**9)


def test_it_is_frozen_and_goes_to_another_process(write: Callable[[str], Path]) -> None:
    settings = load_service(write(FULL), {"PW": "geheim"})
    with pytest.raises(ValidationError):
        settings.service = "other"
    copy = pickle.loads(pickle.dumps(settings))
    assert (copy, copy.path) == (settings, settings.path)


def test_keys_without_a_value_are_as_good_as_none(write: Callable[[str], Path]) -> None:
    settings = load_service(write(LEAST + "alerts:\nparams:\nlog:\nsnapshots: {keep: }\n"))
    assert settings == load_service(write(LEAST))


# ---------------------------------------------------------------- errors

ERRORS = [
    ("service: Card Fraud\nstreams: {a: {key: k}}", 1, 10, "cannot be a service's name", "write `card-fraud`"),
    ("service: a\nstreams: {a: {key: k}}\nalrts: x", 3, 1, "no setting `alrts`", "did you mean `alerts`?"),
    ("service: a\nstreams: {a: {kye: k, key: k}}", 2, 15, "no setting `kye` in `streams.a`", "did you mean `key`?"),
    ("service: a\nstreams:\n  a: {time: t}", 3, 3, "`key` is missing in `streams.a`", None),
    ("streams: {a: {key: k}}", 1, 1, "`service` is missing", None),
    ("service: a", 1, 1, "`streams` is missing", None),
    ("service: a\nstreams: {}", 2, 10, "a service needs a stream", None),
    ("service: a\nstreams: [a]", 2, 10, "`streams` must be a map", None),
    ("service: a\nstreams: {any: {key: k}}", 2, 11, "`any` is every event", None),
    ('service: a\nstreams: {"a b": {key: k}}', 2, 11, "cannot be a stream's name", None),
    ("service: a\nstreams: {a: {key: [k, l]}}", 2, 20, "a record has one key", None),
    ("service: a\nstreams: {a: {key: k, slack: 10min}}", 2, 30, "`10min` is not a time", "write `10m`"),
    ("service: a\nstreams: {a: {key: k, slack: 10}}", 2, 30, "`10` has no unit", "write 10s"),
    ("service: a\nstreams: {a: {key: k, partitions: 0}}", 2, 35, "`0` is no count", None),
    ("service: a\nstreams: {a: {key: k, format: xml}}", 2, 31, "`xml` is none of the choices", None),
    ("service: a\nstreams: {a: {key: k, topic: a/b}}", 2, 30, "cannot be a topic's name", None),
    ("service: a\nstreams: {a: {key: k}}\nalerts: a b", 3, 9, "cannot be a topic's name", None),
    ("service: a\nstreams: {a: {key: k}}\ncache: 256", 3, 8, "`256` has no unit", "write 256MB"),
    ("service: a\nstreams: {a: {key: k}}\ndelivery: exactly-once", 3, 11, "none of the choices", "`exactly_once`"),
    ("service: a\nstreams: {a: {key: k}}\nsnapshots: {evry: 1m}", 3, 13, "no setting `evry`", "`every`"),
    ("service: a\nstreams: {a: {key: k}}\nlists: {x: 5}", 3, 8, "`x` must be a list", None),
    ("service: a\nstreams: {a: {key: k}}\nlog: kafka", 3, 6, "`log` must be a map", None),
    ("service: a\nstreams: {a: {key: k}}\nlog: {}", 3, 6, "a service has one log", None),
    ("service: a\nstreams: {a: {key: k}}\nlog: {kafka: {}}", 3, 7, "`bootstrap` is missing", None),
    ("service: a\nstreams: {a: {key: k}}\nlog: {kafka: {bootstap: x}}", 3, 15, "no setting `bootstap`", "`bootstrap`"),
    ("service: a\nstreams: {a: {key: k}}\nlog: {kafka: {bootstrap: x, group.id: y}}", 3, 29, "sets `group.id` itself",
     "remove it"),
    ("service: a\nstreams: {a: {key: k}}\nlog: {embedded: x, kafka: {bootstrap: y}}", 3, 6, "a service has one log",
     None),
    ("service: a\nstreams: {a: {key: k}}\nreplication: 2", 3, 14, "the embedded log has no replicas", None),
    ("service: a\nstreams: {a: {key: k}}\nrules: nowhere", 3, 8, "there is no ", None),
    ("service: a\nstreams: {a: {key: k}, b: {key: k, topic: a}}", 2, 43, "the topic `a` is that of", None),
    ("service: a\nstreams: {a: {key: k}}\nalerts: a", 3, 9, "the topic `a` is that of `streams.a` too", None),
    ("service: a\nstreams: {a: {key: k, partitions: 2}, b: {key: k, partitions: 3}}", 2, 63, "`b` has 3 part", None),
    ("service: a\nstreams: {a: {key: crd, schema: {card: string}}}", 2, 20, "no field `crd`", "did you mean `card`?"),
    ("service: a\nstreams: {a: {key: k, schema: {k: strng}}}", 2, 35, "`strng` is not a type", "`string`"),
    ("service: a\nstreams: {a: {key: k, type: t, schema: {k: string}}}", 2, 44, "a schema is by event type", None),
    ("service: a\nstreams: {a: {key: k, schema: nowhere.yml}}", 2, 31, "cannot read", None),
    ("service: a\nservice: b\nstreams: {a: {key: k}}", 2, 1, "`service` stands twice", None),
    ("service: [", 1, 11, "not YAML", None),
    ("- a", 1, 1, "a service file maps keys to values", None),
    ("", 1, 1, "a service file maps keys to values", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "message", "hint"), ERRORS)
def test_errors_show_their_place(
    text: str, line: int, column: int, message: str, hint: str | None, write: Callable[[str], Path]
) -> None:
    path = write(text)
    error = refused(path)
    found = [finding for finding in error.findings if message in finding.message]
    assert found, str(error)
    assert (found[0].span.line, found[0].span.column) == (line, column)
    assert hint is None or hint in (found[0].hint or "")
    assert f"{path}:{line}:{column}: error: " in str(error)
    assert "pydantic" not in str(error)
    assert "^" in str(error) or not text


def test_all_errors_at_once_and_each_once(write: Callable[[str], Path]) -> None:
    text = "service: A B\nstreams:\n  a: {key: k, slack: x}\n  b: {slack: 5 s}\ncache: big\nnonsense: 1\n"
    assert [finding.span.line for finding in refused(write(text)).findings] == [1, 3, 4, 4, 5, 6]


def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    assert "samovar init" in str(refused(tmp_path / "none.yml"))
    assert "cannot read the file" in str(refused(tmp_path))
    (tmp_path / "latin.yml").write_bytes(b"service: caf\xe9")
    assert "not UTF-8" in str(refused(tmp_path / "latin.yml"))


def test_a_refusal_has_a_code(write: Callable[[str], Path]) -> None:
    error: Refused = refused(write("service: A"))
    assert error.code == "service-file"


# ---------------------------------------------------------------- variables and secrets

KAFKA = 'service: a\nstreams: {{a: {{key: k}}}}\nlog: {{kafka: {{bootstrap: "{}", sasl.password: "{}"}}}}\n'


def client(text: str, write: Callable[[str], Path], **environment: str) -> dict[str, str]:
    settings = load_service(write(text), environment)
    assert settings.log.kafka is not None
    return settings.log.kafka.librdkafka()


def test_variables_are_replaced_under_log(write: Callable[[str], Path]) -> None:
    text = KAFKA.format("${HOST}:9092", "x${A}-${B}$${C} $D")
    found = client(text, write, HOST="kafka", A="1", B="2")
    assert found == {"bootstrap.servers": "kafka:9092", "sasl.password": "x1-2${C} $D"}


def test_an_unset_variable_is_an_error_at_its_place(write: Callable[[str], Path]) -> None:
    (finding,) = refused(write(KAFKA.format("h", "ab${PASWORD}")), PASSWORD="x").findings
    assert (finding.id, finding.span) == ("unset-variable", Span(3, 49, 3, 59))
    assert finding.hint == "did you mean `PASSWORD`?"


@pytest.mark.parametrize("text", ["${", "${}", "${1}", "${A-B}"])
def test_a_variable_without_a_name_is_an_error(text: str, write: Callable[[str], Path]) -> None:
    (finding,) = refused(write(KAFKA.format("h", text))).findings
    assert finding.id == "bad-variable"


def test_a_lenient_reader_leaves_unset_variables(write: Callable[[str], Path]) -> None:
    settings = load_service(write(KAFKA.format("${HOST}", "${PW}")), {}, lenient=True)
    assert settings.log.kafka is not None
    assert settings.log.kafka.bootstrap == "${HOST}"


def test_secrets_are_in_no_text(write: Callable[[str], Path]) -> None:
    text = KAFKA.format("h", "${PW}").replace("sasl.password", "sasl.password: hunter2, ssl.key.pem: hunter3, any")
    settings = load_service(write(text), {"PW": "geheim"})
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.log.kafka)):
        assert not any(secret in shown for secret in ("geheim", "hunter2", "hunter3"))


def test_the_log_and_the_service_file_agree_on_what_is_secret_and_what_is_theirs() -> None:
    assert models.OWN_CLIENT_SETTINGS.keys() >= kafka_settings.OURS
    assert all(is_secret(f"sasl.{word}.x") for word in kafka_settings.SECRET_WORDS)


def test_an_error_on_a_line_with_a_secret_hides_it(write: Callable[[str], Path]) -> None:
    text = 'service: a\nstreams: {a: {key: k}}\nlog: {kafka: {sasl.password: "hunter2", bootstrap: x, acks: all}}\n'
    shown = str(refused(write(text)))
    assert 'sasl.password: "*******", bootstrap: x' in shown
    assert "hunter2" not in shown


# ---------------------------------------------------------------- rules

RULE = "rule: {id}\nmatch: |\n  {match}\n"


def loaded(write: Callable[[str], Path], streams: str, match: str, extra: str = "") -> ServiceFile:
    path = write(f"service: a\nstreams: {streams}\nrules: rules/a.yml\n")
    (path.parent / "rules" / "a.yml").write_text(RULE.format(id="r", match=match) + extra)
    return load_service(path)


def test_the_streams_are_the_schema_of_the_rules(write: Callable[[str], Path]) -> None:
    streams = "{a: {key: card, schema: {card: string, amount: double}}}"
    settings = loaded(write, streams, "session by card with gap=1m [a where amout > 5]")
    with pytest.raises(Refused) as caught:
        rules_of(settings)
    assert caught.value.code == "rule-errors"
    assert "did you mean `amount`?" in str(caught.value)
    assert f"{settings.folder / 'rules' / 'a.yml'}:3:" in str(caught.value)


def test_a_schema_of_several_streams(write: Callable[[str], Path]) -> None:
    path = write(
        "service: s\nstreams:\n  a: {key: k, time: at, schema: {k: string, n: long}}\n"
        "  b: {key: k, type: kind, schema: {a: {k: string, n: string}, c: {k: {l: string}, k.m: any}}}\n"
    )
    assert schema_of(load_service(path).streams) == Schema(
        {
            "a": {"ts": "any", "kind": "string", "k": "string", "n": "any", "at": "any"},
            "c": {"ts": "any", "kind": "string", "k.l": "string", "k.m": "any"},
        }
    )


def test_a_schema_may_be_a_file(write: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "fields.yml").write_text("card: string\namount: double\n")
    settings = load_service(write("service: s\nstreams: {a: {key: card, schema: fields.yml}}"))
    assert settings.streams["a"].fields == {"card": "string", "amount": "double"}


def test_a_type_that_no_stream_has_is_refused(write: Callable[[str], Path]) -> None:
    settings = loaded(write, "{purchase: {key: card}}", "session by card with gap=1m [purchse where true]")
    with pytest.raises(Refused) as caught:
        rules_of(settings)
    assert (caught.value.code, caught.value.hint) == ("unknown-type", "did you mean `purchase`?")


def test_params_and_lists_reach_the_rules(write: Callable[[str], Path]) -> None:
    match = "session by card with gap=1m [a where n > $least and c in $risky]"
    settings = loaded(write, "{a: {key: card}}", match, "params: {least: 1}\nlists: {risky: [x]}\n")
    text = settings.path.read_text()
    (rule,) = rules_of(load_service(write(text + "params: {least: 7}\nlists: {risky: [y, z]}\n"))).rules
    assert (rule.params, rule.lists) == ({"least": 7}, {"risky": ("y", "z")})
    with pytest.raises(Refused, match="no rule has a parameter `lest`; did you mean `least`"):
        rules_of(load_service(write(text + "params: {lest: 7}\n")))


# ---------------------------------------------------------------- the JSON Schema for editors


def schema_names(node: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """The settings that a JSON Schema allows, and what is in them."""
    if "$ref" in node:
        return schema_names(root["$defs"][node["$ref"].removeprefix("#/$defs/")], root)
    found = {name: schema_names(value, root) for name, value in node.get("properties", {}).items()}
    for one in node.get("anyOf", []):
        found |= schema_names(one, root)
    return found


def model_names(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_the_editors_schema_knows_the_same_settings() -> None:
    schema = json.loads((ROOT / "service" / "config" / "service.schema.json").read_text())
    names = schema_names(schema, schema)
    assert set(names) == model_names(ServiceFile)
    assert set(schema_names(schema["$defs"]["stream"], schema)) == model_names(models.Stream)
    for key in ("alerts", "late", "dead_letters", "changelog", "journal", "snapshots", "log"):
        assert set(names[key]) == set(allowed_names((key,))), key


def test_the_editors_schema_has_the_same_defaults() -> None:
    schema = json.loads((ROOT / "service" / "config" / "service.schema.json").read_text())
    stream = {
        name: part["default"] for name, part in schema["$defs"]["stream"]["properties"].items() if "default" in part
    }
    full = {name: part["default"] for name, part in schema["properties"].items() if "default" in part}
    written = ServiceFile.model_validate({"service": "a", "streams": {"s": {"key": "k", **stream}}, **full})
    assert written == ServiceFile.model_validate({"service": "a", "streams": {"s": {"key": "k"}}})

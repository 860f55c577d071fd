"""The service file as frozen data. What each key means to a reader is in docs/service-file.md and, for editors, in
service.schema.json; here stand names, kinds and defaults. Relative paths are already resolved, times are in ms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, ValidationInfo, field_validator, model_validator

from samovar.changelog.log import Delivery
from samovar.common.suggest import nearest
from samovar.common.tunables import Tunables
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_MATCHES, MAX_PARTIALS
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.yaml import plain_data, read
from samovar.service.config.avro import AvroSchemas, RegistrySettings, SchemaFile, fields_of
from samovar.service.config.http import HttpSettings
from samovar.service.config.run import RunSettings
from samovar.service.config.sinks import SinkName, SinkSettings
from samovar.service.config.tasks import TaskName, TaskSettings
from samovar.service.config.tunables import TunableSettings
from samovar.service.config.types import (
    Count,
    DeliveryName,
    DurationMs,
    FieldName,
    FieldNames,
    Model,
    RelativePath,
    RelativePaths,
    RetentionMs,
    ServiceName,
    SizeBytes,
    TopicName,
    is_secret,
    is_service_name,
    read_choice,
    read_client_value,
    read_flag,
    read_path,
    revealed,
    shown,
    wrong,
)

Format: TypeAlias = Literal["json", "avro"]
STREAM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,199}\Z")
S, H, D = 1_000, 3_600_000, 86_400_000

# The service sets these itself: another value would break a promise.
OWN_CLIENT_SETTINGS = {
    "bootstrap.servers": "write it as `bootstrap`",
    "group.id": "the group is named as the service",
    "group.instance.id": "it is fixed a container",
    "group.protocol": "a restart needs the classic protocol",
    "partition.assignment.strategy": "partition p of all topics stays together",
    "partitioner": "records are placed by murmur2",
    "transactional.id": "it is fixed a container",
    "enable.auto.commit": "offsets are committed with the output",
    "enable.auto.offset.store": "offsets are committed with the output",
    "enable.idempotence": "it is always on",
    "enable.partition.eof": "the end of a partition is always told",
    "delivery.report.only.error": "every record's offset is needed",
    "acks": "it is always `all`",
    "isolation.level": "only committed records are read",
    "auto.offset.reset": "a lost position is refused, never guessed",
}


def read_client_name(name: str) -> str:
    if name in OWN_CLIENT_SETTINGS:
        wrong(f"the service sets `{name}` itself", hint=f"remove it: {OWN_CLIENT_SETTINGS[name]}")
    if nearest(name, ["bootstrap"]) or name in ("brokers", "servers"):
        wrong(f"the Kafka client has no setting `{name}`", hint="did you mean `bootstrap`?")
    return name


ClientSetting: TypeAlias = Annotated[str, BeforeValidator(read_client_name)]
ClientValue: TypeAlias = Annotated[Any, BeforeValidator(read_client_value)]


class KafkaSettings(Model):
    """Where Kafka is, and how to speak to it: `client` holds librdkafka's own settings, secrets hidden."""

    bootstrap: str
    client: Mapping[ClientSetting, ClientValue] = {}

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return wrong(f"{shown(data)} is not a map", expected='kafka: {bootstrap: "host:9092"}')
        address = data.get("bootstrap")
        others = {name: value for name, value in data.items() if name != "bootstrap" and value is not None}
        return {"bootstrap": address, "client": others} if address is not None else {"client": others}

    @field_validator("bootstrap", mode="before")
    @classmethod
    def _address(cls, value: Any) -> str:
        parts = [revealed(part) for part in (value if isinstance(value, list) else [value])]
        if parts and all(isinstance(part, str) and part.strip() for part in parts):
            return ",".join(parts)
        return wrong(f"{shown(value)} is not an address", expected="host:9092, or several with commas between them")

    @field_validator("client", mode="after")
    @classmethod
    def _hidden(cls, settings: Mapping[str, str | SecretStr]) -> dict[str, str | SecretStr]:
        return {name: SecretStr(revealed(value)) if is_secret(name) else value for name, value in settings.items()}

    def librdkafka(self) -> dict[str, str]:
        """All settings for the client, secrets in the clear: never to be logged or shown."""
        return {"bootstrap.servers": self.bootstrap} | {name: revealed(value) for name, value in self.client.items()}


class LogSettings(Model):
    """One of the two logs."""

    embedded: RelativePath | None = None
    kafka: KafkaSettings | None = None

    @model_validator(mode="after")
    def _one(self) -> LogSettings:
        if (self.embedded is None) == (self.kafka is None):
            wrong("a service has one log", expected='log: {embedded: PATH} or log: {kafka: {bootstrap: "host:9092"}}')
        return self


def read_map(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return wrong(f"{shown(value)} is not a map", expected="names to values: {card: string, amount: double}")


def read_lists(value: Any) -> Mapping[str, Any]:
    for name, items in read_map(value).items():
        if not isinstance(items, list):
            wrong(f"`{name}` must be a list", expected=f"{name}: [a, b]")
    return dict(value)


def read_schema(value: Any, info: ValidationInfo) -> Mapping[str, Any] | None:
    """Fields and their types, here or in a file of YAML or JSON. An Avro schema says them too."""
    if info.data.get("format") == "avro":
        return fields_of(info.data.get("avro"), info.data.get("type"))
    if not isinstance(value, str):
        return read_map(value)
    path = read_path(value, info)
    report = Report(str(path))
    try:
        node = read(whole(path.read_text("utf-8-sig")), report)
    except (OSError, UnicodeDecodeError) as error:
        wrong(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")
    for finding in report.findings():
        wrong(f"{path}:{finding.span.line}:{finding.span.column}: {finding.message}", hint=finding.hint)
    return read_map(None if node is None else plain_data(node))


def read_stream_name(name: str) -> str:
    if name == "any":
        wrong("`any` is every event in rules: a stream cannot be called so")
    if not STREAM_NAME.match(name):
        wrong(f"{shown(name)} cannot be a stream's name", expected="letters, digits, `_`, `-` and `.`")
    return name


class Stream(Model):
    """One input: a topic of events and how to read them. Without `type` the stream's name is every event's type."""

    topic: TopicName
    format: Annotated[Format, BeforeValidator(lambda value: read_choice(value, get_args(Format)))] = "json"
    key: FieldName
    time: FieldName = "ts"
    type: FieldName | None = None
    avro: SchemaFile = Field(None, alias="schema")  # both are read from `schema`
    fields: Annotated[Mapping[str, Any] | None, BeforeValidator(read_schema)] = Field(None, alias="schema")
    schemas: AvroSchemas | None = None
    registry: RegistrySettings | None = None
    slack_ms: DurationMs = Field(0, alias="slack")
    idle_ms: DurationMs = Field(5 * S, alias="idle")
    max_future_skew_ms: DurationMs = Field(24 * H, alias="max_future_skew")
    partitions: Count | None = None
    repartition: Annotated[bool, BeforeValidator(read_flag)] | None = None  # None: where rules need it; and checked
    retention_ms: RetentionMs = Field(7 * D, alias="retention")
    pii: FieldNames = ()


class OutputTopic(Model):
    """A topic that the service writes."""

    topic: TopicName
    retention_ms: RetentionMs = Field(7 * D, alias="retention")


class AlertsTopic(OutputTopic):
    retention_ms: RetentionMs = Field(30 * D, alias="retention")


class DeadLettersTopic(OutputTopic):
    retention_ms: RetentionMs = Field(30 * D, alias="retention")


class ChangelogTopic(Model):
    """Compacted. Within the compaction lag a restore to the past is exact; tombstones stay for the delete retention."""

    topic: TopicName
    min_compaction_lag_ms: DurationMs = Field(24 * H, alias="min_compaction_lag")
    delete_retention_ms: DurationMs = Field(24 * H, alias="delete_retention")


class JournalTopic(Model):
    """Never compacted and never shortened: a replay needs all of it."""

    topic: TopicName


class SnapshotSettings(Model):
    every_ms: DurationMs = Field(600 * S, alias="every")
    keep: Count = 2


class StormLimit(Model):
    """How many alerts a rule may raise in a partition, in a time of the events."""

    alerts: Count
    per_ms: DurationMs = Field(60 * S, alias="per")


class Storm(StormLimit):
    """The limit of all rules, and those of single ones."""

    rules: Mapping[str, StormLimit] = {}


class ViewSettings(Model):
    """Views: where their files are, where they are published, and how many versions of each stay."""

    files: RelativePaths
    store: RelativePath
    keep: Count = 5

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """A folder alone is that of the files."""
        given = data if isinstance(data, Mapping) else {"files": data}
        return {"files": "views", "store": ".samovar/views"} | {k: v for k, v in given.items() if v is not None}


TOPICS_OF_A_SERVICE = {
    "alerts": "alerts",
    "late": "late",
    "dead_letters": "dead-letters",
    "changelog": "changelog",
    "journal": "journal",
}
TopicsMode: TypeAlias = Literal["create", "check"]


class ServiceFile(Model):
    """A service: its log, its streams, its rules and its topics. The source of truth for every setting."""

    service: ServiceName
    log: LogSettings
    streams: Mapping[Annotated[str, BeforeValidator(read_stream_name)], Stream]
    rules: RelativePaths
    params: Annotated[Mapping[str, Any], BeforeValidator(read_map)] = {}
    lists: Annotated[Mapping[str, Any], BeforeValidator(read_lists)] = {}
    tasks: Mapping[TaskName, TaskSettings] = {}
    alerts: AlertsTopic
    late: OutputTopic
    dead_letters: DeadLettersTopic
    changelog: ChangelogTopic
    journal: JournalTopic
    state: RelativePath
    delivery: DeliveryName = Delivery.EXACTLY_ONCE
    topics: Annotated[TopicsMode, BeforeValidator(lambda value: read_choice(value, ("create", "check")))] = "create"
    replication: Count = 1
    max_events: Count = MAX_EVENTS
    max_partials: Count = MAX_PARTIALS
    max_matches: Count = MAX_MATCHES
    snapshots: SnapshotSettings = SnapshotSettings.model_validate({})
    storm: Storm | None = None
    views: ViewSettings
    cache_bytes: SizeBytes = Field(128 * 10**6, alias="cache")
    sinks: Mapping[SinkName, SinkSettings] = {}
    http: HttpSettings = HttpSettings.model_validate({})
    run: RunSettings = RunSettings.model_validate({})
    tunable: TunableSettings = Field(TunableSettings.model_validate({}), alias="tunables")
    _path: Path = PrivateAttr(default=Path("service.yml"))
    _attached: object | None = PrivateAttr(default=None)

    @property
    def tunables(self) -> Tunables:
        """How much is done at once."""
        return self.tunable.tunables(self.cache_bytes, self.snapshots.every_ms)

    @property
    def path(self) -> Path:
        """The file itself."""
        return self._path

    @property
    def folder(self) -> Path:
        return self._path.parent

    @property
    def attached(self) -> object | None:
        """What a layer above keeps with a copy of the settings: the rules that were published since."""
        return self._attached

    def with_attached(self, attached: object) -> Self:
        copy = self.model_copy()
        copy._attached = attached
        return copy

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Names of topics come from the service's and the streams' names."""
        if not isinstance(data, Mapping):
            return data
        full: dict[str, Any] = {"log": {"embedded": ".samovar/log"}, "rules": "rules", "state": ".samovar/state"}
        full["views"] = {}
        full |= {name: value for name, value in data.items() if value is not None}
        if full["log"] == "embedded":
            full["log"] = {"embedded": ".samovar/log"}
        name = full.get("service") if is_service_name(full.get("service")) else "service"
        for key, ending in TOPICS_OF_A_SERVICE.items():
            full[key] = _with_topic(full.get(key), f"{name}-{ending}")
        if isinstance(streams := full.get("streams"), Mapping):
            full["streams"] = {
                stream: _with_topic(value, stream if STREAM_NAME.match(stream) else "stream")
                for stream, value in streams.items()
            }
        return full


def _with_topic(value: Any, name: str) -> Any:
    """A topic's settings, or its name alone; nothing at all is the usual name."""
    if isinstance(value, Mapping):
        return {**value, "topic": name} if value.get("topic") is None else value
    return {"topic": name if value is None else value}

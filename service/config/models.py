"""The service file as frozen data. What each key means to a reader is in docs/service-file.md and, for editors, in
service.schema.json; here stand names, kinds and defaults. Relative paths are already resolved, times are in ms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from samovar.changelog.log import Delivery
from samovar.common.suggest import did_you_mean, nearest
from samovar.common.tunables import DEFAULTS, Tunables
from samovar.patterns.engine.avro.schema import AvroSchema, AvroSchemaError, kinds, parse_schema, symbols_of
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_MATCHES, MAX_PARTIALS
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.yaml import plain_data, read
from samovar.service.config import values
from samovar.service.config.values import Model, is_secret, read_path, revealed, shown, wrong

S, H, D = 1_000, 3_600_000, 86_400_000

# ---------------------------------------------------------------- the log

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


class KafkaSettings(Model):
    """Where Kafka is, and how to speak to it: `client` holds librdkafka's own settings, secrets hidden."""

    bootstrap: str
    client: Mapping[
        Annotated[str, BeforeValidator(read_client_name)], Annotated[Any, BeforeValidator(values.read_client_value)]
    ] = {}

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            wrong(f"{shown(data)} is not a map", expected='kafka: {bootstrap: "host:9092"}')
        return with_client(data, "bootstrap")

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


def with_client(data: Mapping[str, Any], address: str) -> dict[str, Any]:
    """The address, and next to it all other settings together as `client`."""
    given = {name: value for name, value in data.items() if value is not None}
    own = {address: given.pop(address)} if address in given else {}
    return own | {"client": given}


class LogSettings(Model):
    """One of the two logs."""

    embedded: values.RelativePath | None = None
    kafka: KafkaSettings | None = None

    @model_validator(mode="after")
    def _one(self) -> LogSettings:
        if (self.embedded is None) == (self.kafka is None):
            wrong("a service has one log", expected='log: {embedded: PATH} or log: {kafka: {bootstrap: "host:9092"}}')
        return self


# ---------------------------------------------------------------- streams and their schemas

REGISTRY_NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
REGISTRY_SETTINGS = (
    *REGISTRY_NUMBERS,
    *"""basic.auth.user.info bearer.auth.client.id bearer.auth.client.secret bearer.auth.credentials.source
    bearer.auth.identity.pool.id bearer.auth.issuer.endpoint.url bearer.auth.logical.cluster bearer.auth.scope
    bearer.auth.token proxy ssl.ca.location ssl.certificate.location ssl.key.location ssl.key.password""".split(),
)


class RegistrySettings(Model):
    """Where a schema registry is, and how to speak to it: `client` holds its client's own settings, secrets hidden."""

    url: str
    client: Mapping[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, data: Any) -> Any:
        if isinstance(data, str | SecretStr):
            return {"url": data}
        if not isinstance(data, Mapping):
            wrong(f"{shown(data)} is not a registry", expected='registry: {url: "http://registry:8081"}')
        return with_client(data, "url")

    @field_validator("url", mode="before")
    @classmethod
    def _address(cls, value: Any) -> str:
        text = revealed(value) if isinstance(value, str | SecretStr) else ""
        parts = [urlsplit(part.strip()) for part in text.split(",")]
        if not all(part.scheme in ("http", "https") and part.netloc for part in parts):
            wrong("this is not an address of a registry", expected="http://registry:8081, or several with commas")
        if any("@" in part.netloc for part in parts):
            wrong("an address with a password is shown in messages", hint="write it as `basic.auth.user.info: ${NAME}`")
        return text

    @field_validator("client", mode="before")
    @classmethod
    def _known(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in REGISTRY_SETTINGS:
                tip = did_you_mean(name, REGISTRY_SETTINGS)
                expected = None if tip else f"url, {', '.join(REGISTRY_SETTINGS)}"
                wrong(f"the registry's client has no setting `{name}`", expected, tip)
            if name not in REGISTRY_NUMBERS:
                text = values.read_client_value(value)
                found[name] = SecretStr(revealed(text)) if is_secret(name) else text
            elif isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                found[name] = value
            else:
                wrong(f"`{name}` is {shown(value)}", expected="a number, such as 5")
        return found

    def settings(self) -> dict[str, Any]:
        """All settings for the client, secrets in the clear: never to be logged or shown."""
        return {"url": self.url} | {name: revealed(value) for name, value in self.client.items()}


def read_avro(value: Any, info: ValidationInfo) -> AvroSchema | None:
    """The schema of a stream whose format is Avro: a file, or written out here. Of another stream it is not ours."""
    if info.data.get("format") != "avro":
        return None
    return read_schema_file(value, info) if isinstance(value, str) else parse_avro(json.dumps(value))


def read_schemas(value: Any, info: ValidationInfo) -> Mapping[int, AvroSchema]:
    if not isinstance(value, Mapping) or not value:
        wrong(f"{shown(value)} is not a map", expected="schemas: {1: purchase-1.avsc, 2: purchase-2.avsc}")
    found = {}
    for name, file in value.items():
        if not name.isdecimal() or int(name) >= 2**32:
            wrong(f"{shown(name)} cannot be a schema's id", expected="a whole number")
        found[int(name)] = read_schema_file(file, info)
    return found


def read_schema_file(value: Any, info: ValidationInfo) -> AvroSchema:
    path = read_path(value, info)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        wrong(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", expected="a file of an Avro schema")
    return parse_avro(text, f"{path}: ")


def parse_avro(text: str, where: str = "") -> AvroSchema:
    try:
        return parse_schema(text)
    except AvroSchemaError as error:
        wrong(f"{where}no Avro schema: {error}")


def read_fields_schema(value: Any, info: ValidationInfo) -> Mapping[str, Any] | None:
    """The fields that rules may read and their types: written here, in a file, or known from an Avro schema."""
    if info.data.get("format") == "avro":
        schema, type_field = info.data.get("avro"), info.data.get("type")
        fields = None if schema is None else kinds(schema)
        if schema is None or fields is None or type_field is None:
            return fields
        symbols = symbols_of(schema, type_field)
        return None if symbols is None else dict.fromkeys(symbols, fields)
    if not isinstance(value, str):
        return values.read_map(value)
    path = read_path(value, info)
    report = Report(str(path))
    try:
        node = read(whole(path.read_text("utf-8-sig")), report)
    except (OSError, UnicodeDecodeError) as error:
        wrong(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")
    for finding in report.findings():
        wrong(f"{path}:{finding.span.line}:{finding.span.column}: {finding.message}", hint=finding.hint)
    return values.read_map(None if node is None else plain_data(node))


class Stream(Model):
    """One input: a topic of events and how to read them. Without `type` the stream's name is every event's type."""

    topic: values.TopicName
    format: Annotated[Literal["json", "avro"], values.choice("json", "avro")] = "json"
    key: values.FieldName
    time: values.FieldName = "ts"
    type: values.FieldName | None = None
    # Both are read from `schema`.
    avro: Annotated[InstanceOf[AvroSchema] | None, BeforeValidator(read_avro)] = Field(None, alias="schema")
    fields: Annotated[Mapping[str, Any] | None, BeforeValidator(read_fields_schema)] = Field(None, alias="schema")
    schemas: Annotated[Mapping[int, InstanceOf[AvroSchema]], BeforeValidator(read_schemas)] | None = None
    registry: RegistrySettings | None = None
    slack_ms: values.DurationMs = Field(0, alias="slack")
    idle_ms: values.DurationMs = Field(5 * S, alias="idle")
    max_future_skew_ms: values.DurationMs = Field(24 * H, alias="max_future_skew")
    partitions: values.Count | None = None
    repartition: values.Flag | None = None  # None: where rules need it; and checked
    retention_ms: values.RetentionMs = Field(7 * D, alias="retention")
    archive: values.Flag = True  # where the service has one
    pii: values.FieldNames = ()


# ---------------------------------------------------------------- tasks, sinks, HTTP, containers


class EmitSettings(Model):
    """Where a task writes: the stream of that name, or a topic of its own."""

    topic: values.TopicName | None = None
    retention_ms: values.RetentionMs = Field(7 * D, alias="retention")

    @model_validator(mode="before")
    @classmethod
    def _topic_alone(cls, data: Any) -> Any:
        return data if isinstance(data, Mapping) else {"topic": data}


class StoreSettings(Model):
    """A named store. Rows go after their time to live, in event time."""

    ttl_ms: values.DurationMs | None = Field(None, alias="ttl")


class TaskSettings(Model):
    """A class of the user's at work on streams, with stores of its own. For readers: docs/tasks.md."""

    source: values.ClassName = Field(alias="class")
    streams: values.StreamNames
    emits: Annotated[Mapping[values.PlainName, EmitSettings], BeforeValidator(values.read_named)] = {}
    stores: Annotated[Mapping[values.PlainName, StoreSettings], BeforeValidator(values.read_named)] = {}
    window_ms: values.DurationMs | None = Field(None, alias="window")
    params: Mapping[str, Any] = {}


class SinkSettings(Model):
    """Where alerts go next to their topic: a webhook (`secret` signs) or a file. The API never sets an address."""

    url: values.SecretUrl | None = None
    secret: values.SigningSecret | None = None
    file: values.RelativePath | None = None
    rules: values.RuleNames = ()
    timeout_ms: values.DurationMs = Field(10 * S, alias="timeout")
    max_backoff_ms: values.DurationMs = Field(60 * S, alias="max_backoff")

    @model_validator(mode="after")
    def _one(self) -> SinkSettings:
        if (self.url is None) == (self.file is None):
            wrong("a sink is a webhook or a file", expected="url: https://host/path, or file: alerts.jsonl")
        if self.secret is not None and self.url is None:
            wrong("only a webhook is signed", hint="remove `secret`, or write `url`")
        return self


class TlsSettings(Model):
    """What this process shows, and by whose word it believes other nodes. PEM files."""

    cert: values.RelativePath
    key: values.RelativePath
    ca: values.RelativePath | None = None


class HttpSettings(Model):
    """Limits of the HTTP API: of one request, of one client, of a browser's login; TLS, and proxies."""

    max_request_bytes: values.SizeBytes = Field(10 * 10**6, alias="max_request")
    requests_per_s: values.Count = 200
    max_connections: values.Count = 1_000
    header_timeout_ms: values.DurationMs = Field(10 * S, alias="header_timeout")
    body_timeout_ms: values.DurationMs = Field(60 * S, alias="body_timeout")
    session_ms: values.DurationMs = Field(12 * H, alias="session")
    session_idle_ms: values.DurationMs = Field(H, alias="session_idle")
    trusted_proxies: values.Networks = ()
    tls: TlsSettings | None = None

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @field_validator("header_timeout_ms", "body_timeout_ms", "session_ms", "session_idle_ms")
    @classmethod
    def _some(cls, value: int, info: ValidationInfo) -> int:
        name = (info.field_name or "").removesuffix("_ms")
        return value if value > 0 else wrong(f"`{name}` must be longer than nothing", expected="10s, 1m or 1h")


class RunSettings(Model):
    """How a container runs, or several processes: what `samovar run` also takes as flags."""

    slot: values.Slot = 0
    containers: values.Count = 1
    leave: values.Flag = False
    http: values.HostPort | None = None
    advertise: values.NodeUrl | None = None
    metrics: values.HostPort | None = None
    log_form: Annotated[Literal["text", "json"], values.choice("text", "json")] = Field("text", alias="log")


_KINDS = {int: values.Count, bool: values.Flag}
_TUNABLES: dict[str, Any] = {
    name: (values.PositiveBytes if name.endswith("_bytes") else _KINDS[type(default)], default)
    for name, default in asdict(DEFAULTS).items()
    if name not in ("cache_bytes", "snapshot_every_ms")  # these have places of their own in the file
}


class TunableSettings(create_model("Tunables", __base__=Model, **_TUNABLES)):  # type: ignore[misc] # made of a table
    """How much is done at once; no result depends on it. samovar.common.tunables says what each of them is."""


# ---------------------------------------------------------------- the service


class OutputTopic(Model):
    """A topic that the service writes."""

    topic: values.TopicName
    retention_ms: values.RetentionMs = Field(7 * D, alias="retention")


class KeptTopic(OutputTopic):
    """A topic for people: alerts and dead letters."""

    retention_ms: values.RetentionMs = Field(30 * D, alias="retention")


class ChangelogTopic(Model):
    """Compacted. Within the compaction lag a restore to the past is exact; tombstones stay for the delete retention."""

    topic: values.TopicName
    min_compaction_lag_ms: values.DurationMs = Field(24 * H, alias="min_compaction_lag")
    delete_retention_ms: values.DurationMs = Field(24 * H, alias="delete_retention")


class JournalTopic(Model):
    """Never compacted and never shortened: a replay needs all of it."""

    topic: values.TopicName


class SnapshotSettings(Model):
    every_ms: values.DurationMs = Field(600 * S, alias="every")
    keep: values.Count = 2


class StormLimit(Model):
    """How many alerts a rule may raise in a partition, in a span of event time."""

    alerts: values.Count
    per_ms: values.DurationMs = Field(60 * S, alias="per")


class Storm(StormLimit):
    """The limit of all rules, and those of single ones."""

    rules: Mapping[str, StormLimit] = {}


class ArchiveSettings(Model):
    """Where records are copied before retention takes them, and how: `client` holds settings of the file system."""

    to: values.FolderOrUrl
    every_ms: values.DurationMs = Field(H, alias="every")
    keep_ms: values.DurationMs | None = Field(None, alias="keep")
    changelog: values.Flag = True
    client: Mapping[str, Annotated[Any, BeforeValidator(values.read_client_value)]] = Field({}, alias="options")

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, data: Any) -> Any:
        """A folder or an address alone is where it is."""
        return data if isinstance(data, Mapping) else {"to": data}

    @field_validator("client", mode="after")
    @classmethod
    def _hidden(cls, settings: Mapping[str, str | SecretStr]) -> dict[str, str | SecretStr]:
        return {name: SecretStr(revealed(value)) if is_secret(name) else value for name, value in settings.items()}

    def options(self) -> dict[str, str]:
        """All settings of the file system, secrets in the clear: never to be logged or shown."""
        return {name: revealed(value) for name, value in self.client.items()}


class ViewSettings(Model):
    """Views: where their files are, where they are published, and how many versions of each stay."""

    files: values.RelativePaths
    store: values.RelativePath
    format: Annotated[Literal["parquet", "delta"], values.choice("parquet", "delta")] = "parquet"
    keep: values.Count = 5
    tail_records: values.Count = 100_000

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """A folder alone is that of the files."""
        given = data if isinstance(data, Mapping) else {"files": data}
        return {"files": "views", "store": ".samovar/views"} | {k: v for k, v in given.items() if v is not None}


class TableSettings(Model):
    """A topic's rows as a Delta table: where it is, and how long one can travel back in it."""

    to: Annotated[str, Field(min_length=1)] | None = None
    keep_ms: values.DurationMs = Field(7 * D, alias="keep")


# By setting, how the topic is called after the service.
TOPICS_OF_A_SERVICE = {key: key.replace("_", "-") for key in ("alerts", "late", "dead_letters", "changelog", "journal")}


class ServiceFile(Model):
    """A service: its log, its streams, its rules and its topics. The source of truth for every setting."""

    service: values.ServiceName
    log: LogSettings
    streams: Mapping[values.StreamName, Stream]
    rules: values.RelativePaths
    params: Annotated[Mapping[str, Any], BeforeValidator(values.read_map)] = {}
    lists: Annotated[Mapping[str, Any], BeforeValidator(values.read_lists)] = {}
    tasks: Mapping[values.TaskName, TaskSettings] = {}
    alerts: KeptTopic
    late: OutputTopic
    dead_letters: KeptTopic
    changelog: ChangelogTopic
    journal: JournalTopic
    state: values.RelativePath
    delivery: values.DeliveryName = Delivery.EXACTLY_ONCE
    topics: Annotated[Literal["create", "check"], values.choice("create", "check")] = "create"
    replication: values.Count = 1
    max_events: values.Count = MAX_EVENTS
    max_partials: values.Count = MAX_PARTIALS
    max_matches: values.Count = MAX_MATCHES
    snapshots: SnapshotSettings = SnapshotSettings.model_validate({})
    storm: Storm | None = None
    views: ViewSettings
    archive: ArchiveSettings | None = None
    tables: Annotated[Mapping[values.PlainName, TableSettings], BeforeValidator(values.read_named)] = {}
    cache_bytes: values.SizeBytes = Field(128 * 10**6, alias="cache")
    sinks: Mapping[values.SinkName, SinkSettings] = {}
    http: HttpSettings = HttpSettings.model_validate({})
    run: RunSettings = RunSettings.model_validate({})
    tunable: TunableSettings = Field(TunableSettings.model_validate({}), alias="tunables")
    _path: Path = PrivateAttr(default=Path("service.yml"))
    _attached: object | None = PrivateAttr(default=None)

    @property
    def tunables(self) -> Tunables:
        """How much is done at once."""
        own = self.tunable.model_dump()
        return Tunables(**own, cache_bytes=self.cache_bytes, snapshot_every_ms=self.snapshots.every_ms)

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
        name = full.get("service") if values.is_service_name(full.get("service")) else "service"
        for key, ending in TOPICS_OF_A_SERVICE.items():
            full[key] = _with_topic(full.get(key), f"{name}-{ending}")
        if isinstance(streams := full.get("streams"), Mapping):
            full["streams"] = {
                stream: _with_topic(value, stream if values.is_stream_name(stream) else "stream")
                for stream, value in streams.items()
            }
        return full


def _with_topic(value: Any, name: str) -> Any:
    """A topic's settings, or its name alone; nothing at all is the usual name."""
    if isinstance(value, Mapping):
        return {**value, "topic": name} if value.get("topic") is None else value
    return {"topic": name if value is None else value}


def emit_topics(settings: ServiceFile) -> dict[str, dict[str, str]]:
    """By task, the topics that it writes and no stream is: by the names it knows them by."""
    found: dict[str, dict[str, str]] = {}
    for name, task in settings.tasks.items():
        own = {to: emit for to, emit in task.emits.items() if to not in settings.streams}
        found[name] = {to: emit.topic or f"{settings.service}-{to}" for to, emit in own.items()}
    return found

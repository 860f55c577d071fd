"""Avro in the service file: schemas from files, and a schema registry. What each key means: docs/service-file.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, InstanceOf, SecretStr, ValidationInfo, field_validator, model_validator

from samovar.common.suggest import did_you_mean
from samovar.patterns.engine.avro.schema import AvroSchema, AvroSchemaError, kinds, parse_schema, symbols_of
from samovar.service.config.types import Model, is_secret, read_client_value, read_path, revealed, shown, wrong

MAX_ID = 2**32 - 1
NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
CLIENT_SETTINGS = (
    *NUMBERS,
    "basic.auth.user.info",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.credentials.source",
    "bearer.auth.identity.pool.id",
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.logical.cluster",
    "bearer.auth.scope",
    "bearer.auth.token",
    "proxy",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
)


def read_avro(value: Any, info: ValidationInfo) -> AvroSchema | None:
    """The schema of a stream whose format is Avro: a file, or written out here. Of another stream it is not ours."""
    if info.data.get("format") != "avro":
        return None
    if isinstance(value, str):
        return schema_file(read_path(value, info))
    return _parsed(json.dumps(value), "")


def read_schemas(value: Any, info: ValidationInfo) -> Mapping[int, AvroSchema]:
    if not isinstance(value, Mapping) or not value:
        wrong(f"{shown(value)} is not a map", expected="schemas: {1: purchase-1.avsc, 2: purchase-2.avsc}")
    found = {}
    for name, file in value.items():
        if not name.isdecimal() or int(name) > MAX_ID:
            wrong(f"{shown(name)} cannot be a schema's id", expected="a whole number")
        found[int(name)] = schema_file(read_path(file, info))
    return found


def schema_file(path: Path) -> AvroSchema:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        wrong(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", expected="a file of an Avro schema")
    return _parsed(text, f"{path}: ")


def _parsed(text: str, where: str) -> AvroSchema:
    try:
        return parse_schema(text)
    except AvroSchemaError as error:
        wrong(f"{where}no Avro schema: {error}")


def fields_of(schema: AvroSchema | None, type_field: str | None) -> Mapping[str, Any] | None:
    """What rules may read, as a schema of JSON events says it; None where nothing is known."""
    fields = None if schema is None else kinds(schema)
    if fields is None or schema is None or type_field is None:
        return fields
    symbols = symbols_of(schema, type_field)
    return None if symbols is None else dict.fromkeys(symbols, fields)


SchemaFile: TypeAlias = Annotated[InstanceOf[AvroSchema] | None, BeforeValidator(read_avro)]
AvroSchemas: TypeAlias = Annotated[Mapping[int, InstanceOf[AvroSchema]], BeforeValidator(read_schemas)]


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
            return wrong(f"{shown(data)} is not a registry", expected='registry: {url: "http://registry:8081"}')
        others = {name: value for name, value in data.items() if name != "url" and value is not None}
        return {"client": others} | ({"url": data["url"]} if data.get("url") is not None else {})

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
            if name not in CLIENT_SETTINGS:
                tip = did_you_mean(name, CLIENT_SETTINGS)
                expected = None if tip else f"url, {', '.join(CLIENT_SETTINGS)}"
                wrong(f"the registry's client has no setting `{name}`", expected, tip)
            if name in NUMBERS:
                found[name] = _number(name, value)
            else:
                text = read_client_value(value)
                found[name] = SecretStr(revealed(text)) if is_secret(name) else text
        return found

    def settings(self) -> dict[str, Any]:
        """All settings for the client, secrets in the clear: never to be logged or shown."""
        plain = {
            name: revealed(value) if isinstance(value, SecretStr) else value for name, value in self.client.items()
        }
        return {"url": self.url} | plain


def _number(name: str, value: Any) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return value
    return wrong(f"`{name}` is {shown(value)}", expected="a number, such as 5")

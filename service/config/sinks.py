"""Where alerts go next to their topic: `sinks` of a service file. An address is given here only, never by the API."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from samovar.service.config.types import DurationMs, Model, RelativePath, is_service_name, revealed, shown, wrong


def read_url(value: Any) -> SecretStr:
    """An address, hidden: it may have a password or a token in it."""
    text = revealed(value) if isinstance(value, str | SecretStr) else ""
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        fits = False
    return SecretStr(text) if fits else wrong("this is not an address", expected="https://host/path")


def read_secret(value: Any) -> SecretStr:
    if isinstance(value, str | SecretStr) and len(revealed(value)) >= 16:
        return SecretStr(revealed(value))
    return wrong("a secret has at least 16 characters", expected="${NAME}, an environment variable")


def read_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return wrong(f"{shown(value)} is not a list of rules", expected="[card-testing, velocity-sum]")


def read_sink_name(name: Any) -> str:
    return (
        str(name) if is_service_name(name) else wrong(f"{shown(name)} cannot be a sink's name", expected="a-z, 0-9, -")
    )


SinkName: TypeAlias = Annotated[str, BeforeValidator(read_sink_name)]


class SinkSettings(Model):
    """A webhook (`url`, and `secret` to sign with) or a `file`; of all rules, or of some."""

    url: Annotated[SecretStr, BeforeValidator(read_url)] | None = None
    secret: Annotated[SecretStr, BeforeValidator(read_secret)] | None = None
    file: RelativePath | None = None
    rules: Annotated[tuple[str, ...], BeforeValidator(read_names)] = ()
    timeout_ms: DurationMs = Field(10_000, alias="timeout")
    max_backoff_ms: DurationMs = Field(60_000, alias="max_backoff")

    @model_validator(mode="after")
    def _one(self) -> SinkSettings:
        if (self.url is None) == (self.file is None):
            wrong("a sink is a webhook or a file", expected="url: https://host/path, or file: alerts.jsonl")
        if self.secret is not None and self.url is None:
            wrong("only a webhook is signed", hint="remove `secret`, or write `url`")
        return self

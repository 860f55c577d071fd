"""A schema registry: Avro schemas by number, over HTTP, through the client that confluent-kafka brings.

A registry that does not answer says nothing about a message: that is trouble to wait for, as a log that cannot be
reached is, and never a dead letter. What it does not know is another thing: the message then has no schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeVar
from urllib.parse import urlsplit

from samovar.common.errors import LogUnavailable, Refused
from samovar.patterns.engine.avro.schema import AvroSchema, AvroSchemaError, parse_schema

Made = TypeVar("Made")

# A container must not wait for ever; it begins again from the log after this, and says why.
DEFAULTS = {"timeout": 5, "max.retries": 3, "retries.wait.ms": 200, "retries.max.wait.ms": 2_000}
ASK_AGAIN_S = 30.0  # what is not there may be registered later
MAX_UNKNOWN = 100_000
MAX_REFERENCES = 100
NO_SCHEMA = (404, 40403)
NO_SUBJECT = (40401, 40402)
BUSY = (408, 425, 429)


class RegistryUnavailable(LogUnavailable):
    """The schema registry does not answer at the moment; asking again later may help."""


@dataclass(frozen=True, slots=True)
class _Unknown:
    reason: str
    until_s: float | None  # None: for good


class Registry:
    """The source of truth for which schemas were found. A number's schema never changes, so each is asked for once."""

    def __init__(self, settings: Mapping[str, Any], now_s: Callable[[], float] = time.monotonic) -> None:
        """`settings` are the client's own, with `url`."""
        self._settings = {**DEFAULTS, **settings}
        self._now_s = now_s
        self._client: Any = None
        self._found: dict[int, AvroSchema] = {}
        self._unknown: dict[int, _Unknown] = {}

    @property
    def place(self) -> str:
        """Where it is, without a password."""
        parts = [urlsplit(url.strip()) for url in str(self._settings["url"]).split(",")]
        return ", ".join(f"{part.scheme}://{part.netloc.rpartition('@')[2]}{part.path}" for part in parts)

    def find(self, number: int) -> AvroSchema | None:
        unknown = self._unknown.get(number)
        is_unknown = unknown is not None and (unknown.until_s is None or self._now_s() < unknown.until_s)
        if number not in self._found and not is_unknown:
            self._ask(number)
        return self._found.get(number)

    def missing(self, number: int) -> str:
        unknown = self._unknown.get(number)
        return unknown.reason if unknown else f"schema {number}"

    def _ask(self, number: int) -> None:
        answer = self._call(lambda client: client.get_schema(number), f"for schema {number}", NO_SCHEMA[1])
        if len(self._unknown) >= MAX_UNKNOWN:
            self._unknown.clear()
        if answer is None:
            reason = f"the registry at {self.place} has no schema {number}"
            self._unknown[number] = _Unknown(reason, self._now_s() + ASK_AGAIN_S)
            return
        kind = answer.schema_type or "AVRO"
        if kind != "AVRO":
            self._unknown[number] = _Unknown(f"schema {number} of the registry is {kind}, not Avro", None)
            return
        try:
            self._found[number] = parse_schema(*self._texts(answer, []))
        except AvroSchemaError as error:
            self._unknown[number] = _Unknown(f"schema {number} of the registry cannot be used: {error}", None)

    def _texts(self, answer: Any, seen: list[tuple[str, int]]) -> list[str]:
        """What a schema refers to, and then itself."""
        texts: list[str] = []
        for reference in answer.references or ():
            place = reference.subject, reference.version
            if place not in seen:
                seen.append(place)
                if len(seen) > MAX_REFERENCES:
                    raise AvroSchemaError(f"it refers to more than {MAX_REFERENCES} others")
                what = f"version {reference.version} of {reference.subject}"
                found: Any = self._call(methodcaller("get_version", *place), f"for {what}", *NO_SUBJECT)
                if found is None:
                    raise AvroSchemaError(f"it refers to {what}, which is not there")
                texts += self._texts(found.schema, seen)
        return [*texts, answer.schema_str]

    def latest_number(self, subject: str) -> int | None:
        """The number under which a subject's newest schema is registered; None: it has none."""
        latest = self._call(lambda client: client.get_latest_version(subject), f"for {subject}", *NO_SUBJECT)
        return None if latest is None else int(latest.schema_id)

    def number_for(self, subject: str, schema: AvroSchema | None) -> tuple[int, AvroSchema]:
        """The number to write with: this schema, registered if it is new; or else the subject's latest."""
        from confluent_kafka.schema_registry import Schema as Registered  # noqa: PLC0415 - see _call

        if schema is not None:
            text = Registered(schema.texts[-1], "AVRO")
            number: Any = self._call(lambda client: client.register_schema(subject, text), f"to register {subject}")
            return int(number), schema
        latest = self.latest_number(subject)
        if latest is None:
            raise Refused(
                "no-schema-to-write",
                f"the registry at {self.place} has nothing under {subject}",
                "give the stream a `schema`: it is then registered",
            )
        found = self.find(latest)
        if found is None:
            raise Refused("no-schema-to-write", self.missing(latest), "give the stream a `schema` of its own")
        return latest, found

    def _call(self, ask: Callable[[Any], Made], what: str, *absent: int) -> Made | None:
        """An answer; None where it is that there is nothing. The client has tried several times when this raises."""
        # Imported when it is needed: it brings an HTTP client with it, which takes a moment.
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415
        from confluent_kafka.schema_registry.common._httpx_compat import httpx  # noqa: PLC0415
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415

        if self._client is None:
            try:
                self._client = SchemaRegistryClient(self._settings)
            except (ValueError, TypeError, OSError) as error:
                told = f"the registry's client takes no such settings: {error}"
                raise Refused("registry-settings", told, "fix `registry` in the service file") from None
        try:
            return ask(self._client)
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status == 404 and error.error_code in absent:
                return None
            if status >= 500 or status in BUSY:
                raise self._unavailable(what, str(error)) from error
            hints = {401: "see the user and password under `registry`", 403: "give this user the right to read schemas"}
            raise Refused(
                "registry-refused",
                f"the schema registry at {self.place} answers {status}, asked {what}",
                hints.get(status, "see that `url` under `registry` is that of a schema registry"),
                str(error.error_message)[:200],
            ) from error
        except httpx.TransportError as error:
            raise self._unavailable(what, f"{type(error).__name__}: {error}".removesuffix(": ")) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unavailable(what, f"it answers, but not as a registry does: {error}") from error

    def _unavailable(self, what: str, detail: str) -> RegistryUnavailable:
        return RegistryUnavailable(f"the schema registry at {self.place} does not answer, asked {what}: {detail}")

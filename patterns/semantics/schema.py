"""What is known of the events before any comes: event types, and the kind of each of their fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samovar.patterns.syntax.findings import Report, has_errors
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.yaml import plain_data, read

TYPES = ("string", "double", "long", "boolean", "any")

_SYNONYMS = {
    "str": "string", "text": "string", "keyword": "string", "ip": "string", "uuid": "string", "enum": "string",
    "float": "double", "number": "double", "decimal": "double", "numeric": "double", "real": "double",
    "int": "long", "integer": "long", "short": "long", "byte": "long", "bigint": "long", "timestamp": "any",
    "datetime": "any", "date": "any", "time": "any", "bool": "boolean", "object": "any", "array": "any",
    "list": "any", "json": "any", "map": "any", "unknown": "any", "null": "any",
}  # fmt: skip

_KINDS = {"string": "text", "double": "number", "long": "number", "boolean": "boolean", "any": "any"}


@dataclass(frozen=True)
class Schema:
    """`types`: event type -> dotted field path -> one of TYPES."""

    types: Mapping[str, Mapping[str, str]]

    @staticmethod
    def of(mapping: Mapping[str, Any]) -> Schema:
        """From `{purchase: {card: string, process: {name: string}}}`.

        >>> Schema.of({"purchase": {"card": "text", "process": {"name": "string"}}}).types["purchase"]
        {'card': 'string', 'process.name': 'string'}
        """
        types = {}
        for event_type, fields in mapping.items():
            if not isinstance(fields, Mapping):
                raise ValueError(f"the schema of `{event_type}` must map field names to types")
            types[str(event_type)] = dict(_flatten(fields, str(event_type), ""))
        return Schema(types)

    @staticmethod
    def parse(text: str) -> Schema:
        """From YAML or JSON text. Raises ValueError with the place of the fault."""
        report = Report("<schema>")
        node = read(whole(text), report)
        if has_errors(report.findings()):
            first = report.findings()[0]
            raise ValueError(f"line {first.span.line}, column {first.span.column}: {first.message}")
        data = plain_data(node) if node is not None else {}
        if not isinstance(data, Mapping):
            raise ValueError("a schema maps event types to their fields")
        return Schema.of(data)

    def fields(self, event_types: Collection[str]) -> Mapping[str, str]:
        """The fields of one or more types (`any`: of all); a field whose types differ is `any`."""
        known: dict[str, str] = {}
        for event_type in self.types if "any" in event_types else event_types:
            for path, name in self.types.get(event_type, {}).items():
                before = known.get(path, name)
                both = {before, name}
                known[path] = name if before == name else "double" if both == {"double", "long"} else "any"
        return known

    def knows(self, event_types: Collection[str]) -> bool:
        """Whether all the types are known; of an unknown one no field can be called unknown."""
        return "any" in event_types or all(event_type in self.types for event_type in event_types)

    def kind(self, path: str, event_types: Collection[str]) -> str | None:
        """The kind of a field (text, number, boolean, any), or None where no such type has it."""
        known = self.fields(event_types)
        if path in known:
            return _KINDS[known[path]]
        if any(field.startswith(path + ".") for field in known):
            return "any"
        heads = path.split(".")
        above = (".".join(heads[:count]) for count in range(1, len(heads)))
        return "any" if any(known.get(head) == "any" for head in above) else None

    def to_json(self) -> str:
        return json.dumps(self.types, indent=2, sort_keys=True)


def _flatten(fields: Mapping[Any, Any], where: str, above: str) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _flatten(value, where, path + ".")
            continue
        word = str(value if value is not None else "any").lower()
        kind = _SYNONYMS.get(word, word)
        if kind not in TYPES:
            raise ValueError(f"{where}.{path}: `{value}` is not a type; expected one of {', '.join(TYPES)}")
        yield path, kind

"""Seeds for the fuzz targets, from real examples: rules of the cases, states that events made, lines, Avro messages.

The formats are read by fuzzing.h. Nothing of it is random but by a fixed seed.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import numpy as np

from samovar.common.tunables import DEFAULTS
from samovar.patterns.engine.avro.program import resolved
from samovar.patterns.engine.avro.schema import parse_schema
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.matcher import States, step
from samovar.patterns.rulefile.rule_file import load_text
from tests.support.matching import arrived

CASES = Path(__file__).resolve().parent.parent / "cases" / "match"
COLUMNS = 12  # as in fuzzing.h, with the values below
TEXTS = ("c1", "c2", "card", "DE", "a longer text than fits", "10.0.0.1", "", "é")
WHOLE = (0, 1, -1, 5, 100, 1000, 2**63 - 1, -(2**63))
REAL = (0.5, -0.5, 1e300, -1e300, 9.3e18, 100.0, 1e-300, 12.25)
BEGIN_MS = 1_700_000_000_000
SMALL = replace(DEFAULTS, chunk_events=4, header_events=2, header_bytes=256)
VARIANTS = 2

AVRO: tuple[tuple[Any, Any], ...] = (
    (
        {"type": "record", "name": "e", "fields": [
            {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "type", "type": {"type": "enum", "name": "k", "symbols": ["buy", "sell"]}},
            {"name": "id", "type": "string"}, {"name": "amount", "type": ["null", "double", "float"]},
            {"name": "inner", "type": {"type": "record", "name": "i", "fields": [{"name": "x", "type": "int"}]}},
            {"name": "items", "type": {"type": "array", "items": ["null", "string", "i"]}},
            {"name": "place", "type": {"type": "map", "values": "double"}},
        ]},
        {"ts": BEGIN_MS * 1000 + 1, "type": "buy", "id": "c1", "amount": 1.5, "inner": {"x": 3},
         "items": [None, "é", {"x": -1}], "place": {"lat": 1.0, "lon": 2.0}},
    ),
    (
        {"type": "record", "name": "e", "fields": [
            {"name": "ts", "type": "long"}, {"name": "type", "type": "string"},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
            {"name": "raw", "type": {"type": "fixed", "name": "f", "size": 4}},
            {"name": "kind", "type": {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}},
            {"name": "when", "type": {"type": "int", "logicalType": "date"}},
            {"name": "name", "type": "bytes"}, {"name": "id", "type": "boolean"},
            {"name": "inner", "type": ["null", "e"]},
        ]},
        None,
    ),
)  # fmt: skip


def write_seeds(folder: Path) -> None:
    """Writes a corpus for every target, and the programs that states are read for."""
    for target in ("json", "avro", "rows", "program"):
        shutil.rmtree(folder / target, ignore_errors=True)
        (folder / target).mkdir(parents=True)
    for target, seeds in (("json", json_seeds()), ("avro", avro_seeds())):
        for number, seed in enumerate(seeds):
            (folder / target / f"seed-{number}").write_bytes(seed)
    (folder / "numbers.dict").write_text("".join(f'"{escaped(each)}"\n' for each in extremes()))
    draw = random.Random(1)
    packed = []
    for number, program in enumerate(case_programs()):
        packed.append(pack_program(program))
        for variant in range(VARIANTS):
            events = draw.randbytes((2 + COLUMNS) * 30)
            rows = pack_rows(stored_rows(program, events)) if variant else b"\0"
            name = f"seed-{number}-{variant}"
            (folder / "program" / name).write_bytes(packed[-1] + rows + events)
            (folder / "rows" / name).write_bytes(bytes([number % 256]) + rows + events)
    (folder / "programs").write_bytes(b"".join(struct.pack("<I", len(one)) + one for one in packed))


def extremes() -> Iterator[bytes]:
    """Numbers that a fuzzer would be long to come upon: as stored rows have them, and as programs do."""
    for number in (2**61, -(2**61), 2**63 - 1, -(2**63), 2**31, -1):
        rest, out = (number << 1) ^ (number >> 63), bytearray()
        while rest >= 128:
            out.append(rest & 127 | 128)
            rest >>= 7
        yield bytes([*out, rest])
        yield struct.pack("<q", number)


def escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


# ---------------------------------------------------------------- rules and their states


def case_programs() -> Iterator[Program]:
    """Of all cases with few fields; at most as many as a byte can name."""
    for case in sorted(CASES.iterdir())[:250]:
        loaded = load_text((case / "rule.yml").read_text())
        if loaded.rule is not None:
            program = compile_rules([loaded.rule])
            if len(program.fields) <= COLUMNS:
                yield program


def pack_program(program: Program) -> bytes:
    words = np.array(program.words, "<i8").tobytes()
    types = [name.encode() for name in program.types] or [b"any"]
    names = b"".join(struct.pack("B", len(name)) + name for name in types)
    sizes = struct.pack("<I", len(words)), struct.pack("<I", len(program.text))
    return sizes[0] + words + sizes[1] + program.text + struct.pack("B", len(types)) + names


def events_of(program: Program, data: bytes) -> list[dict[str, Any]]:
    """What `read_events` of fuzzing.h makes of the same bytes."""
    types, now, events = program.types or ("any",), BEGIN_MS, []
    width = 2 + COLUMNS
    rows = [data[at : at + width] for at in range(0, len(data), width)]
    for row in rows:
        now += row[1] * 1000 if row[1] < 128 else (row[1] - 127) * 600_000
        event: dict[str, Any] = {"type": types[row[0] % len(types)], "ts": now}
        for column, name in enumerate(program.fields):
            kind, choice = rows[0][2 + column] % 4, row[2 + column] // 4
            values: tuple[Any, ...] = ((False, True) * 4, WHOLE, REAL, TEXTS)[kind]
            event[name] = values[choice % 8] if choice < 60 else None
        events.append(event)
    return events


def stored_rows(program: Program, data: bytes) -> dict[bytes, bytes]:
    states = States(program, max_partials=20, max_events=30, max_matches=20, tunables=SMALL)
    step(states, arrived(program, events_of(program, data)), BEGIN_MS)
    return states.rows()


def pack_rows(rows: dict[bytes, bytes]) -> bytes:
    some = sorted(rows.items())[:200]
    parts = [struct.pack("<H", len(k)) + k + len(v).to_bytes(3, "little") + v for k, v in some]
    return bytes([len(some)]) + b"".join(parts)


# ---------------------------------------------------------------- messages


def json_seeds() -> Iterator[bytes]:
    for number, case in enumerate(sorted(CASES.iterdir())[::20]):
        yield bytes([number % 4]) + (case / "events.jsonl").read_bytes()[:2000]
    odd = ('"\\u00e9\\ud83d\\ude00"', "-0.0e-12", "[[{}]]", "1" * 40, '"2023-11-14T22:13:30.123+01:00"', "null")
    for text in odd:
        yield f'\0{{"ts": {text}, "type": "t", "a": {{"b": {text}}}, "a.b.c": {text}, "x": {text}}}'.encode()
    yield b"\1" + json.dumps({"ts": BEGIN_MS, "type": "t", "a": {"b": {"c": [1, 2.5, "x"]}}}).encode()


def avro_seeds() -> Iterator[bytes]:
    for schema, message in AVRO:
        program = resolved(parse_schema(json.dumps(schema)))
        out = BytesIO()
        if message is not None:
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), message)
        body = out.getvalue() or bytes(range(2, 80))
        words = np.array(program.words, "<i8").tobytes()
        for flags in range(4):
            parts = struct.pack("<BI", flags, len(words)) + words + struct.pack("<I", len(program.blob))
            yield parts + bytes(program.blob) + body

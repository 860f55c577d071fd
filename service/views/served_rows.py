"""Rows of views in table files, found by their keys.

key      each value in turn, by the type of its column; so that keys are in the order of their values
         00 null | 01 bool | 02 int (8 bytes) | 03 double (8 bytes) | 04 text, 00 as 00 ff, then 00 00 |
         05 date (days, 8 bytes) | 06 timestamp (microseconds, 8 bytes) | 07 decimal (without its point, 17 bytes)
value    JSON: the values of the columns, and then of the states of its aggregates; what JSON has no word for is a
         map with one name that begins with $
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from samovar.common.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
FOLDER = "_serving"  # of a version; Spark and other readers of Parquet pass over such names
WHOLE = ("tinyint", "smallint", "int", "bigint")
KEYS = (*WHOLE, "float", "double", "string", "boolean", "date", "timestamp", "timestamp_ntz")  # and decimal(p,s)
_DECIMAL = re.compile(r"decimal\(\d+,(-?\d+)\)\Z")
_EPOCH, _DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class RowCodec:
    """How rows of a view are written: `columns` are all of them with Spark's types, `key` some of them."""

    columns: Mapping[str, str]
    key: tuple[str, ...]

    def pairs(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        for row in batch.to_pylist():
            yield self.packed_key([row[name] for name in self.key]), self.packed(list(row.values()))

    def packed_key(self, values: Sequence[Any]) -> bytes:
        kinds = (self.columns[name] for name in self.key)
        return b"".join(pack_value(kind, value) for kind, value in zip(kinds, values, strict=True))

    def packed(self, values: Sequence[Any]) -> bytes:
        return json.dumps([_tagged(value) for value in values], ensure_ascii=False, separators=(",", ":")).encode()

    @staticmethod
    def unpacked(data: bytes) -> list[Any]:
        found: list[Any] = json.loads(data, object_hook=_untagged)
        return found

    def parsed(self, texts: Sequence[str]) -> list[Any]:
        """A key as people write it, a text a column; refused where it is not one."""
        if len(texts) != len(self.key):
            hint = f"It is {', '.join(f'{name} ({self.columns[name]})' for name in self.key)}, in this order."
            raise Refused("bad-key", f"the key has {len(self.key)} columns, and {len(texts)} were given", hint)
        return [_parsed(name, self.columns[name], text) for name, text in zip(self.key, texts, strict=True)]


def is_key_type(kind: str) -> bool:
    return kind in KEYS or _DECIMAL.match(kind) is not None


def pack_value(kind: str, value: Any) -> bytes:
    """A value of a key. Numbers of one column are of one kind, whatever they look like."""
    if value is None:
        return b"\0"
    if kind == "boolean":
        return bytes((1, value))
    if kind in WHOLE:
        return b"\2" + _whole(value, 8)
    if kind in ("double", "float"):
        bits = int.from_bytes(struct.pack(">d", value + 0.0), "big")  # -0.0 is 0.0
        return b"\3" + ((bits ^ (1 << 64) - 1) if bits >> 63 else bits | 1 << 63).to_bytes(8, "big")
    if kind == "date":
        return b"\5" + _whole(value.toordinal() - _DAY, 8)
    if kind.startswith("timestamp"):
        return b"\6" + _whole(_microseconds(value), 8)
    decimal = _DECIMAL.match(kind)
    if decimal is not None:
        return b"\7" + _whole(int(value.scaleb(int(decimal[1]))), 17)
    return b"\4" + str(value).encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\0"


def _whole(number: int, size: int) -> bytes:
    return (number + (1 << (8 * size - 1))).to_bytes(size, "big")


def _microseconds(time: datetime) -> int:
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _parsed(name: str, kind: str, text: str) -> Any:
    reads: dict[str, Callable[[str], Any]] = {
        "boolean": lambda text: _WORDS[text.lower()],
        "date": date.fromisoformat,
        "timestamp": lambda text: _aware(datetime.fromisoformat(text)),
        "timestamp_ntz": datetime.fromisoformat,
        "string": str,
        "double": float,
        "float": float,
    }
    try:
        value = reads.get(kind, int if kind in WHOLE else Decimal)(text)
        pack_value(kind, value)
    except (ValueError, KeyError, OverflowError, InvalidOperation) as error:
        examples = {"boolean": "true", "date": "2026-01-05", "timestamp": "2026-01-05T08:00:00Z"}
        hint = f"Write it as {examples.get(kind, 'a number')}."
        raise Refused("bad-key", f"`{text[:80]}` is no value of `{name}`, which is of type {kind}", hint) from error
    return value


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _tagged(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime):
        return {"$time" if value.tzinfo else "$local": _microseconds(value)}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, dict):
        return {"$row": [[name, _tagged(inner)] for name, inner in value.items()]}
    if isinstance(value, timedelta):
        return {"$span": value // _MICROSECOND}
    return [_tagged(inner) for inner in value]  # a list; a map is one of pairs


def _untagged(found: dict[str, Any]) -> Any:
    ((tag, value),) = found.items()
    reads: dict[str, Callable[[Any], Any]] = {
        "$time": lambda us: _EPOCH + us * _MICROSECOND,
        "$local": lambda us: (_EPOCH + us * _MICROSECOND).replace(tzinfo=None),
        "$date": date.fromisoformat,
        "$decimal": Decimal,
        "$bytes": bytes.fromhex,
        "$row": dict,
        "$span": lambda us: us * _MICROSECOND,
    }
    return reads[tag](value)

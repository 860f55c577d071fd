"""Named stores of a user's task: texts to values, over the bytes of state/stack.py. Format 1.

A key is its UTF-8 bytes. A value's first byte says what it is:

    b"j" + JSON    compact, names in order, so that equal values are equal bytes
    b"b" + bytes   as they are
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from samovar.changelog.partitioner import key_text
from samovar.state.prefixed import after
from samovar.state.store import Store
from samovar.state.ttl import UnknownRowVersionError

JSON, BYTES = b"j", b"b"
MOST_KEY_BYTES = 60_000
MOST_VALUE_BYTES = 900_000  # a changelog record stays below what its topic takes


_COMPACT: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
_IN_ORDER = json.JSONEncoder(sort_keys=True, **_COMPACT).encode
_AS_IT_COMES = json.JSONEncoder(**_COMPACT).encode


class BadValueError(TypeError):
    """A task gave what a store or a topic cannot hold."""


def pack(value: Any) -> bytes:
    """
    >>> pack({"b": 1, "a": [True, None]}), pack(b"x")
    (b'j{"a":[true,null],"b":1}', b'bx')
    """
    is_bytes = isinstance(value, bytes | bytearray)
    packed = BYTES + bytes(value) if is_bytes else JSON + _encode_value(value, _IN_ORDER)
    if len(packed) > MOST_VALUE_BYTES:
        raise BadValueError(f"a value has {len(packed):,} bytes, and at most {MOST_VALUE_BYTES:,} are stored")
    return packed


def json_bytes(value: Any) -> bytes:
    """JSON, compact, names as they come."""
    return _encode_value(value, _AS_IT_COMES)


def _encode_value(value: Any, encode: Callable[[Any], str]) -> bytes:
    try:
        return encode(value).encode()
    except (TypeError, ValueError) as error:
        raise BadValueError(f"not bytes, and nothing that JSON can say: {error}") from error


def unpack(packed: bytes) -> Any:
    kind, rest = packed[:1], packed[1:]
    if kind == JSON:
        return json.loads(rest.decode())
    if kind == BYTES:
        return rest
    raise UnknownRowVersionError(f"value format {kind!r}, known are b'j' and b'b'\n  Run the Samovar that wrote it.")


def key_bytes(key: str) -> bytes:
    if not isinstance(key, str):
        raise BadValueError(f"a store's key is text, not {type(key).__name__}: {key!r}")
    encoded = key.encode()
    if len(encoded) > MOST_KEY_BYTES:
        raise BadValueError(f"a key has {len(encoded):,} bytes, and at most {MOST_KEY_BYTES:,} are stored")
    return encoded


class Values:
    """One named store, as `NamedStore` says. `refuse` raises where writing is not allowed."""

    def __init__(self, store: Store, refuse: Callable[[], None]) -> None:
        self._store = store
        self._refuse = refuse

    def get(self, key: str, default: Any = None) -> Any:
        packed = self._store.get(key_bytes(key))
        return default if packed is None else unpack(packed)

    def put(self, key: str, value: Any) -> None:
        self._refuse()
        self._store.put(key_bytes(key), pack(value))

    def delete(self, key: str) -> None:
        self._refuse()
        self._store.delete(key_bytes(key))

    def range(self, start: str = "", end: str | None = None) -> Iterator[tuple[str, Any]]:
        return self._pairs(key_bytes(start), None if end is None else key_bytes(end))

    def starting(self, prefix: str) -> Iterator[tuple[str, Any]]:
        encoded = key_bytes(prefix)
        return self._pairs(encoded, after(encoded))

    def _pairs(self, start: bytes, end: bytes | None) -> Iterator[tuple[str, Any]]:
        return ((key.decode(), unpack(packed)) for key, packed in self._store.range(start, end))


def record_key(value: Any) -> bytes | None:
    """The key of an emitted record: bytes as they are, else the text of a key field's value."""
    if isinstance(value, bytes):
        return value
    if value is not None and not isinstance(value, str | int | float):
        raise BadValueError(f"a record's key is text, a number or bytes, not {type(value).__name__}")
    return key_text(value)

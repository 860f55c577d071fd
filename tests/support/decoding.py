"""One message through the kernel and through the strict decoder, compared. Used by the decoder's tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from samovar.native.kernel import Other, joined
from samovar.patterns.engine.decode import Bad
from samovar.patterns.engine.decoder import Decoder
from tests.support.strict_decoder import DecodedEvent, decode_strict, integer, last_of_each, members_of

PATHS = ("x", "a", "a.b", "a.b.c", "b.c", "a.b.c.d", "a long name", "", "é", "process.name")
GOOD = b'"type": "t", "ts": 1'


@cache
def decoder(type_field: str | None = "type") -> Decoder:
    return Decoder(PATHS, "ts", type_field, "fixed")


def decode(messages: Sequence[bytes], type_field: str | None = "type", copy: bool = False) -> list[DecodedEvent | Bad]:
    """The kernel's verdicts in the terms of the strict decoder."""
    batch = decoder(type_field).batch()
    verdicts = decoder(type_field).decode(batch, joined(messages), copy=copy)
    columns = [[plain(value) for value in batch.values(k)] for k in range(len(PATHS))]
    rows = [dict(zip(PATHS, row, strict=True)) for row in zip(*columns, strict=True)]
    events = iter([DecodedEvent(*row) for row in zip(batch.time.tolist(), batch.types(), rows, strict=True)])
    return [
        decoder(type_field).bad(verdict, message) if verdict["code"] else next(events)
        for verdict, message in zip(verdicts, messages, strict=True)
    ]


def plain(value: Any) -> Any:
    if not isinstance(value, Other):
        return value
    return last_of_each(json.loads(value.json, object_pairs_hook=members_of, parse_int=integer))


def assert_same(message: bytes, type_field: str | None = "type") -> None:
    (fast,) = decode([message], type_field)
    strict = decode_strict(message, PATHS, "ts", type_field, "fixed")
    if isinstance(strict, DecodedEvent) or isinstance(fast, DecodedEvent):
        assert repr(fast) == repr(strict)  # repr tells 1 from 1.0 and from True, and 0.0 from -0.0
        return
    assert fast.code == strict.code, (fast, strict)
    if strict.code in ("NOT_UTF8", "TOO_DEEP", "NOT_AN_OBJECT"):
        assert fast == strict
    elif strict.code == "NOT_JSON":
        assert_first_fault(message, fast)
    elif strict.code in ("LONE_SURROGATE", "NUMBER_TOO_LARGE"):
        assert fast.reason == strict.reason


def assert_first_fault(message: bytes, bad: Bad) -> None:
    """NOT_JSON points at the first character that cannot go on: what comes after it makes no difference."""
    text = message.decode()
    assert bad.column is not None
    place = bad.column - 1
    cut = decode([text[:place].encode(), text[: place + 1].encode()])
    if place < len(text):
        assert cut[1] == bad
    assert isinstance(cut[0], DecodedEvent) or cut[0].code != "NOT_JSON" or cut[0].column == bad.column

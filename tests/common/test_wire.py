"""Stored records: names of their own, nothing that is as usual, and nothing that would be lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from samovar.common.wire import from_wire, stored, to_wire


class Place(NamedTuple):
    partition: int
    idle: bool


@stored("at p")
@dataclass(frozen=True)
class Part:
    offset: int
    places: tuple[Place, ...] = ()


@stored("name part parts by_name pairs count maybe")
@dataclass(frozen=True)
class Whole:
    name: str
    part: Part
    parts: Sequence[Part] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    pairs: tuple[tuple[int, int], ...] = ()
    count: int = 0
    maybe: Part | None = None


SMALL = Whole("w", Part(3))
LARGE = Whole(
    "w",
    Part(3, (Place(1, True),)),
    (Part(4), Part(5)),
    {"x": Part(6)},
    ((1, 2), (3, 4)),
    7,
    Part(8, (Place(0, False),)),
)


@pytest.mark.parametrize("record", [SMALL, Whole("w", Part(3), parts=[])])
def test_what_is_as_usual_is_left_out(record: Whole) -> None:
    assert to_wire(record) == {"name": "w", "part": {"at": 3}}


@pytest.mark.parametrize("record", [SMALL, LARGE])
def test_a_record_is_read_as_it_was_written(record: Whole) -> None:
    assert from_wire(Whole, to_wire(record)) == record


def test_all_is_written_under_its_own_name() -> None:
    assert to_wire(LARGE) == {
        "name": "w",
        "part": {"at": 3, "p": [[1, True]]},
        "parts": [{"at": 4}, {"at": 5}],
        "by_name": {"x": {"at": 6}},
        "pairs": [[1, 2], [3, 4]],
        "count": 7,
        "maybe": {"at": 8, "p": [[0, False]]},
    }


@pytest.mark.parametrize("raw", [{"at": 1, "newer": 2}, {"offset": 1}])
def test_a_name_that_is_not_known_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no such field"):
        from_wire(Part, raw)


def test_a_name_that_is_missing_is_refused() -> None:
    with pytest.raises(TypeError, match="offset"):
        from_wire(Part, {})


@pytest.mark.parametrize("names", ["at", "at p more", "at at"])
def test_every_field_has_a_name_of_its_own(names: str) -> None:
    with pytest.raises(TypeError, match="has 2 fields"):
        stored(names)(Part)

"""A rule's matches held against what the service found: the same, new, gone.

Ids carry the rule's version, so matches are compared by what they say: two are the same when key and time of detection
are; or, of those that are left, when the key is and their stretches of time meet (then the alert only moved). Where
the service has not come yet, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samovar.service.backtest.current import CONFIRMED, FALSE_ALARM
from samovar.service.backtest.finds import MatchColumns

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ComparedRows:
    """Rows of both sides. `same` has as many on one side as alerts that are there again, moved ones too."""

    new: MatchColumns
    gone: MatchColumns
    same: int
    moved: int
    ahead: int  # matches where the service has not come yet
    kept: MatchColumns  # of the service's alerts, those that are there again


def compare(found: MatchColumns, current: MatchColumns, horizons: Mapping[int, int] | None) -> ComparedRows:
    """Without horizons the service never ran, and everything is ahead of it."""
    behind = _behind(found, horizons)
    ahead = int((~behind).sum())
    found, current = found.where(behind), current.where(_behind(current, horizons))
    exact_found = np.isin(found["moment"], current["moment"])
    exact_current = np.isin(current["moment"], found["moment"])
    left, right = found.where(~exact_found), current.where(~exact_current)
    moved_left, moved_right = _meeting(left, right)
    gone_places = np.zeros(len(current), bool)
    gone_places[np.flatnonzero(~exact_current)[~moved_right]] = True
    return ComparedRows(
        new=left.where(~moved_left),
        gone=current.where(gone_places),
        same=int(exact_found.sum()) + int(moved_left.sum()),
        moved=int(moved_left.sum()),
        ahead=ahead,
        kept=current.where(~gone_places),
    )


def _behind(rows: MatchColumns, horizons: Mapping[int, int] | None) -> Mask:
    """Which rows the service must have seen. Of a row with no partition, the one that is furthest counts."""
    if not horizons:
        return np.zeros(len(rows), bool)
    limits = np.full(len(rows), max(horizons.values()), np.int64)
    for partition in np.unique(rows["partition"]).tolist():
        if partition >= 0:
            limits[rows["partition"] == partition] = horizons.get(partition, -(1 << 62))
    behind: Mask = rows["at"] < limits
    return behind


def _meeting(left: MatchColumns, right: MatchColumns) -> tuple[Mask, Mask]:
    """Rows of one key whose stretches of time meet, each with at most one of the other side, the earliest first."""
    taken_left, taken_right = np.zeros(len(left), bool), np.zeros(len(right), bool)
    others = _by_key_and_time(right)
    place = 0
    for key, at, start, row in _by_key_and_time(left):
        while place < len(others) and (others[place][0], others[place][1]) < (key, start):
            place += 1
        if place < len(others) and others[place][0] == key and others[place][2] <= at:
            taken_left[row] = taken_right[others[place][3]] = True
            place += 1
    return taken_left, taken_right


def _by_key_and_time(rows: MatchColumns) -> list[tuple[int, int, int, int]]:
    order = np.lexsort((rows["at"], rows["key"]))
    columns = [rows[name][order].tolist() for name in ("key", "at", "start")]
    return list(zip(*columns, order.tolist(), strict=True))


# ---------------------------------------------------------------- labels


@dataclass(frozen=True)
class Marks:
    """How good a rule is, by the labels of the service's alerts. None where nothing is labelled so.

    Of the new rule, only matches that the service had as alerts can be labelled; `unlabelled` are all the others.
    """

    confirmed: int
    false_alarms: int
    confirmed_kept: int
    false_alarms_kept: int
    unlabelled: int

    @property
    def precision_before(self) -> float | None:
        return _share(self.confirmed, self.confirmed + self.false_alarms)

    @property
    def precision(self) -> float | None:
        return _share(self.confirmed_kept, self.confirmed_kept + self.false_alarms_kept)

    @property
    def recall(self) -> float | None:
        return _share(self.confirmed_kept, self.confirmed)


def marks_of(compared: ComparedRows) -> Marks:
    kept, gone = compared.kept["mark"], compared.gone["mark"]
    confirmed, alarms = (int((kept == label).sum()) for label in (CONFIRMED, FALSE_ALARM))
    lost, avoided = (int((gone == label).sum()) for label in (CONFIRMED, FALSE_ALARM))
    unlabelled = compared.same + len(compared.new) - confirmed - alarms
    return Marks(confirmed + lost, alarms + avoided, confirmed, alarms, max(0, unlabelled))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

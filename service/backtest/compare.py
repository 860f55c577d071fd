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

from samovar.patterns.engine.order import NO_TIME
from samovar.service.backtest.current import CONFIRMED, FALSE_ALARM
from samovar.service.backtest.finds import MatchRows

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ComparedRows:
    """Rows of both sides. `same` has as many on one side as alerts that are there again, moved ones too."""

    new: MatchRows
    gone: MatchRows
    same: int
    moved: int
    ahead: int  # matches where the service has not come yet
    kept: MatchRows  # of the service's alerts, those that are there again


def compare(found: MatchRows, current: MatchRows, horizons: Mapping[int, int]) -> ComparedRows:
    """Without horizons the service never ran, and everything is ahead of it."""
    ahead = len(found)
    found, current = _behind(found, horizons), _behind(current, horizons)
    ahead -= len(found)
    exact_found = np.isin(found["moment"], current["moment"])
    exact_current = np.isin(current["moment"], found["moment"])
    left, right = found[~exact_found], current[~exact_current]
    moved_left, moved_right = _meeting(left, right)
    is_gone = np.zeros(len(current), bool)
    is_gone[np.flatnonzero(~exact_current)[~moved_right]] = True
    moved = int(moved_left.sum())
    return ComparedRows(
        new=left[~moved_left],
        gone=current[is_gone],
        same=int(exact_found.sum()) + moved,
        moved=moved,
        ahead=ahead,
        kept=current[~is_gone],
    )


def _behind(rows: MatchRows, horizons: Mapping[int, int]) -> MatchRows:
    """The rows that the service must have seen. Of a row with no partition, the one that is furthest counts."""
    limits = np.full(len(rows), max(horizons.values(), default=NO_TIME), np.int64)
    for partition in np.unique(rows["partition"]).tolist():
        if partition >= 0:
            limits[rows["partition"] == partition] = horizons.get(partition, NO_TIME)
    return rows[rows["at"] < limits]


def _meeting(left: MatchRows, right: MatchRows) -> tuple[Mask, Mask]:
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


def _by_key_and_time(rows: MatchRows) -> list[tuple[int, int, int, int]]:
    order = np.lexsort((rows["at"], rows["key"]))
    columns = [rows[name][order].tolist() for name in ("key", "at", "start")]
    return list(zip(*columns, order.tolist(), strict=True))


# ---------------------------------------------------------------- labels


@dataclass(frozen=True, kw_only=True)
class Marks:
    """How good a rule is, by the labels of the service's alerts.

    Of the new rule, only matches that the service had as alerts can be labelled; `unlabelled` are all the others.
    """

    precision: float | None  # None where nothing is labelled so
    recall: float | None
    precision_before: float | None
    confirmed: int
    false_alarms: int
    confirmed_kept: int
    false_alarms_kept: int
    unlabelled: int


def marks_of(compared: ComparedRows) -> Marks:
    kept, gone = compared.kept["mark"], compared.gone["mark"]
    confirmed_kept, false_alarms_kept = (int((kept == label).sum()) for label in (CONFIRMED, FALSE_ALARM))
    confirmed = confirmed_kept + int((gone == CONFIRMED).sum())
    false_alarms = false_alarms_kept + int((gone == FALSE_ALARM).sum())

    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    return Marks(
        precision=share(confirmed_kept, confirmed_kept + false_alarms_kept),
        recall=share(confirmed_kept, confirmed),
        precision_before=share(confirmed, confirmed + false_alarms),
        confirmed=confirmed,
        false_alarms=false_alarms,
        confirmed_kept=confirmed_kept,
        false_alarms_kept=false_alarms_kept,
        unlabelled=max(0, compared.same + len(compared.new) - confirmed_kept - false_alarms_kept),
    )

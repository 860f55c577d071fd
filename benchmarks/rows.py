"""Rows of the comparison, and the table that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import machine, number


@dataclass(frozen=True)
class Aim:
    """What a figure should be: at least or at most so much, alone or as a part of Kafka Streams'."""

    at_least: float | None = None
    at_most: float | None = None
    ratio: bool = False

    def reached(self, value: float) -> bool:
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        sign, value = (">=", self.at_least) if self.at_least is not None else ("<=", self.at_most)
        return f"{sign} {value:,g}{' x' if self.ratio else ''}"


@dataclass(frozen=True)
class Row:
    """One figure of both sides. Without a second one there is nothing to compare it with."""

    what: str
    unit: str
    ours: float
    theirs: float | None = None
    aim: Aim | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return None if not self.theirs else self.ours / self.theirs

    @property
    def reached(self) -> bool | None:
        """Whether the aim is; None where there is none, or no second figure."""
        value = self.ratio if self.aim is not None and self.aim.ratio else self.ours
        return None if self.aim is None or value is None else self.aim.reached(value)


def show(rows: Sequence[Row], footer: Sequence[str], title: str = "Samovar against Kafka Streams") -> None:
    table = Table(title=f"{title} ({machine()})", title_justify="left")
    right = ("Samovar", "Kafka Streams", "ratio", "aim")
    for heading in ("what", "Samovar", "Kafka Streams", "", "ratio", "aim", "", "note"):
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        theirs = "" if row.theirs is None else number(row.theirs)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} x"
        aim = "" if row.aim is None else str(row.aim)
        verdict = {True: "reached", False: "missed", None: ""}[row.reached]
        table.add_row(row.what, number(row.ours), theirs, row.unit, ratio, aim, verdict, row.note)
    Console(width=160).print(table)
    for line in footer:
        print(line)


def as_json(rows: Sequence[Row], footer: Sequence[str]) -> dict[str, Any]:
    figures = [
        {**asdict(row), "aim": str(row.aim) if row.aim else None, "ratio": row.ratio, "reached": row.reached}
        for row in rows
    ]
    return {"machine": machine(), "figures": figures, "notes": list(footer)}

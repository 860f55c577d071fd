"""Options of the commands that can run on Spark."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

ENGINES = ("local", "spark")

Engine: TypeAlias = Annotated[
    str, typer.Option("--engine", metavar="local|spark", help="This process, or Spark with all cores or a cluster.")
]
Master: TypeAlias = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Of Spark; local[*] where nothing is said.")
]


def refuse_engine(engine: str, master: str | None) -> None:
    if engine not in ENGINES:
        raise typer.BadParameter(f"`{engine}`: choose one of {', '.join(ENGINES)}", param_hint="--engine")
    if master is not None and engine != "spark":
        raise typer.BadParameter("it is for `--engine spark`", param_hint="--master")

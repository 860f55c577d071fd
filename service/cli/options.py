"""Arguments and options that several commands share, how their texts are read, and the service that they name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from samovar.patterns.engine.decode import RefusedError, time_of
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.yaml import core_value

if TYPE_CHECKING:
    from samovar.changelog.log import Log
    from samovar.service.config.models import ServiceFile

Config: TypeAlias = Annotated[Path, typer.Argument(metavar="CONFIG", show_default=False, help="The service file.")]
SetFlags: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PLACE=VALUE", help="Another value for a setting: cache=64MB; may be repeated."),
]
Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON document.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Engine: TypeAlias = Annotated[
    str, typer.Option("--engine", metavar="local|spark", help="This process, or Spark with all cores or a cluster.")
]
Master: TypeAlias = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; local[*] by default.")
]


def add_group(app: typer.Typer, name: str, about: str) -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    app.add_typer(group, name=name)
    return group


@contextmanager
def service_log(config: Path, *, past: bool = False) -> Iterator[tuple[ServiceFile, Log]]:
    """The service file and its open log, with `past` also what its archive has. What is refused ends the command."""
    # Here, since commands without a service start quicker without them.
    from samovar.service.cli.refusals import exit_on_refusal  # noqa: PLC0415
    from samovar.service.config.loading import load_service  # noqa: PLC0415
    from samovar.service.topology.logs import opened  # noqa: PLC0415

    with exit_on_refusal():
        settings = load_service(config)
        with opened(settings) as log:
            if past and settings.archive is not None:
                from samovar.service.topology.archives import with_archive  # noqa: PLC0415 - as above

                log = with_archive(settings, log)
            yield settings, log


def refuse_engine(engine: str, master: str | None) -> None:
    if engine not in ("local", "spark"):
        raise typer.BadParameter(f"`{engine}`: choose one of local, spark", param_hint="--engine")
    if master is not None and engine != "spark":
        raise typer.BadParameter("it is for `--engine spark`", param_hint="--master")


def milliseconds(option: str, text: str) -> int:
    ms = duration_ms(text)
    if ms is None:
        raise typer.BadParameter(f"`{text}` is not a time: write 500ms, 30s, 10m, 8h or 7d", param_hint=option)
    return ms


def instant(option: str, text: str) -> int:
    try:
        return time_of(text)
    except RefusedError:
        raise typer.BadParameter(f"`{text}` is not an ISO 8601 time, such as 2026-01-05", param_hint=option) from None


def instant_or_epoch(option: str, text: str) -> int:
    return int(text) if text.isdecimal() else instant(option, text)


def read_schema(path: str) -> Any:
    try:
        return Schema.parse(read_text("--schema", path))
    except ValueError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--schema") from None


def read_text(option: str, path: str) -> str:
    try:
        if path == "-":
            return TextIOWrapper(sys.stdin.buffer, "utf-8-sig").read()
        return Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or f"it is not UTF-8 ({error})"
        shown = "standard input" if path == "-" else path
        raise typer.BadParameter(f"cannot read {shown}: {reason}", param_hint=option) from None


def read_param(text: str) -> tuple[str, Any]:
    """`limit=200`: typed as in YAML 1.2; text in double or single quotes is text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"`{text}`: write NAME=VALUE", param_hint="--param")
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return name, value[1:-1]
    return name, core_value(value)


def read_list(text: str) -> tuple[str, list[Any]]:
    """`risky=FILE`: one value per line, typed as in YAML 1.2, but digits with a leading zero stay text."""
    name, equals, path = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"`{text}`: write NAME=FILE", param_hint="--list")
    lines = (line.strip() for line in read_text("--list", path).splitlines())
    zero = ("0", "-0", "+0")
    return name, [
        line if line.startswith(zero) and line.strip("+-0").isdigit() else core_value(line) for line in lines if line
    ]

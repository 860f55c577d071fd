"""`samovar match ... --score`: the matches held against the frauds that `samovar generate` planted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Any

from samovar.service.offline.match import Run, open_events
from samovar.service.offline.score import detects, read_labels, render_json, render_table, score


def write_score(run: Run, out: IO[bytes]) -> None:
    """A table, or with --json one JSON object."""
    seen: list[bytes] = []
    if run.source.path is None:
        # What cannot be read again is kept.
        seen = list(run.source.blocks())
        run.source.restart(seen)
    matches = list(_shown(run))
    if run.source.path is not None:
        with open_events(str(run.source.path)) as again:
            labels = read_labels(lines_in(again.blocks()))
    else:
        labels = read_labels(lines_in(seen))
    result = score(matches, labels, detects(plan.rule for plan in run.program.rules))
    if run.options.json:
        out.write(render_json(result).encode() + b"\n")
        return
    from rich.console import Console  # noqa: PLC0415 - not for --json

    console = Console(width=100)
    with console.capture() as capture:
        console.print(render_table(result))
    out.write(capture.get().encode())


def _shown(run: Run) -> Iterator[dict[str, Any]]:
    for found in run.matches():
        yield from found


def lines_in(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    if rest:
        yield rest

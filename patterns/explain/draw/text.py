"""A rule drawn as text, with box-drawing characters: steps below one another, arrows between them.

`draw(rule)` is the drawing; the same content as a picture is in picture.py.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator

from samovar.patterns.explain.draw.diagram import ABSENT, BEFORE, WAIT, Box, Diagram, TimeLine, diagram, wrap_line
from samovar.patterns.syntax.tree import Rule

WIDTH = 88
LEAST = 36  # of a box
MARGIN = 4  # on the left, where the way round an optional step runs
ASIDE = 20  # on the right, where loops are written

_SOLID = "┌─┐│└┘"  # corners and lines: top left, flat, top right, upright, bottom left, right
_DASHED = "╭╌╮╎╰╯"
_DOUBLE = "╔═╗║╚╝"


def draw(rule: Rule, width: int = WIDTH) -> str:
    """The automaton of a rule as text, at most `width` columns wide."""
    shown = diagram(rule)
    lines = textwrap.wrap(" · ".join(shown.facts), width - MARGIN) + [""]
    lines = [" " * MARGIN + line if line else "" for line in lines]
    body = list(_steps(shown, width) if shown.time_line is None else _window(shown, shown.time_line, width))
    return "\n".join(line.rstrip() for line in lines + body) + "\n"


def _inner(shown: Diagram, width: int) -> int:
    """The columns inside every box: as many as the longest line needs, within bounds."""
    texts = [line for box in shown.boxes for line in (*box.lines, f"{box.title}      ")]
    texts += [*shown.having, *shown.until]
    return max(LEAST, min(max(map(len, texts)) + 2, width - MARGIN - ASIDE))


def _steps(shown: Diagram, width: int) -> Iterator[str]:
    inner = _inner(shown, width)
    middle = MARGIN + inner // 2
    for at, box in enumerate(shown.boxes):
        if at:
            yield from _arrow(box, middle, shown.boxes[at - 1].kind)
        yield from _step(box, inner, middle, at == 0)
    if shown.having:
        yield " " * middle + "│"
        yield from _frame("and at the end", list(shown.having), inner, _SOLID)
    yield " " * middle + "│" + (f"  ◷ {shown.clock}" if shown.clock else "")
    yield from _alert(shown, middle)
    if shown.until:
        yield ""
        yield from _frame("until ─► all is forgotten", list(shown.until), inner, _DASHED)


def _arrow(box: Box, middle: int, before: str) -> Iterator[str]:
    pad = " " * middle
    yield f"{pad}│  then" if before == BEFORE and box.kind != BEFORE else f"{pad}│"
    for label in box.arrow:
        yield f"{pad}│  {label}"
    if box.kind not in (ABSENT, WAIT) and not box.optional:
        yield f"{pad}▼"


def _step(box: Box, inner: int, middle: int, first: bool) -> Iterator[str]:
    """A box, with its loop on the right; an optional one has a way round it on the left."""
    dashed = box.kind in (ABSENT, BEFORE, WAIT)
    title = f"{'✗ ' * dashed}{box.title}{' (may be left out)' * box.optional}"
    lines = _frame(title, list(box.lines), inner, _DASHED if dashed else _SOLID)
    if box.loop is not None:
        if len(lines) < 4:
            lines.insert(2, lines[1][:MARGIN] + "│" + " " * inner + "│")
        lines[1] += " ◄─┐"
        lines[2] += f" ──┘ {box.loop}"
    if not box.optional:
        yield from lines
        return
    flat = "─" * (middle - 2)
    yield f" ┌{flat}" + ("┐" if first else "┤")
    yield f" │{' ' * (middle - 2)}▼"
    for line in lines:
        yield f" │{line[2:]}"
    yield f" └{flat[:-1]}►│"


def _frame(title: str, content: list[str], inner: int, signs: str) -> list[str]:
    top_left, flat, top_right, upright, bottom_left, bottom_right = tuple(signs)
    pad = " " * MARGIN
    title = textwrap.shorten(title, inner - 4, placeholder="…")
    top = f"{pad}{top_left}{flat} {title} {flat * (inner - len(title) - 3)}{top_right}"
    rows = []
    for row in (row for line in content for row in wrap_line(line, inner - 2)):
        # Up to a width in columns, of which a wide character takes two and an accent none.
        wide = sum(unicodedata.east_asian_width(char) in "WF" for char in row)
        accents = sum(map(bool, map(unicodedata.combining, row)))
        rows.append(f"{pad}{upright} {row}{' ' * (inner - 1 - len(row) - wide + accents)}{upright}")
    middle = inner // 2 - 1
    down = "┬" if signs == _SOLID else flat
    bottom = f"{pad}{bottom_left}{flat * middle}{down}{flat * (inner - middle - 1)}{bottom_right}"
    return [top, *rows, bottom]


def _alert(shown: Diagram, middle: int) -> Iterator[str]:
    text = f" ALERT {shown.severity} "
    pad = " " * max(0, middle - len(text) // 2 - 1)
    top_left, flat, top_right, upright, bottom_left, bottom_right = tuple(_DOUBLE)
    yield " " * middle + "▼"
    yield f"{pad}{top_left}{flat * len(text)}{top_right}"
    yield f"{pad}{upright}{text}{upright}"
    yield f"{pad}{bottom_left}{flat * len(text)}{bottom_right}"


def _window(shown: Diagram, time_line: TimeLine, width: int) -> Iterator[str]:
    inner = _inner(shown, width)
    middle = MARGIN + inner // 2
    for box in shown.boxes:
        yield from _frame(box.title, list(box.lines), inner, _SOLID)
    yield " " * middle + "│"
    yield " " * middle + "▼"
    for line in _time(time_line):
        yield " " * MARGIN + line
    if shown.having:
        yield " " * middle + "│"
        yield " " * middle + "▼"
        yield from _frame("and then", list(shown.having), inner, _SOLID)
    yield " " * middle + "│"
    yield from _alert(shown, middle)


def _time(time_line: TimeLine) -> list[str]:
    size = time_line.spans[0]
    if time_line.kind == "sliding":
        again = f", and again every {time_line.spans[1]} while it holds" if time_line.spans[1:] else ""
        return [
            "──●────●─●─────●──●───●─► time",
            f"     └{f' the last {size} ':─^18}┘",
            f"  slides with every event; tested when one comes{again}",
        ]
    if time_line.kind == "session":
        cut = f", or {time_line.spans[1]} after its start" if time_line.spans[1:] else ""
        return [
            f"──●─●●────●──●{f' {size} quiet ':╌^18}◷──●─●─► time",
            f"  └{' session ':─^10}┘{' ' * 18}└ next",
            f"  ends {size} after its last event{cut}",
        ]
    if time_line.kind == "tumbling":
        bar = f"{f' {size} ':─^14}"
        return [
            f"├{bar}┼{bar}┼{bar}┤",
            "──●──●────●────┴──●───────────┴─●───●────────► time",
            "  windows by the clock, each looked at when it is over",
        ]
    every, whole = time_line.spans
    bar = f"├{f' {whole} ':─^24}┤"
    return [
        bar,
        f"{'':8}{bar}",
        f"{'':16}{bar}",
        "──●─────●─●────────●──────●────────────► time",
        f"  windows by the clock, a new one every {every}",
    ]

"""A rule drawn as an SVG picture: steps as boxes below one another, or a window over a time line."""

from __future__ import annotations

import textwrap
from itertools import groupby

from samovar.patterns.explain.draw.canvas import MONO, SANS, Canvas
from samovar.patterns.explain.draw.diagram import (
    ABSENT,
    BEFORE,
    GROUP,
    TAKE,
    WAIT,
    Box,
    Diagram,
    TimeLine,
    diagram,
    wrap_line,
)
from samovar.patterns.syntax.tree import Rule

LEFT = 84  # of the boxes: next to them run the span of the whole and the ways round
TOP = 24
CHARACTERS = 76  # of a line in a box, at most
LINE = 18
PAD = 14


def draw_svg(rule: Rule) -> str:
    """The automaton of a rule as a self-contained SVG document."""
    shown = diagram(rule)
    canvas = Canvas()
    top = _heading(canvas, shown)
    if shown.time_line is None:
        _steps(canvas, shown, top)
    else:
        _windows(canvas, shown, shown.time_line, top)
    return canvas.text(f"{shown.title} ({shown.id})")


def _heading(canvas: Canvas, shown: Diagram) -> float:
    y: float = TOP
    for line in textwrap.wrap(shown.title, 60) or [shown.id]:
        canvas.write(TOP, y + 16, line, "t h")
        y += 26
    canvas.write(TOP, y + 10, shown.id, "m")
    x, y = TOP, y + 24
    for fact in shown.facts:
        for row in textwrap.wrap(fact, 80):
            if x > TOP and x + len(row) * SANS + 20 > 620:
                x, y = TOP, y + 28
            x = round(canvas.pill(x, y, row) + 8)
    return y + 46


# ---------------------------------------------------------------- boxes


def _rows(box: Box) -> list[tuple[str, str]]:
    """The lines of a box, wrapped, each with its style: the event type stands out."""
    rows: list[tuple[str, str]] = []
    for line in box.lines:
        style = "c r" if box.kind in (ABSENT, BEFORE, WAIT) else "c y"
        rows += [(row, "t c" if line[:1].isspace() else style) for row in wrap_line(line, CHARACTERS)]
    return rows


def _width(shown: Diagram) -> float:
    longest = max((len(row) for box in shown.boxes for row, _ in _rows(box)), default=0)
    longest = max([longest, *(len(line) for line in (*shown.having, *shown.until))])
    titles = max(len(box.title) + 22 * box.optional for box in shown.boxes) * 7.4 + 70
    return round(max(280, min(longest, CHARACTERS + 4) * MONO + 2 * PAD, titles))


def _draw_box(canvas: Canvas, box: Box, x: float, y: float, wide: float) -> float:
    """Draws a box and gives where it ends."""
    rows = _rows(box)
    high = 34 + len(rows) * LINE + 8
    bad = box.kind in (ABSENT, BEFORE, WAIT)
    canvas.box(x, y, wide, high, "no" if bad else "box")
    number, _, name = box.title.partition(" ")
    if bad:
        (canvas.clock if box.kind == WAIT else canvas.forbidden)(x + PAD + 6, y + 18)
        canvas.write(x + PAD + 20, y + 22, box.title, "t b r")
    elif number.isdigit():
        canvas.dot(x + PAD + 8, y + 18, "badge", 9.5)
        canvas.write(x + PAD + 8, y + 22, number, "n", "middle")
        canvas.write(x + PAD + 26, y + 22, name, "t b")
    else:
        canvas.write(x + PAD, y + 22, box.title, "t b")
    if box.optional:
        canvas.write(x + wide - PAD, y + 22, "may be left out", "m", "end")
    for at, (row, style) in enumerate(rows):
        canvas.write(x + PAD, y + 46 + at * LINE, row, style)
    return y + high


def _loop(canvas: Canvas, box: Box, x: float, y: float, end: float) -> None:
    """An arrow from a repeated step back into it, on its right side."""
    low, high = end - 14, y + 18
    canvas.path(f"M{x:g} {low:g}C{x + 44:g} {low:g} {x + 44:g} {high:g} {x + 2:g} {high:g}", tip=True, right=x + 44)
    canvas.write(x + 42, (low + high) / 2 + 4, box.loop or "", "t b")


# ---------------------------------------------------------------- sequences


def _steps(canvas: Canvas, shown: Diagram, top: float) -> None:
    wide = _width(shown)
    middle = LEFT + wide / 2
    y, begin, end = top + 14 * shown.boxes[0].optional, None, top
    for at, box in enumerate(shown.boxes):
        start = y
        if at:
            y = _down(canvas, box, middle, y)
        finish = _draw_box(canvas, box, LEFT, y, wide)
        if box.kind in (TAKE, GROUP):
            begin, end = y if begin is None else begin, finish
        if box.kind == WAIT:
            end = finish
        if box.loop:
            _loop(canvas, box, LEFT + wide, y, finish)
        first = at == 0
        y = _way_round(canvas, y - 14 if first else start, finish, middle, first) if box.optional else finish
    y = _ending(canvas, shown, middle, y, wide)
    if shown.span is not None and begin is not None:
        _span(canvas, shown.span, begin, end)
    if shown.until:
        _until(canvas, shown, y + 22, wide)


def _down(canvas: Canvas, box: Box, middle: float, y: float) -> float:
    """The arrow from the box above, with what it asks for written next to it."""
    free = 26 if box.optional else 0
    reach = 34 + max(0, len(box.arrow) - 1) * 18 + free
    tip = box.kind in (TAKE, GROUP)
    canvas.path(f"M{middle:g} {y:g}V{y + reach - (2 if tip else 0):g}", tip=tip)
    for at, label in enumerate(box.arrow):
        place = y + 20 + at * 18 + free
        timed = label.startswith(("within", "after"))
        if timed:
            canvas.clock(middle + 18, place - 2)
        canvas.write(middle + (32 if timed else 12), place + 2, label, "t")
    return y + reach


def _way_round(canvas: Canvas, start: float, finish: float, middle: float, first: bool) -> float:
    """The dashed way past an optional step; gives where it is back on the main way."""
    x, out, back = LEFT - 22, start + 13, finish + 20
    if first:
        canvas.path(f"M{middle:g} {start:g}V{start + 12:g}", tip=True)
        out = start
    way = (
        f"M{middle:g} {out:g}H{x + 8:g}Q{x:g} {out:g} {x:g} {out + 8:g}V{back - 8:g}Q{x:g} {back:g} {x + 8:g} {back:g}"
    )
    canvas.path(f"{way}H{middle - 2:g}", "line soft", tip=True)
    canvas.path(f"M{middle:g} {finish:g}V{back:g}")
    return back


def _ending(canvas: Canvas, shown: Diagram, middle: float, y: float, wide: float) -> float:
    if shown.having:
        canvas.path(f"M{middle:g} {y:g}V{y + 28:g}", tip=True)
        y = _draw_box(canvas, Box(TAKE, "and at the end", shown.having), LEFT, y + 30, wide)
    reach = 44 if shown.clock else 32
    canvas.path(f"M{middle:g} {y:g}V{y + reach - 2:g}", tip=True)
    if shown.clock:
        canvas.clock(middle + 18, y + 20)
        canvas.write(middle + 32, y + 24, shown.clock, "t")
    canvas.alert(middle, y + reach, shown.severity)
    return y + reach + 36


def _span(canvas: Canvas, span: str, begin: float, end: float) -> None:
    """The time that the whole may take, as a bracket on the left."""
    x = 44
    canvas.path(f"M{x + 8:g} {begin:g}H{x:g}V{end:g}H{x + 8:g}", "rail")
    place = (begin + end) / 2
    text = f"within {span}"
    half = (len(text) * SANS + 26) / 2
    canvas.add(f'<rect x="{x - 10:g}" y="{place - half:g}" width="20" height="{2 * half:g}" class="page"/>')
    canvas.clock(x, place + half - 12)
    turned = f'transform="translate({x + 4:g} {place + half - 24:g}) rotate(-90)"'
    canvas.add(f'<text {turned} class="m">{text}</text>', x, place)


def _until(canvas: Canvas, shown: Diagram, y: float, wide: float) -> None:
    rows = list(shown.until)
    high = 34 + len(rows) * LINE + 8
    canvas.box(LEFT, y, wide, high, "out")
    canvas.write(LEFT + PAD, y + 22, "until", "t b")
    for at, row in enumerate(rows):
        canvas.write(LEFT + PAD, y + 46 + at * LINE, row, "t c")
    side = LEFT + wide
    canvas.path(f"M{side:g} {y + high / 2:g}h34", "line soft", tip=True, right=side + 40)
    canvas.write(side + 42, y + high / 2 - 3, "all that was", "m")
    canvas.write(side + 42, y + high / 2 + 12, "begun is forgotten", "m")


# ---------------------------------------------------------------- windows


def _windows(canvas: Canvas, shown: Diagram, time_line: TimeLine, top: float) -> None:
    wide = max(_width(shown), 460)
    left, middle, y = TOP, TOP + wide / 2, top
    half = (wide - 16) / 2
    narrow = all(len(row) * MONO + 2 * PAD <= half for box in shown.boxes for row, _ in _rows(box))
    columns = 2 if narrow and len(shown.boxes) > 1 else 1
    for _, line in groupby(enumerate(shown.boxes), key=lambda item: item[0] // columns):
        group = list(line)
        ends = [
            _draw_box(canvas, box, left + (at % columns) * (half + 16), y, half if columns == 2 else wide)
            for at, box in group
        ]
        y = max(ends) + 12
    canvas.path(f"M{middle:g} {y - 12:g}V{y + 22:g}", tip=True)
    y = _time(canvas, time_line, left, y + 30, wide)
    if shown.having:
        canvas.path(f"M{middle:g} {y:g}V{y + 26:g}", tip=True)
        y = _draw_box(canvas, Box(TAKE, "and then", shown.having), left, y + 28, wide)
    canvas.path(f"M{middle:g} {y:g}V{y + 28:g}", tip=True)
    canvas.alert(middle, y + 30, shown.severity)


# Where events stand on the time line, as parts of its length.
_EVENTS = (0.06, 0.17, 0.22, 0.31, 0.44, 0.49, 0.58, 0.63, 0.74)


def _time(canvas: Canvas, time_line: TimeLine, left: float, y: float, wide: float) -> float:
    """The time line with its window; gives where it ends."""
    size, more = time_line.spans[0], time_line.spans[1:]
    if time_line.kind == "sliding":
        _bar(canvas, left + wide * 0.27, y, wide * 0.50, f"the last {size}")
        end = _axis(canvas, left, y + 46, wide, (0.27, 0.77), _EVENTS)
        again = f"; again every {more[0]} while it holds" if more else ""
        note = f"slides with every event and is tested when one comes{again}"
    elif time_line.kind == "session":
        events = (0.08, 0.13, 0.16, 0.27, 0.35, 0.40, 0.82, 0.87)
        _bar(canvas, left + wide * 0.06, y, wide * 0.36, "a session")
        x, quiet = left + wide * 0.42, wide * 0.26
        canvas.path(f"M{x + 4:g} {y + 13:g}H{x + quiet - 12:g}", "line soft", tip=True)
        canvas.write(x + quiet / 2 - 4, y + 7, f"{size} quiet", "m", "middle")
        canvas.clock(x + quiet, y + 13)
        end = _axis(canvas, left, y + 46, wide, (0.06, 0.42), events)
        cut = f", or {more[0]} after its start" if more else ""
        note = f"ends {size} after its last event{cut}"
    elif time_line.kind == "tumbling":
        for at in range(3):
            _bar(canvas, left + wide * (0.02 + at * 0.30), y, wide * 0.29, more[0])
        end = _axis(canvas, left, y + 46, wide, (0, 1), _EVENTS)
        note = "windows by the clock; each is looked at when it is over"
    else:
        for at in range(3):
            _bar(canvas, left + wide * (0.02 + at * 0.18), y + at * 30, wide * 0.5, more[0])
        end = _axis(canvas, left, y + 106, wide, (0, 1), _EVENTS)
        note = f"windows by the clock, a new one every {size}; each is looked at when it is over"
    for line in textwrap.wrap(note, int(wide / SANS)):
        canvas.write(left + wide / 2, end + 16, line, "m", "middle")
        end += 17
    return end + 11


def _bar(canvas: Canvas, x: float, y: float, wide: float, text: str) -> None:
    canvas.box(x, y, wide, 26, "bar", 6)
    canvas.write(x + wide / 2, y + 17, text, "t", "middle")


def _axis(
    canvas: Canvas, left: float, y: float, wide: float, inside: tuple[float, float], events: tuple[float, ...]
) -> float:
    canvas.path(f"M{left:g} {y:g}H{left + wide - 36:g}", tip=True)
    canvas.write(left + wide - 28, y + 4, "time", "m")
    for place in events:
        canvas.dot(left + wide * place, y, "dot" if inside[0] <= place <= inside[1] else "far", 4.5)
    return y + 10

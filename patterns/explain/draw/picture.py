"""A rule drawn as an SVG picture: steps as boxes below one another, or a window over a time line."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

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

MONO = 7.23  # width of a character of the fixed font at 12px
SANS = 6.6  # about, at 12.5px

_STYLE = """
svg{--page:#ffffff;--ink:#1d2733;--muted:#5c6b7c;--line:#8a9bb0;--box:#f4f7fb;--edge:#9db2cc;--accent:#1f5fbf;
--bad:#c0322b;--badbox:#fdf3f2;--alert:#b45309;--bar:#dbe8fa;font-family:system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
@media (prefers-color-scheme:dark){svg{--page:#12171e;--ink:#e4eaf1;--muted:#9aa8b8;--line:#66778b;--box:#1b232d;
--edge:#3d4f66;--accent:#7fb0ff;--bad:#ff8278;--badbox:#2b1a1b;--alert:#f0a04b;--bar:#22344e}}
.page{fill:var(--page)}.t{fill:var(--ink);font-size:12.5px}.h{font-size:19px;font-weight:650}.b{font-weight:600}
.m{fill:var(--muted);font-size:12px}.c{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",
monospace;font-size:12px}.y{fill:var(--accent);font-weight:600}.r{fill:var(--bad)}.w{fill:#fff;font-weight:650}
.box{fill:var(--box);stroke:var(--edge);stroke-width:1.3}.no{fill:var(--badbox);stroke:var(--bad);stroke-width:1.4;
stroke-dasharray:6 4}.out{fill:var(--page);stroke:var(--line);stroke-width:1.3;stroke-dasharray:3 3}
.line{fill:none;stroke:var(--line);stroke-width:1.7}.soft{stroke-dasharray:5 4}.rail{fill:none;stroke:var(--muted);
stroke-width:1.2}.badge{fill:var(--accent)}.pill{fill:var(--page);stroke:var(--edge)}.bar{fill:var(--bar);
stroke:var(--accent);stroke-width:1.2}.dot{fill:var(--accent)}.far{fill:var(--line)}.tip{fill:var(--line)}
.n{fill:var(--page);font-size:12px;font-weight:650}.redline{fill:none;stroke:var(--bad);stroke-width:1.7}
"""

SEVERITIES = {"info": "#4b6584", "low": "#2f7d6b", "medium": "#a06a00", "high": "#c2410c", "critical": "#b3142c"}


@dataclass
class Canvas:
    """Gathers the parts of a picture; `text` puts it together."""

    parts: list[str] = field(default_factory=list)
    right: float = 0
    bottom: float = 0

    def add(self, part: str, right: float = 0, bottom: float = 0) -> None:
        self.parts.append(part)
        self.right, self.bottom = max(self.right, right), max(self.bottom, bottom)

    def write(self, x: float, y: float, text: str, style: str = "t", anchor: str = "start") -> None:
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        wide = len(text) * (MONO if "c" in style.split() else 11 if "h" in style.split() else SANS)
        end = {"start": x + wide, "middle": x + wide / 2}.get(anchor, x)
        kept = ' xml:space="preserve"' if text.startswith(" ") else ""
        self.add(f'<text x="{x:g}" y="{y:g}" class="{style}"{place}{kept}>{escape(text)}</text>', end, y + 6)

    def box(self, x: float, y: float, wide: float, high: float, style: str = "box", corner: float = 9) -> None:
        shape = f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="{corner:g}" class="{style}"/>'
        self.add(shape, x + wide, y + high)

    def path(self, way: str, style: str = "line", tip: bool = False, right: float = 0) -> None:
        end = ' marker-end="url(#tip)"' if tip else ""
        self.add(f'<path d="{way}" class="{style}"{end}/>', right)

    def dot(self, x: float, y: float, style: str = "dot", radius: float = 4) -> None:
        self.add(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{style}"/>', x + radius, y + radius)

    def clock(self, x: float, y: float) -> None:
        self.add(f'<circle cx="{x:g}" cy="{y:g}" r="7" class="pill" style="stroke:var(--muted);stroke-width:1.4"/>')
        self.path(f"M{x:g} {y - 4:g}V{y:g}L{x + 3:g} {y + 2:g}", "rail")

    def forbidden(self, x: float, y: float) -> None:
        """A circle with a bar through it."""
        self.add(f'<circle cx="{x:g}" cy="{y:g}" r="6.5" class="redline"/>')
        self.path(f"M{x - 4.5:g} {y - 4.5:g}L{x + 4.5:g} {y + 4.5:g}", "redline")

    def pill(self, x: float, y: float, text: str) -> float:
        """A label in a rounded frame; gives where it ends."""
        wide = len(text) * SANS + 20
        self.box(x, y, wide, 22, "pill", 11)
        self.write(x + wide / 2, y + 15, text, "m", "middle")
        return x + wide

    def alert(self, middle: float, y: float, severity: str) -> None:
        text = f"Alert: {severity}"
        wide = len(text) * 8 + 56
        color = SEVERITIES.get(severity, SEVERITIES["medium"])
        left = middle - wide / 2
        self.add(
            f'<rect x="{left:g}" y="{y:g}" width="{wide:g}" height="36" rx="18" fill="{color}"/>', left + wide, y + 36
        )
        bell = f"M{left + 18:g} {y + 23:g}h12c-2-2-2-4-2-7a4 4 0 0 0-8 0c0 3 0 5-2 7zm4 2a2 2 0 0 0 4 0z"
        self.add(f'<path d="{bell}" fill="#fff"/>')
        self.write(left + 40, y + 23, text, "t w")

    def text(self, label: str) -> str:
        wide, high = round(self.right + 24), round(self.bottom + 24)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
            f'role="img" aria-label={quoteattr(label)}>'
        )
        tip = (
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="8.5" refY="5" markerWidth="7.5" markerHeight="7.5" '
            'orient="auto-start-reverse"><path d="M0 0.8L9.5 5L0 9.2z" class="tip"/></marker></defs>'
        )
        page = f'<rect width="{wide}" height="{high}" class="page"/>'
        title = f"<title>{escape(label)}</title><style>{_STYLE.replace(chr(10), '')}</style>"
        return "\n".join([head, title, tip, page, *self.parts, "</svg>"]) + "\n"


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
        y = _draw_box(canvas, Box(kind=TAKE, title="and at the end", lines=shown.having), LEFT, y + 30, wide)
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
        y = _draw_box(canvas, Box(kind=TAKE, title="and then", lines=shown.having), left, y + 28, wide)
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

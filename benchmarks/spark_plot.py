"""A small picture of lines, as SVG with nothing to fetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 320, 70, 50, 40
ROOM = 22  # between nothing and the axis, for values that stand below their points
COLORS = ("#b5532a", "#3b6ea5", "#5a7d3a")


def plot(lines: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> str:
    """Points of each line, from the origin on, with their values next to them.

    >>> plot({"a": [(1.0, 2.0)]}, "x", "y").startswith("<svg")
    True
    """
    right = max(x for points in lines.values() for x, _ in points)
    top = max(y for points in lines.values() for _, y in points)
    parts = [_frame(across, up)]
    sizes = {
        x: max(y for points in lines.values() for at, y in points if at == x) for x, _ in next(iter(lines.values()))
    }
    for number, (name, points) in enumerate(lines.items()):
        places = [_place(x / right, y / top) for x, y in points]
        parts.append(_line(name, places, points, COLORS[number % 3], sizes))
    parts += [_size(_place(size / right, 0)[0], size) for size in sizes]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        f' font-size="12">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _place(x: float, y: float) -> tuple[float, float]:
    wide, high = WIDTH - LEFT - 90, HEIGHT - BOTTOM - TOP - ROOM
    return LEFT + x * wide, HEIGHT - BOTTOM - ROOM - y * high


def _frame(across: str, up: str) -> str:
    base = HEIGHT - BOTTOM
    return "\n".join(
        [
            f'<path d="M{LEFT} {TOP} V{base} H{WIDTH - 20}" fill="none" stroke="#444444"/>',
            f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>',
            f'<text x="16" y="{TOP - 12}">{escape(up)}</text>',
        ]
    )


def _size(x: float, size: float) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{size:g}</text>'


def _line(
    name: str,
    places: Sequence[tuple[float, float]],
    points: Sequence[tuple[float, float]],
    color: str,
    most: Mapping[float, float],
) -> str:
    """The largest value of a size stands above its point, others below theirs."""
    path = " ".join(f"{'M' if not place else 'L'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(places))
    parts = [f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>']
    for (x, y), (size, value) in zip(places, points, strict=True):
        shift = -8 if value == most[size] else 16
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + shift:.1f}" text-anchor="middle" fill="{color}">{value:,.1f} s</text>')
    x, y = places[-1]
    parts.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{color}">{escape(name)}</text>')
    return "\n".join(parts)

"""A small canvas for SVG: rounded boxes, arrows, texts, icons; self-contained, for light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

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

"""Makes demo.svg: the first alerts of `samovar demo`, as a terminal shows them. Run it when the demo's output changes.

.venv/bin/python docs/images/capture.py
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

from samovar.service.offline.demo import DemoOptions, demo

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 100
LINES = 28
SECONDS = 30.0
UNSTEADY = ("since the start", "the first alert, after")  # these differ from machine to machine

# Rich's own frame, but with the reader's fonts: a picture in a page may not fetch any.
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def recording() -> Console:
    return Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")


def shown_lines() -> list[str]:
    """The beginning of a demo in a fresh copy of the examples."""
    console = recording()
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "examples"
        shutil.copytree(ROOT / "examples", copy, ignore=shutil.ignore_patterns(".samovar"))
        demo(console, DemoOptions(copy, 20.0, SECONDS))
    lines = console.export_text(styles=True).replace(str(copy), "examples").strip().splitlines()
    lines = [line for line in lines if not any(text in line for text in UNSTEADY)]
    return ["\x1b[1m$ make demo\x1b[0m", *lines[: LINES - 1]]


def main() -> None:
    console = recording()
    for line in shown_lines():
        text = Text.from_ansi(line)
        # A narrow terminal would cut the line; the picture says that it is cut.
        text.truncate(COLUMNS, overflow="ellipsis")
        console.print(text, no_wrap=True, highlight=False)
    svg = console.export_svg(title="make demo", code_format=FRAME, unique_id="demo")
    svg = "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"
    (Path(__file__).parent / "demo.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    main()

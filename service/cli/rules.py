"""The commands `samovar rules check` and `samovar rules explain`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from samovar.patterns.rulefile.rule_file import load_path
from samovar.service.rules import check, explain

rules = typer.Typer(rich_markup_mode=None)


class Format(StrEnum):
    TEXT = "text"
    SVG = "svg"
    JSON = "json"


@rules.command("check")
def rules_check(
    paths: Annotated[list[str], typer.Argument(metavar="FILE|DIR...", show_default=False)],
    *,
    schema: Annotated[str | None, typer.Option(metavar="FILE", help="Event types and their fields.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Check rule files: every error, what is probably not meant, and what each rule costs.

    Exit codes: 0 no errors (with --strict: no warnings either), 1 otherwise, 2 wrong usage or an unreadable schema.
    """
    try:
        known = check.read_schema(schema) if schema is not None else None
    except check.SchemaUnreadable as fault:
        print(f"error: {fault}", file=sys.stderr)
        raise typer.Exit(check.USAGE) from None
    checked = check.check(paths, known)
    print(check.as_json(checked, strict) if json else check.as_text(checked))
    raise typer.Exit(check.exit_code(checked, strict))


@rules.command("explain")
def rules_explain(
    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False)],
    *,
    format: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.TEXT,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write to a file.")] = None,
) -> None:
    """Explain a rule in plain English, with a drawing of its steps and what its state costs.

    Exit codes: 0 fine, 1 the rule has errors or the output cannot be written, 2 wrong usage.
    """
    loaded = load_path(file)
    if loaded.rule is None:
        print(explain.refusal(loaded, explain.text_of(file)), file=sys.stderr)
        raise typer.Exit(1)
    text = explain.explained(loaded.rule, format.value)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, "utf-8")
    except OSError as fault:
        print(f"error: cannot write {out}: {fault.strerror or fault}", file=sys.stderr)
        raise typer.Exit(1) from None

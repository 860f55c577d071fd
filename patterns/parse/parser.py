"""Text to raw tree: `read_match` and `read_expression`. Never raises for any text: what is wrong is a Finding.

The grammar is in grammar.lark; lark's tables are built, or read from a cache, at the first use.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from samovar.patterns.parse import dialect_hints
from samovar.patterns.parse.expressions import Branch, Builder
from samovar.patterns.parse.forms import FormHead, MatchOptions, StepText, build_bracket, build_head, build_step
from samovar.patterns.parse.recovery import Pieces, TextPiece, cut_match, sound_expression
from samovar.patterns.syntax.constants import Constants
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import Locate
from samovar.patterns.syntax.tree import Bracket, Expr, Literal, Span, Step, StepKind

MAX_STEPS = 64
MAX_TREE_DEPTH = 100

_STARTS = ["head", "step", "until", "bracket", "expression"]


@dataclass(kw_only=True)
class MatchText:
    """The raw form: what the text says, with places; `sound` is False where a piece of it did not parse."""

    head: FormHead
    steps: list[StepText] = field(default_factory=list)
    until: Bracket | None = None
    until_marks: dict[str, Span] = field(default_factory=dict)
    having: Expr | None = None
    sound: bool = True


def read_expression(text: str, locate: Locate, report: Report, constants: Constants) -> Expr | None:
    if not text.strip():
        report.error("missing-expression", "there is no expression here", locate(0, len(text)), expected="a value")
        return None
    if not sound_expression(text, locate, report):
        return None
    builder = Builder(locate, report, constants)
    node = _parse(text, "expression", builder)
    return None if node is None else builder.expression(node)


def read_match(text: str, locate: Locate, report: Report, constants: Constants) -> MatchText | None:
    if not text.strip():
        expected = "`sequence`, `aggregate`, `session` or `window`"
        report.error("missing-match", "the match is empty", locate(0, len(text)), expected=expected)
        return None
    pieces = cut_match(text, locate, report)
    return (
        None
        if pieces is None
        else _Reader(text=text, locate=locate, report=report, constants=constants, pieces=pieces).read()
    )


@dataclass(kw_only=True)
class _Reader:
    """Parses the pieces of one match, each by itself."""

    text: str
    locate: Locate
    report: Report
    constants: Constants
    pieces: Pieces
    sound: bool = True

    def read(self) -> MatchText | None:
        pieces = self.pieces
        if len(pieces.steps) > MAX_STEPS or len(pieces.brackets) > MAX_STEPS:
            spot = pieces.steps[min(MAX_STEPS, len(pieces.steps) - 1)]
            message = f"more than {MAX_STEPS} steps or brackets"
            hint = "repeated steps are written once, `with runs=3..`"
            self.report.error("too-many-steps", message, self.locate(spot.start, spot.start + 1), hint=hint)
            return None
        brackets = {start: self._bracket(piece) for start, piece in pieces.brackets.items()}
        match = MatchText(head=self._head())
        match.steps = [self._step(piece, brackets) for piece in pieces.steps]
        self._read_until(match, brackets)
        self._read_having(match)
        match.sound = self.sound
        return match

    def _builder(self, base: int) -> Builder:
        return Builder(self.locate, self.report, self.constants, base)

    def _span(self, piece: TextPiece) -> Span:
        return self.locate(piece.start, piece.end)

    def _head(self) -> FormHead:
        piece = self.pieces.head
        builder = self._builder(piece.start)
        node = _parse(self.pieces.blanked[piece.start : piece.end], "head", builder)
        if node is not None:
            return build_head(node, builder)
        self.sound = False
        first = self.text.split(None, 1)[0]
        return FormHead(first if first in ("sequence", "aggregate", "session", "window") else "sequence")

    def _bracket(self, piece: TextPiece) -> Bracket:
        """A bracket without its modifiers; one that does not parse is any event."""
        span = self._span(piece)
        builder = self._builder(piece.start + 1)
        node = _parse(self.text[piece.start + 1 : piece.end - 1], "bracket", builder) if piece.sound else None
        if node is None:
            self.sound = False
            return Bracket(type="any", condition=Literal(True, span), name=None, by=None, span=span)
        name, condition = node.children
        assert isinstance(name, Token)
        event_type = builder.string(name) if name.type == "STRING" else str(name).strip("`")
        return Bracket(type=event_type, condition=builder.expression(condition), name=None, by=None, span=span)

    def _step(self, piece: TextPiece, brackets: dict[int, Bracket]) -> StepText:
        """A step; one that does not parse keeps its name, so that reading it does not cause a second error."""
        builder = self._builder(piece.start)
        node = _parse(self.pieces.blanked[piece.start : piece.end], "step", builder) if piece.sound else None
        if node is not None:
            return build_step(node, builder, brackets)
        self.sound = False
        own = tuple(bracket for start, bracket in brackets.items() if piece.start <= start < piece.end)
        text, span = self.text[piece.start : piece.end], self._span(piece)
        name = re.search(r"\bas\s+([^\W\d]\w*)", text)
        kind = StepKind.ABSENT if text.lstrip().startswith("!") else StepKind.TAKE
        return StepText(
            Step(kind=kind, brackets=own, name=name[1] if name else None, span=span),
            {"as": span} if name else {},
            False,
        )

    def _read_until(self, match: MatchText, brackets: dict[int, Bracket]) -> None:
        for index, piece in enumerate(self.pieces.until):
            builder, options = self._builder(piece.start), MatchOptions()
            node = _parse(self.pieces.blanked[piece.start : piece.end], "until", builder) if piece.sound else None
            if index > 0:
                hint = "write `[a where ..]` for one type, `[any where ..]` for several"
                self.report.error("duplicate-option", "`until` stands twice", self._span(piece), hint=hint)
            elif node is None:
                self.sound = False
            else:
                inner = node.children[0]
                assert isinstance(inner, Tree)
                match.until = build_bracket(inner, builder, brackets, options, {})
                match.until_marks = options.marks

    def _read_having(self, match: MatchText) -> None:
        for index, piece in enumerate(self.pieces.having):
            start = piece.start + len("having")
            builder = self._builder(start)
            text = self.pieces.blanked[start : piece.end]
            if index > 0:
                hint = "join the conditions with `and`"
                self.report.error("duplicate-option", "`having` stands twice", self._span(piece), hint=hint)
            elif not text.strip():
                self.sound = False
                self.report.error("missing-expression", "`having` has no condition", self._span(piece))
            else:
                node = _parse(text, "expression", builder) if piece.sound else None
                self.sound = self.sound and node is not None
                match.having = Literal(True) if node is None else builder.expression(node)


@cache
def _lark() -> Lark:
    """The parser, with its tables kept between runs: building them takes longer than all the rest of start-up.

    Lark checks that the file was made from this grammar by this version. It is a pickle, so it lies in the user's own
    folder and not in a shared one. Where none can be made, the tables are built again.
    """
    tables: str | bool = False
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samovar"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tables = str(folder / "grammar.tables")
    except (OSError, RuntimeError):
        pass
    grammar = Path(__file__).with_name("grammar.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", start=_STARTS, propagate_positions=True,
                maybe_placeholders=True, cache=tables)  # fmt: skip


def _parse(text: str, start: str, builder: Builder) -> Branch | None:
    """Lark's tree of a text, or None and a finding."""
    try:
        node: Branch = _lark().parse(text, start=start)
    except UnexpectedInput as fault:
        at, end, accepts = _fault_place(fault, text)
        found = text[at:end]
        what = f"`{found}` cannot stand here" if found.strip() else "something is missing here"
        span = builder.locate(builder.base + at, builder.base + end)
        hint = dialect_hints.hint(text, at, accepts)
        builder.report.error("syntax", what, span, expected=dialect_hints.expected(accepts), hint=hint)
        return None
    # How deep the expression will go, without recursion: a chain of sums leans to the left, link by link.
    deepest, stack = 0, [(node, 1)]
    while stack:
        top, level = stack.pop()
        level += len(top.children) // 2 - 1 if top.data in ("sum", "product") else 0
        deepest = max(deepest, level)
        stack.extend((child, level + 1) for child in top.children if isinstance(child, Tree))
    if deepest > MAX_TREE_DEPTH:
        builder.report.error("too-deep", f"nested more than {MAX_TREE_DEPTH} levels deep", builder.span(node))
        return None
    return node


def _fault_place(fault: UnexpectedInput, text: str) -> tuple[int, int, set[str]]:
    """Where the text stops making sense, and what could have stood there."""
    parser = getattr(fault, "interactive_parser", None)
    accepts: set[str] = set(parser.accepts()) if parser is not None else set()
    if isinstance(fault, UnexpectedCharacters):
        at = fault.pos_in_stream or 0
        end = at + 1
        while end < len(text) and text[at].isalnum() and (text[end].isalnum() or text[end] == "_"):
            end += 1
        return at, end, accepts
    if isinstance(fault, UnexpectedToken) and fault.token.type != "$END":
        return fault.token.start_pos or 0, fault.token.end_pos or 0, accepts
    return len(text.rstrip()), len(text.rstrip()), accepts

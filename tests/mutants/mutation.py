"""Mutants of one module: small edits of its text, found by its syntax tree. One text always gives the same ones."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]

# Statements that people see and no state depends on: log events, counts for the metrics, times of commits.
QUIET = re.compile(
    r"\bsince\.|\btell\(|\bnotes\b|_tell_notes|Note\(|_since\b|[^_]counts\b|_counts?_?on\b|commit_times|on_progress"
)
BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OTHER_CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}
OTHER_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
# A refusal is decided before it is raised; a function inside another is met by itself.
UNTOUCHED = ast.Raise | ast.Assert | ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
NUMBER = re.compile(r"(_ms|_s|_bytes|_rows|next|offset|number|start|end|at|time|count|len\(.*\))$")

Edit: TypeAlias = tuple[str, ast.expr | ast.stmt, str]  # kind, what is replaced, by which text


@dataclass(frozen=True, slots=True)
class Mutant:
    """One module with one edit."""

    module: str  # as in "tasks/input/source"
    line: int
    kind: str
    before: str  # the changed lines, without their indentation
    after: str
    start: int  # in the bytes of the module's text
    end: int
    text: str
    number: int = 1  # among those of its kind on its line
    twin: int = 1  # among those that read the same, on other lines
    first: int = 0  # and last line of the statement that it is in, without its blocks
    last: int = 0

    @property
    def id(self) -> str:
        return f"{self.module}:{self.line}:{self.kind}" + (f".{self.number}" if self.number > 1 else "")

    @property
    def import_name(self) -> str:
        return "samovar." + self.module.replace("/", ".")

    def source(self) -> bytes:
        """The mutated text of the module."""
        whole = path_of(self.module).read_bytes()
        return whole[: self.start] + self.text.encode() + whole[self.end :]

    def diff(self) -> str:
        gone = "\n".join(f"- {line}" for line in self.before.splitlines())
        return gone + "\n" + "\n".join(f"+ {line}" for line in self.after.splitlines())


def path_of(module: str) -> Path:
    return ROOT / f"{module}.py"


def mutants_of(module: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    return mutants_in(module, path_of(module).read_bytes())


def mutants_in(module: str, source: bytes) -> list[Mutant]:
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    heads = sorted(map(_head, (node for node in ast.walk(tree) if isinstance(node, ast.stmt))))
    found: list[Mutant] = []
    known: set[tuple[int, int, str]] = set()
    names: Counter[tuple[int, str]] = Counter()
    twins: Counter[tuple[int, str, str]] = Counter()
    for kind, node, text in sorted(_edits(tree), key=_place):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        if (start, end, text) in known or source[start:end].decode() == text:
            continue
        known.add((start, end, text))
        names[node.lineno, kind] += 1
        first, last = starts[node.lineno - 1], starts[node.end_lineno]
        before = source[first:last].decode()
        after = (source[first:start] + text.encode() + source[end:last]).decode()
        number = names[node.lineno, kind]
        shown = _without_indent(before), _without_indent(after)
        twins[number, *shown] += 1
        begin, until = [head for head in heads if head[0] <= node.lineno <= head[1]][-1]
        twin = twins[number, *shown]
        found.append(Mutant(module, node.lineno, kind, *shown, start, end, text, number, twin, begin, until))
    return found


def _head(statement: ast.stmt) -> tuple[int, int]:
    """The lines of a statement without its blocks."""
    assert statement.end_lineno is not None
    inside = [block[0].lineno for block in _blocks(statement) if block]
    return statement.lineno, max(statement.lineno, min(inside) - 1) if inside else statement.end_lineno


def _place(edit: Edit) -> tuple[int, int, str, str]:
    kind, node, text = edit
    return node.lineno, node.col_offset, kind, text


def _without_indent(text: str) -> str:
    indent = len(text) - len(text.lstrip())
    return "\n".join(line[min(indent, len(line) - len(line.lstrip())) :].rstrip() for line in text.splitlines())


# ---------------------------------------------------------------- where edits may be


def _edits(tree: ast.Module) -> Iterator[Edit]:
    """Only inside functions: constants of modules and fields of classes are settings, and names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not _is_declared_only(node):
            yield from _of_body(node.body, node)


def _is_declared_only(function: ast.FunctionDef) -> bool:
    return function.name in ("__repr__", "__str__")


def _of_body(body: Iterable[ast.stmt], function: ast.FunctionDef) -> Iterator[Edit]:
    for statement in body:
        if not isinstance(statement, UNTOUCHED) and not _is_quiet(statement):
            yield from _of_statement(statement, function)
            for part in _expressions(statement):
                yield from _of_expression(part)
            for block in _blocks(statement):
                yield from _of_body(block, function)


def _is_quiet(statement: ast.stmt) -> bool:
    """Whether nothing but messages and counts would change."""
    blocks = [block for block in _blocks(statement) if block]
    if blocks:
        return not isinstance(statement, UNTOUCHED | ast.Try) and all(
            _is_quiet(each) for part in blocks for each in part
        )
    return QUIET.search(ast.unparse(statement)) is not None


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement that are worked out when it runs: not its blocks, not its annotation."""
    for name, value in ast.iter_fields(statement):
        if name != "annotation":
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.expr))
    for item in getattr(statement, "items", []):
        yield item.context_expr


# ---------------------------------------------------------------- statements


def _of_statement(statement: ast.stmt, function: ast.FunctionDef) -> Iterator[Edit]:
    match statement:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Return(value=None) | ast.Continue():
            yield "remove", statement, "pass"
        case ast.Assign(targets=targets) if function.name != "__init__" and all(map(_is_kept, targets)):
            yield "remove", statement, "pass"
        case ast.Break():
            yield "remove", statement, "continue"
        case ast.If(test=test):
            yield from _decided(test)
        case ast.While(test=test):
            yield "never", test, "False"
        case ast.Return(value=ast.expr() as value):
            yield from _returned(value, function)


def _is_kept(target: ast.expr) -> bool:
    """Whether it outlives the function, so that leaving the assignment out is no plain NameError."""
    if isinstance(target, ast.Tuple):
        return all(_is_kept(each) for each in target.elts)
    return isinstance(target, ast.Attribute | ast.Subscript)


def _returned(value: ast.expr, function: ast.FunctionDef) -> Iterator[Edit]:
    says = "" if function.returns is None else ast.unparse(function.returns)
    if says == "bool" and not isinstance(value, ast.Constant):
        yield "return", value, f"not ({ast.unparse(value)})"
    if says == "int" and not isinstance(value, ast.Constant):
        yield "return", value, f"({ast.unparse(value)}) + 1"
    if says.endswith("| None") and not isinstance(value, ast.Constant):
        yield "return", value, "None"


def _decided(test: ast.expr) -> Iterator[Edit]:
    yield "always", test, "True"
    yield "never", test, "False"


# ---------------------------------------------------------------- expressions


def _of_expression(whole: ast.expr) -> Iterator[Edit]:
    """Edits of an expression and of what is in it. The inside of a text is a message."""
    if isinstance(whole, ast.JoinedStr):
        return
    yield from _of_node(whole)
    for child in ast.iter_child_nodes(whole):
        if isinstance(child, ast.expr):
            yield from _of_expression(child)
        elif isinstance(child, ast.keyword) and child.arg != "strict":  # `zip(strict=True)` asserts
            yield from _of_expression(child.value)
        elif isinstance(child, ast.comprehension):
            yield from _of_expression(child.iter)
            for test in child.ifs:
                yield from _decided(test)
                yield from _of_expression(test)


def _of_node(node: ast.expr) -> Iterator[Edit]:
    match node:
        case ast.Compare():
            yield from _compared(node)
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "logic", node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, f"({ast.unparse(operand)})"
        case ast.IfExp(test=test):
            yield from _decided(test)
        case ast.Constant(value=bool() as value):
            yield "flip", node, str(not value)
        case ast.Constant(value=int() as value):
            yield "plus", node, str(value + 1)
            yield "minus", node, f"({value - 1})" if value < 1 else str(value - 1)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OTHER_OPERATORS:
            if not isinstance(operator, ast.Add) or _is_number(left) or _is_number(right):
                yield "arithmetic", node, f"({ast.unparse(ast.BinOp(left, OTHER_OPERATORS[type(operator)](), right))})"
        case ast.Call():
            yield from _called(node)


def _compared(node: ast.Compare) -> Iterator[Edit]:
    for table, kind in ((BOUNDARIES, "boundary"), (OPPOSITES, "negate")):
        for place, operator in enumerate(node.ops):
            if type(operator) in table:
                operators = [*node.ops[:place], table[type(operator)](), *node.ops[place + 1 :]]
                yield kind, node, f"({ast.unparse(ast.Compare(node.left, operators, node.comparators))})"


def _called(node: ast.Call) -> Iterator[Edit]:
    function = node.func
    name = (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )
    if name in OTHER_CALLS:
        said = ast.unparse(function)
        yield "other", function, said[: -len(name)] + OTHER_CALLS[name]
    if name == "sorted" and isinstance(function, ast.Name):
        yield "unsorted", node, f"list({ast.unparse(node.args[0])})"


def _is_number(node: ast.expr) -> bool:
    """Whether an operand of + is a number, as far as its name tells: of texts and lists nobody subtracts."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    return NUMBER.search(ast.unparse(node)) is not None

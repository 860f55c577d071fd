"""What may stand where in a match: the errors that depend on the order of steps and on the form."""

from __future__ import annotations

from samovar.patterns.parse.forms import StepText
from samovar.patterns.parse.parser import MatchText
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.tree import Span, Step, StepKind

_REQUIRED = {
    "sequence": ("maxspan", "sequence by card with maxspan=10m"),
    "session": ("gap", "session by user with gap=30m"),
    "aggregate": ("over", "aggregate by card over 10m"),
    "window": ("every", "window by user every 10m"),
}


def check_places(match: MatchText, report: Report) -> None:
    name, example = _REQUIRED[match.head.kind]
    if name not in match.head.options.marks and not match.head.options.misspelt:
        report.error(f"missing-{name}", f"`{match.head.kind}` needs `{name}`", match.head.span, expected=example)
    if match.head.kind == "sequence":
        _check_sequence(match, report)
    else:
        _check_other(match, report)


def _check_sequence(match: MatchText, report: Report) -> None:
    options = match.head.options
    if options.words.get("overlap", "latest") == "latest" and options.words.get("skip", "past_last") != "past_last":
        message = "`overlap=latest` always skips past the last match"
        hint = f"write `overlap=all, skip={options.words['skip']}`"
        report.error("skip-with-latest", message, options.marks["skip"], hint=hint)
    positive = [index for index, text in enumerate(match.steps) if text.step.kind is not StepKind.ABSENT]
    if not positive:
        message = "every step is a negation: nothing can begin a match"
        hint = "put `[type where ...]` before or after it"
        report.error("only-negations", message, match.steps[0].step.span, hint=hint)
        return
    if all(match.steps[index].step.optional for index in positive):
        hint = "take the `?` from one of them"
        report.error("all-optional", "every step is optional", match.steps[positive[0]].step.span, hint=hint)
    for index, text in enumerate(match.steps):
        if text.step.kind is StepKind.ABSENT:
            _check_negation(text, index < positive[0], index > positive[-1], report)
        else:
            _check_positive(text, index == positive[0], report)
    _check_last(match.steps[-1], report)


def _check_negation(text: StepText, first: bool, last: bool, report: Report) -> None:
    marks = text.marks
    for name in ("runs", "after"):
        _refuse(name, marks, f"`{name}` cannot stand on a negation", report)
    _refuse("optional", marks, "a negation cannot be optional", report)
    _refuse("next", marks, "`next` cannot stand on a negation", report)
    if first:
        _refuse("within", marks, "`within` cannot stand on a first negation", report, "write `with for=10m`")
        if "for" not in marks:
            message = "a negation that comes first needs a time to look back"
            report.error("missing-for", message, text.step.span, expected="with for=10m")
    else:
        _refuse(
            "for",
            marks,
            "`for` belongs to a negation before the first step",
            report,
            "write `with within=10m`" if last else None,
        )
        if not last:
            _refuse(
                "within",
                marks,
                "`within` cannot stand on a negation between steps",
                report,
                "put it on the step that follows",
            )


def _check_positive(text: StepText, first: bool, report: Report) -> None:
    step, marks = text.step, text.marks
    _refuse("for", marks, "`for` belongs to a negation before the first step", report)
    if first:
        for name in ("next", "within", "after"):
            _refuse(name, marks, f"`{name}` counts from the step before, and this is the first", report)
    elif step.optional:
        _refuse("next", marks, "`next` cannot stand on an optional step", report)
    if step.kind is StepKind.UNORDERED:
        _check_group(text, report)


def _check_group(text: StepText, report: Report) -> None:
    marks = text.marks
    for name in ("next", "runs", "optional", "absent"):
        sign = {"optional": "?", "absent": "!"}.get(name, name)
        _refuse(name, marks, f"`{sign}` cannot stand on an unordered group", report)
    if len(text.step.brackets) < 2:
        expected = "unordered { [...] as a [...] as b }"
        report.error("small-group", "`unordered` needs at least two members", text.step.span, expected=expected)


def _check_last(text: StepText, report: Report) -> None:
    step = text.step
    if step.kind is StepKind.ABSENT:
        return
    if step.optional:
        hint = "without it the match is complete already: leave the step out"
        report.error("optional-last", "the last step cannot be optional", text.marks["optional"], hint=hint)
    if step.runs_max != step.runs_min:
        message = "the last step cannot have an open or ranged run"
        expected = f"runs={step.runs_min}"
        report.error("open-last", message, text.marks["runs"], expected=expected, hint=_open_last_hint(step))


def _open_last_hint(step: Step) -> str:
    return (
        f"the match is made at the {step.runs_min}. event: write `runs={step.runs_min}`, or add the step that ends it"
    )


def _refuse(name: str, marks: dict[str, Span], message: str, report: Report, hint: str | None = None) -> None:
    if name in marks:
        report.error("misplaced-option", message, marks[name], hint=hint)


def _check_other(match: MatchText, report: Report) -> None:
    kind = match.head.kind
    for text in match.steps:
        for name, sign in (("absent", "!"), ("optional", "?"), ("next", "next")):
            _refuse(name, text.marks, f"`{sign}` belongs to steps of a sequence; `{kind}` has only brackets", report)
        for name in ("runs", "within", "after", "for"):
            _refuse(name, text.marks, f"`{name}` belongs to steps of a sequence; `{kind}` has only brackets", report)
        if text.step.kind is StepKind.UNORDERED:
            message = f"`unordered` belongs to a sequence; `{kind}` has only brackets"
            report.error("misplaced-option", message, text.step.span)
        elif len(text.step.brackets) > 1:
            message = f"`or` belongs to steps of a sequence; `{kind}` has only brackets"
            hint = "write the brackets one after the other: an event enters every one it fits"
            report.error("misplaced-option", message, text.step.span, hint=hint)
    if match.until is not None:
        report.error("misplaced-option", f"`until` belongs to a sequence, not to `{kind}`", match.until.span)
    times = match.head.options.times
    if kind == "window" and times.get("size", times.get("every", 0)) < times.get("every", 0):
        message = "`size` is smaller than `every`: events between windows would be lost"
        report.error("small-window", message, match.head.options.marks["size"], expected="size of at least every")

"""What may stand where in a match: the errors that depend on the order of steps and on the form."""

from __future__ import annotations

from collections.abc import Mapping

from samovar.patterns.parse.forms import StepText
from samovar.patterns.parse.parser import MatchText
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.tree import StepKind

_REQUIRED = {
    "sequence": ("maxspan", "sequence by card with maxspan=10m"),
    "session": ("gap", "session by user with gap=30m"),
    "aggregate": ("over", "aggregate by card over 10m"),
    "window": ("every", "window by user every 10m"),
}
_FOR = "`for` belongs to a negation before the first step"


def check_places(match: MatchText, report: Report) -> None:
    name, example = _REQUIRED[match.head.kind]
    if name not in match.head.options.marks and not match.head.options.misspelt:
        report.error(f"missing-{name}", f"`{match.head.kind}` needs `{name}`", match.head.span, expected=example)
    if match.head.kind == "sequence":
        _check_sequence(match, report)
    else:
        _check_other(match, report)


def _refuse(text: StepText, messages: Mapping[str, str], report: Report, hint: str | None = None) -> None:
    """An error for each of these options and prefixes that stands on a step."""
    for name, message in messages.items():
        if name in text.marks:
            report.error("misplaced-option", message, text.marks[name], hint=hint)


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
    last = match.steps[-1].step
    if last.kind is StepKind.ABSENT:
        return
    if last.optional:
        hint = "without it the match is complete already: leave the step out"
        where = match.steps[-1].marks["optional"]
        report.error("optional-last", "the last step cannot be optional", where, hint=hint)
    if last.runs_max != last.runs_min:
        message, runs = "the last step cannot have an open or ranged run", f"runs={last.runs_min}"
        hint = f"the match is made at the {last.runs_min}. event: write `{runs}`, or add the step that ends it"
        report.error("open-last", message, match.steps[-1].marks["runs"], expected=runs, hint=hint)


def _check_negation(text: StepText, first: bool, last: bool, report: Report) -> None:
    unfit = {name: f"`{name}` cannot stand on a negation" for name in ("runs", "after", "next")}
    _refuse(text, {**unfit, "optional": "a negation cannot be optional"}, report)
    if first:
        message = "`within` cannot stand on a first negation"
        _refuse(text, {"within": message}, report, "write `with for=10m`")
        if "for" not in text.marks:
            message = "a negation that comes first needs a time to look back"
            report.error("missing-for", message, text.step.span, expected="with for=10m")
        return
    _refuse(text, {"for": _FOR}, report, "write `with within=10m`" if last else None)
    if not last:
        message = "`within` cannot stand on a negation between steps"
        _refuse(text, {"within": message}, report, "put it on the step that follows")


def _check_positive(text: StepText, first: bool, report: Report) -> None:
    unfit = {"for": _FOR}
    if first:
        unfit |= {
            name: f"`{name}` counts from the step before, and this is the first" for name in ("next", "within", "after")
        }
    elif text.step.optional:
        unfit["next"] = "`next` cannot stand on an optional step"
    _refuse(text, unfit, report)
    if text.step.kind is StepKind.UNORDERED:
        signs = {"next": "next", "runs": "runs", "optional": "?", "absent": "!"}
        unfit = {name: f"`{sign}` cannot stand on an unordered group" for name, sign in signs.items()}
        _refuse(text, unfit, report)
        if len(text.step.brackets) < 2:
            expected = "unordered { [...] as a [...] as b }"
            report.error("small-group", "`unordered` needs at least two members", text.step.span, expected=expected)


def _check_other(match: MatchText, report: Report) -> None:
    kind = match.head.kind
    signs = {"absent": "!", "optional": "?"} | {each: each for each in ("next", "runs", "within", "after", "for")}
    of_steps = "belongs to steps of a sequence"
    unfit = {name: f"`{sign}` {of_steps}; `{kind}` has only brackets" for name, sign in signs.items()}
    for text in match.steps:
        _refuse(text, unfit, report)
        if text.step.kind is StepKind.UNORDERED:
            message = f"`unordered` belongs to a sequence; `{kind}` has only brackets"
            report.error("misplaced-option", message, text.step.span)
        elif len(text.step.brackets) > 1:
            hint = "write the brackets one after the other: an event enters every one it fits"
            message = f"`or` {of_steps}; `{kind}` has only brackets"
            report.error("misplaced-option", message, text.step.span, hint=hint)
    if match.until is not None:
        report.error("misplaced-option", f"`until` belongs to a sequence, not to `{kind}`", match.until.span)
    times = match.head.options.times
    if kind == "window" and times.get("size", times.get("every", 0)) < times.get("every", 0):
        message = "`size` is smaller than `every`: events between windows would be lost"
        report.error("small-window", message, match.head.options.marks["size"], expected="size of at least every")

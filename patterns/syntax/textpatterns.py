"""The patterns of `like` and `regex`: bounded, and sound before anything runs."""

from __future__ import annotations

from functools import lru_cache

from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.tree import Span

MAX_REGEX_LENGTH = 2_000
MAX_LIKE_LENGTH = 2_000

# What RE2 may use for one compiled expression; a{1000}{1000} and the like do not fit.
MAX_PROGRAM_BYTES = 1 << 20


def check_pattern(kind: str, pattern: str, span: Span, report: Report) -> None:
    """A pattern of `like` or `regex` as it stands in the rule."""
    if kind != "regex":
        if len(pattern) > MAX_LIKE_LENGTH:
            report.error("pattern-too-long", f"a pattern of more than {MAX_LIKE_LENGTH:,} characters", span)
        elif "%" in pattern and "*" not in pattern and "?" not in pattern:
            hint = f'`*` stands for any text: "{pattern.replace("%", "*")}"'
            report.warning("sql-pattern", "`%` is an ordinary character in `like`", span, hint=hint)
        return
    if len(pattern) > MAX_REGEX_LENGTH:
        report.error("regex-too-large", f"a regular expression of more than {MAX_REGEX_LENGTH:,} characters", span)
        return
    fault = _regex_fault(pattern)
    if fault is None:
        return
    tip = None
    if "repetition" in fault or "too large" in fault:
        tip = "use fewer or smaller {n} repetitions"
    elif any(word in fault for word in ("perl", "lookaround", "invalid escape", "group")):
        tip = 'RE2 has no lookahead, lookbehind or backreferences; `"""..."""` keeps backslashes as they are'
    report.error("bad-regex", f"not a regular expression: {fault}", span, expected="RE2 syntax", hint=tip)


@lru_cache(maxsize=256)
def _regex_fault(pattern: str) -> str | None:
    """What RE2 has against an expression, or None."""
    # Imported here: most rules have no regex, and the library costs start-up time.
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PROGRAM_BYTES
    try:
        re2.compile(pattern, options)
    except re2.error as fault:
        reason = fault.args[0] if fault.args else "it does not parse"
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    except UnicodeError:
        return "it holds a character that cannot be written as UTF-8"
    return None

"""A rule that ends the process again and again, known by the mark that the kernel leaves.

Past a part of what an event may take, and before it goes on, the kernel writes the rule and the key to a file next to
the store. The commit takes it away. A start that finds it knows that the process ended in between, and at the third the
rule is taken out. A process that is killed while no rule takes much leaves no mark, and nothing is counted.

    over-limit           the rule's id, a line end, the key's bytes
    over-limit.ended     JSON: rule to how many times the process ended so
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from samovar.patterns.engine.matcher import RuleFailure, decode_key
from samovar.tasks.model.plan import Plan

ENDED_MOST = 3


class CrashMarks:
    """The files of one task."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "over-limit"
        self.ended = folder / "over-limit.ended"

    def failure_of(self, *plans: Plan) -> RuleFailure | None:
        """At a task's start: the rule of these plans that ended the process so often that it is to be taken out."""
        try:
            name, _, key = self.path.read_bytes().partition(b"\n")
        except OSError:
            return None
        rule = name.decode("utf-8", "replace")
        counts: dict[str, int] = {}
        with suppress(OSError, ValueError):
            counts = json.loads(self.ended.read_text())
        counts[rule] = counts.get(rule, 0) + 1
        self.ended.write_text(json.dumps(counts))
        self.ended.chmod(0o600)
        self.put_away()
        version = next((each.version for plan in plans for each in plan.program.rules if each.rule.id == rule), None)
        if version is None or counts[rule] < ENDED_MOST:
            return None
        self.ended.unlink()
        reason = f"the process ended {ENDED_MOST} times while one event took much memory or work in it"
        return RuleFailure(rule, version, decode_key(key), reason)

    def clear(self) -> None:
        """What was marked is committed."""
        self.put_away()
        self.ended.unlink(missing_ok=True)

    def put_away(self) -> None:
        self.path.unlink(missing_ok=True)

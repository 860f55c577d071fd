"""The oracle: a second, slow and obvious implementation of the rule language, one event at a time.

It shares nothing with the matcher but the syntax tree. Tests hold the two equal.
"""

from tests.oracle.runner import Result, run

__all__ = ["Result", "run"]

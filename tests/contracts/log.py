"""What every Log keeps: the sentences of samovar.changelog.log, one test each.

A subclass, or its module, gives two fixtures: `log`, which all tests may share, and `new_log`, which makes another
view of the same log, as another process has it, and closes it after the test. Where a newer member does not win by
joining, `loosen` says how a slot comes free behind its member's back. Points are passed as `failpoints.hit(...)`,
through the module, so that a test can stand at one of them; what it raises there comes out of `transact`. `close` may
be called twice.
"""

from __future__ import annotations

from tests.contracts.log_members import MembersContract
from tests.contracts.log_records import RecordsContract, TopicsContract
from tests.contracts.log_transactions import TransactionsContract


class LogContract(TopicsContract, RecordsContract, MembersContract, TransactionsContract):
    """The contract as a whole."""

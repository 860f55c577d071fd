"""Contract suites: every implementation of a protocol inherits the suite of that protocol."""

import pytest

# Only files named test_* get readable assertions by themselves.
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("log_driving", "log_members", "log_records", "log_transactions", "store"))
)

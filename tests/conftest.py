"""What all tests share: how many examples a property test tries, and where the project is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# SAMOVAR_EXAMPLES is what the comparison of matcher and oracle tries (200, in CI 2,000); the smaller properties are
# short unless it is a long hunt (`make fuzz`). No other test should set max_examples itself.
WANTED = int(os.environ.get("SAMOVAR_EXAMPLES", "200"))
LONG_HUNT = 10_000
EXAMPLES = WANTED if WANTED >= LONG_HUNT else min(WANTED, 200)

# No deadline: a busy machine is not a failure. The blob is the line that repeats a failure. With a seed, as in CI, the
# same change meets the same examples; without one each run meets others.
settings.register_profile(
    "samovar",
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("SAMOVAR_SEED")),
)
settings.load_profile("samovar")

# The fixtures `kafka`, a real broker, and `spark`, a session: started when the first test asks for them. How tests are
# shared out to workers.
pytest_plugins = ["tests.support.kafka", "tests.support.spark_session", "tests.support.workers"]


# Started in the background (nohup, `&`) a process ignores Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the project."""
    return Path(__file__).resolve().parent.parent

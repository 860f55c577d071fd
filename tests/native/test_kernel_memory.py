"""Memory that the kernel cannot get is an error, of whatever size: with rule and key where a rule was at work."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.address_space

# Events with a text of 80 MB. What is allowed beyond what is in use is more than the reserve, and less than one text.
COMMON = """
import resource
import numpy as np
from samovar.changelog.restore.latest_by_key import LatestByKey
from samovar.patterns.engine.matcher import BatchTooLarge, RuleFailure, States, encode_key, step
from samovar.native.kernel import Batch, joined
from samovar.patterns.engine.decoder import Decoder
from tests.support.matching import arrived, program_of

RULE = '''
rule: long-text
match: sequence by card with maxspan=1h [a where true] as x [b where text == x.text] as y
'''
TOTAL = '''
rule: total
match: aggregate by card over 1h [a where true] having distinct(text) > 5
'''

def limit(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (more << 20), resource.RLIM_INFINITY))

def unlimit():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def events(count, megabytes=80):
    return [{"type": "a", "ts": n, "card": "c1", "text": chr(97 + n) * (megabytes << 20)} for n in range(count)]
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", COMMON + script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("rule", ["RULE", "TOTAL"])
def test_one_allocation_that_is_larger_than_the_reserve(rule: str) -> None:
    script = f"""
program = program_of({rule})
batch, states = arrived(program, events(1)), States(program)
limit(50)
try:
    step(states, batch, 0)
except RuleFailure as error:
    print(type(error).__name__, error.key, error.reason)
unlimit()
try:
    states.rows()
except RuleFailure as error:
    print(error.reason)
del states
print(len(step(States(program), batch, 0)))
"""
    reason = "there was no more memory"
    assert run(script) == f"BudgetExceeded ('c1',) {reason}\n{reason}\n0\n"


def test_many_allocations_of_any_size() -> None:
    """At every limit the step is done or refused, and states that were given up can be freed."""
    script = """
program = program_of(RULE, TOTAL)
batch = arrived(program, [event for size in (0, 1, 3, 20) for event in events(20, size)][:60])
said = set()
for more in range(1, 200, 7):
    limit(more)
    try:
        step(States(program), batch, 0)
        said.add("done")
    except (RuleFailure, BatchTooLarge) as error:
        said.add(type(error).__name__)
    except MemoryError as error:
        said.add("MemoryError")
    unlimit()
print(sorted(said - {"MemoryError", "BatchTooLarge"}))
"""
    assert run(script) == "['BudgetExceeded']\n" or run(script) == "['BudgetExceeded', 'done']\n"


def test_states_that_are_written_and_read() -> None:
    script = """
program = program_of(RULE)
states = States(program)
step(states, arrived(program, events(1)), 0)
rows = states.rows()
limit(50)
for call in (lambda: States(program).load(rows), states.rows):
    try:
        call()
    except RuleFailure as error:
        print(error.rule, error.key, error.reason)
    except MemoryError:
        print("Python's own")
"""
    lines = run(script).splitlines()
    assert set(lines) <= {"long-text ('c1',) there was no more memory", "Python's own"}
    assert len(lines) == 2


def test_decoding_and_batches_leave_a_batch_as_it_was() -> None:
    script = """
program = program_of(RULE)
decoder = Decoder(program.fields)
batch, large = decoder.batch(), arrived(program, events(1))
small = joined([b'{"type": "a", "ts": 1, "card": "c1", "text": "x"}'])
message = joined([b'{"type": "a", "ts": 2, "card": "c1", "text": "' + b"x" * (80 << 20) + b'"}'])
decoder.decode(batch, small, copy=True)
limit(50)
for call in (
    lambda: decoder.decode(batch, message, copy=True),
    lambda: batch.append(large, np.zeros(1, np.int64)),
):
    try:
        call()
    except MemoryError as error:
        print(type(error).__name__, len(batch))
unlimit()
batch.append(large, np.zeros(1, np.int64))
decoder.decode(batch, small, copy=True)
print(len(batch), batch.time.tolist(), len(batch.values(1)))
"""
    assert run(script) == "KernelMemoryError 1\nKernelMemoryError 1\n3 [1, 0, 1] 3\n"

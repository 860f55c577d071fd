"""A deterministic simulator: whole services, run from a seed, with log, clock and disks in memory, and faults anywhere.

    make simulate SEEDS=300          histories 1 to 300; goes on where it was stopped
    make simulate SEED=17 TRACE=1    one history, step by step

`scenario.py` draws a history from its seed, `world.py` runs it, `checks.py` says what must hold, `shrink.py` makes a
failing history smaller, `planted/` holds faults that must be found. docs/reliability.md says what it covers.
"""

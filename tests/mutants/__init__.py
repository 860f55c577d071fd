"""Mutation testing of the code that commits, restores, keeps timers and orders events: `make mutants`.

A mutant is the real code with one small fault. `mutation.py` makes them from the syntax trees of the modules that
`targets.py` lists; `reach.py` knows which tests and which seeds of the simulator run which line; `killing.py` runs
these in a process where the mutated function has taken the place of the real one, and says which of them noticed.
`equivalent.toml` lists those that nobody could notice, and why.
"""

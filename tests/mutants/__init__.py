"""Mutation testing of the code that commits, restores, keeps timers and orders events: `make mutants`.

A mutant is the real code with one small fault. `mutation.py` makes them from the syntax trees of the modules that
`targets.py` lists; `killing.py` runs each in a process where the mutated module takes the place of the real one, and
says which test or which seed of the simulator noticed. `equivalent.toml` lists those that nobody could notice, and why.

Nothing in this package may import samovar: the process that forks must not have loaded what its children mutate.
"""

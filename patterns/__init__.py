"""The rule language: grammar, typed syntax tree, compiler, matcher, lint and rule tests.

Nothing here opens a socket or a store, and nothing imports another part of Samovar. Files are only read, and only where
a path is given: rules (`load_path`), schemas and recorded events (api.py). The one file that is written is a cache of
the grammar's tables, in the user's cache folder. The matcher itself is native code under kernel/, reached through
ctypes.
"""

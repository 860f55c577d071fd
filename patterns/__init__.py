"""The rule language: grammar, typed syntax tree, compiler, matcher, lint and rule tests.

Pure: nothing here opens a file, a socket or a store, and nothing imports another part of Samovar. The matcher itself is
native code under kernel/, reached through ctypes.
"""

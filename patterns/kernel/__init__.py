"""The native kernel: its sources, and `build.py`, which makes a library of them."""

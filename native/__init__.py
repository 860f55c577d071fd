"""The compiled kernel, in C++, and the one module that loads it."""

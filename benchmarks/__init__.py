"""Benchmarks: tables of what was measured, never tests with a time limit."""

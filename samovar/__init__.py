"""Samovar keeps state warm: stateful event processing with a rule language."""

__version__ = "0.1.0"

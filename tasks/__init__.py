"""The stream tasks: one per partition, with the container's event loop, commit, event time and timers.

A task owns what is not committed yet; what is committed belongs to the log and the store.
"""

"""Key-value stores: RocksDB and its in-memory twin behind one small protocol, snapshots, and the packed row codec.

Knows keys and bytes, not rules or logs. The only part that imports rocksdict.
"""

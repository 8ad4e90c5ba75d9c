"""Keeps topics with `cleanup.policy=COMPACTION`: of each key the newest message, in files of their own."""

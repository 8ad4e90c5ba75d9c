"""What happens before a store is open: finds the end of the log, makes queues and index agree with it, and
rewrites files after a failed fsync.
It may use all rooms but `running`.
It must not depend on a running event loop."""

"""Reads the old files of the commit log again and again, finds records that have rotted, and repairs them;
rewrites units of consume queues that differ from the records.
It may use the store, the settings, and the other replicas' answers to its own requests.
It must not know who is the master, nor how the log is sent to replicas."""

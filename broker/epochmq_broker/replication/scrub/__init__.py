"""Reads the old files of the commit log again and again, and finds records that have rotted on the disk.
It may use the store and the settings.
It must not know who is the master, nor how the log is sent to replicas."""

"""Files as the other rooms use them: mapped files of one size, files of queues, locks, and the worker threads
that sync them; which pages of them are in memory.
It may use the statuses only.
It must not know what a file holds."""

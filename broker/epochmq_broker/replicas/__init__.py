"""A broker under controllers: who it is, what it is to its group, and whether it may write (RocketMQ's
ReplicasManager)."""

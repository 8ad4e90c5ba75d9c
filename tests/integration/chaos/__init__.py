"""A replica group in network namespaces, on disks of its own, with RocketMQ's producer and consumers: links
that lose what is sent, disks that are slow or full, processes that hang or die, and the account
afterwards."""

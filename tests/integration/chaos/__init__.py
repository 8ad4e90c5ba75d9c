"""A replica group in network namespaces, on disks of its own, with RocketMQ's producer and consumers, under
faults: links that drop packets, disks that are slow or full, processes that hang or die."""

"""Static topics: logical queues that keep their ids and offsets while they move between broker groups
(RocketMQ's logic queues)."""

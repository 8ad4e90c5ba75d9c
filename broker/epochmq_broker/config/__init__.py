"""The settings of a broker: RocketMQ's keys, their rules, the values in force; the role in force and what it
permits; and the clock.
It may use the settings of the access control and of the store.
It must not know what uses a setting."""

"""Timer messages: the wheel, the timer log, and their delivery (RocketMQ's TimerMessageStore)."""

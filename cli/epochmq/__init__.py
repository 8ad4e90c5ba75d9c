"""The front door: the command `epochmq`, its verbs and its small clients."""

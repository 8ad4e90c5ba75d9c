"""The verbs of the command, a module each. `run` returns the exit code."""

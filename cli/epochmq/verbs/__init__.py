"""What the verbs of the command do, a module each. `run` returns the exit code."""

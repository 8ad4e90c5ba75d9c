"""The console: pages that show a cluster in a browser. It reads with the functions of `verbs`, and
changes something only if it is started with `--allow-changes`. No other process imports it."""

"""The console: pages that show a cluster in a browser. It reads with the functions of `verbs`, and changes
nothing. No other process imports it."""

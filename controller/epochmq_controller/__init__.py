"""The nameserver, and the controller that keeps replica groups."""

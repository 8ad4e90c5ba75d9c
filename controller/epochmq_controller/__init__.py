"""The nameserver, and the controller of replica groups."""

"""Replica groups on file systems of their own: power cuts of real processes, and disks that fail."""

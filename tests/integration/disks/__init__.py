"""Runs replica groups whose members have file systems of their own, cuts their power, and makes their disks
fail."""

"""The checks: pure functions that compare decoded files and return findings."""

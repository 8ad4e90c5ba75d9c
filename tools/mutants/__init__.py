"""Measures how many single-operator mutants of the rooms that keep messages the tests detect.

cosmic-ray makes the mutants. This package draws them from a seed, chooses the tests that run the changed
line, runs those in a copy of the tree, and writes a report. `python -m tools.mutants --help`.
"""

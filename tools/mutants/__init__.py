"""Measures how many single-operator mutants of the packages that store messages the tests detect.

cosmic-ray creates the mutants. This package draws them with a seed, selects the tests that execute the
changed line, runs these in a copy of the checkout, and writes a report. See `python -m tools.mutants --help`.
"""

"""Runs the command `epochmq`, for `python -m epochmq`."""

from epochmq.main import main

main()

"""`python -m epochmq`."""

from epochmq.main import main

main()

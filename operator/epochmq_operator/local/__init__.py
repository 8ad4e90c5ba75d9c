"""The local runtime: the rendered pods as processes on this machine, one loopback address each, their volumes
as directories. Everything a run knows lies in its state directory (`state.py`); one supervisor holds it."""

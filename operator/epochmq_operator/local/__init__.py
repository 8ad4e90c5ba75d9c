"""The local runtime runs the rendered pods as processes of this machine, each with a loopback address, with
directories as volumes. A run's state is in its state directory (`state_directory.py`), which one supervisor
holds."""

"""Runs volume readers in threads of this process."""

from __future__ import annotations

import threading
from pathlib import Path

from epochmq_spark import store_layout, volume_client
from epochmq_spark.files_at_cut import VolumeCut
from epochmq_spark.volume_reader import VolumeReader

POLL_S = 0.2
"""How often each checks whether it must stop. There may be more than a hundred at a time."""


class VolumeReaders:
    """The running volume readers."""

    def __init__(self) -> None:
        self._running: list[tuple[VolumeReader, threading.Thread]] = []

    def show(self, group: str, name: str, root: Path, cut: VolumeCut) -> store_layout.AuditedReplica:
        """Freezes a directory at a cut and serves it."""
        server = VolumeReader(("127.0.0.1", 0), root)
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
        thread.start()
        self._running.append((server, thread))
        location = f"http://127.0.0.1:{server.server_address[1]}"
        volume_client.freeze(location, cut)
        return store_layout.AuditedReplica(group, name, location)

    def stop(self) -> None:
        """Stops all of them."""
        volume_client.close_connections()
        ends = [threading.Thread(target=server.shutdown) for server, _ in self._running]
        for end in ends:
            end.start()
        for end, (server, thread) in zip(ends, self._running, strict=True):
            end.join(60)
            thread.join(60)
            server.server_close()
            if server.volume is not None:
                server.volume.close()
        self._running.clear()

"""Serves frozen views of directories on this machine, while brokers write to them: a volume reader for each,
in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from epochmq_spark import store_layout, volume_client
from epochmq_spark.files_at_cut import VolumeCut
from epochmq_spark.volume_reader import VolumeReader, raise_descriptor_limit

POLL_S = 0.2  # how often a reader checks whether it must stop
STOP_MAX_S = 10


@dataclass(frozen=True)
class DirectoryToFreeze:
    """A replica's store, and its cut; without one the directory is not in use and is read as it is."""

    name: str
    directory: Path
    cut: VolumeCut | None


@contextmanager
def frozen(group: str, directories: list[DirectoryToFreeze]) -> Iterator[list[store_layout.AuditedReplica]]:
    """The replicas, each frozen at its cut for the length of the block. Raises OSError."""
    raise_descriptor_limit()
    running: list[tuple[VolumeReader, threading.Thread]] = []
    replicas = []
    try:
        for one in directories:
            location = str(one.directory)
            if one.cut is not None:
                server = VolumeReader(("127.0.0.1", 0), one.directory)
                thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
                thread.start()
                running.append((server, thread))
                location = f"http://127.0.0.1:{server.server_address[1]}"
                volume_client.freeze(location, one.cut)
            replicas.append(store_layout.AuditedReplica(group, one.name, location))
        yield replicas
    finally:
        volume_client.close_connections()
        for server, thread in running:
            server.shutdown()
            thread.join(STOP_MAX_S)
            server.server_close()

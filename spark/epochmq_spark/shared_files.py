"""Finds replicas of one group that share files: the same directory given twice, a link to another replica's
file, or a copy of another replica's DLedger peer. A file that is compared with itself is always equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from epochmq_spark import files, store_layout
from epochmq_spark.findings import finding

Row = dict[str, Any]
ReplicaKey = tuple[str, str]  # group, replica


def find_shared(
    replicas: Mapping[ReplicaKey, store_layout.AuditedReplica],
    contents: Mapping[ReplicaKey, store_layout.StoreContents],
) -> list[Row]:
    """A finding for each replica that has the directory, the peer or a file of an earlier one of its
    group."""
    owners: dict[tuple[str, object], str] = {}
    rows: list[Row] = []
    for key, replica in replicas.items():
        group, name = key
        for identity, location, what in _identities(replica.location, contents[key]):
            owner = owners.setdefault((group, identity), name)
            if owner != name:
                detail = f"{what} is also that of {owner}"
                rows.append(finding(group, name, "directory.same-files", file=location, detail=detail))
                break  # of a directory given twice every file is shared
    return rows


def _identities(location: str, contents: store_layout.StoreContents) -> Iterator[tuple[object, str, str]]:
    """What may belong to one replica only: (identity, location, its name in a sentence), the largest first.
    A file on this machine is identified by its device and inode."""
    yield _identity_on_disk(location) or ("location", location), location, "this directory"
    if contents.peer_folder is not None:
        peer = files.name_of(contents.peer_folder)
        yield ("peer", peer), contents.peer_folder, f"the DLedger peer {peer}"
    for file in contents.log:
        if (inode := _identity_on_disk(file.location)) is not None:
            yield inode, file.location, "this file of the log"


def _identity_on_disk(location: str) -> tuple[str, int, int] | None:
    """Device and inode of a file or directory on this machine; None elsewhere, or if it cannot be read."""
    path: Path | None = files.local_path(location)
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return "inode", status.st_dev, status.st_ino

"""Opens the storage of a URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

from epochmq_store.backups.object_storage import DirectoryObjects, ObjectStorage


def open_storage(url: str) -> ObjectStorage:
    """The storage of a URL, or of a path of this machine. Raises BackupStorageError."""
    if "://" not in url:
        return DirectoryObjects(Path(url), url)
    if urlparse(url).scheme == "file":
        return DirectoryObjects(Path(unquote(urlparse(url).path)), url)
    from epochmq_store.backups.arrow_objects import ArrowObjects  # Arrow takes long to import

    return ArrowObjects.of(url)

"""Keeps objects in an object storage, such as S3, through `pyarrow.fs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from epochmq_store.backups.backup_errors import BackupStorageError
from epochmq_store.backups.object_storage import READ_BYTES, missing


class ArrowObjects:
    """The objects below a URI, `s3://BUCKET/PREFIX?OPTIONS` or another one that Arrow knows."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        self.url = url
        self._system = system
        self._root = root.strip("/")

    @classmethod
    def of(cls, url: str) -> ArrowObjects:
        """The storage of a URI. Raises BackupStorageError."""
        try:
            from pyarrow import fs
        except ImportError:
            raise BackupStorageError(f"{shown(url)} needs pyarrow: pip install 'epochmq[backup]'") from None
        base, _, query = url.partition("?")
        scheme, _, rest = base.partition("://")
        host, _, path = rest.partition("/")
        try:
            mark = "?" if query else ""
            system, root = fs.FileSystem.from_uri(f"{scheme}://{host}/{mark}{query}")
        except (ValueError, OSError) as error:
            raise BackupStorageError(f"{shown(url)}: {error}") from None
        return cls(shown(url), system, f"{root.rstrip('/')}/{unquote(path)}")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def is_there(self) -> bool:
        from pyarrow import fs

        bucket = self._root.partition("/")[0]
        try:
            return bool(self._system.get_file_info(bucket).type != fs.FileType.NotFound)
        except OSError as error:
            raise self._failed("reach", bucket, error) from None

    def write(self, key: str, parts: Iterable[bytes]) -> None:
        # What an error leaves in the bucket is an object that no manifest names.
        try:
            with self._system.open_output_stream(self._path(key)) as stream:
                for part in parts:
                    stream.write(part)
        except OSError as error:
            raise self._failed("write", key, error) from None

    def read(self, key: str) -> Iterator[bytes]:
        try:
            with self._system.open_input_stream(self._path(key)) as stream:
                while part := stream.read(READ_BYTES):
                    yield part
        except FileNotFoundError:
            raise missing(f"{self.url}: {key}") from None
        except OSError as error:
            raise self._failed("read", key, error) from None

    def keys(self, folder: str) -> Iterator[tuple[str, float]]:
        from pyarrow import fs

        selector = fs.FileSelector(self._path(folder), recursive=True, allow_not_found=True)
        try:
            found = self._system.get_file_info(selector)
        except OSError as error:
            raise self._failed("list", folder, error) from None
        for one in found:
            if one.type == fs.FileType.File:
                changed = 0.0 if one.mtime_ns is None else one.mtime_ns / 1e9
                yield one.path.removeprefix(f"{self._root}/"), changed

    def delete(self, key: str) -> None:
        try:
            self._system.delete_file(self._path(key))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed("delete", key, error) from None

    def _failed(self, verb: str, what: str, error: OSError) -> BackupStorageError:
        return BackupStorageError(f"{self.url}: cannot {verb} {what}: {error}")


def shown(url: str) -> str:
    """A URI without user, password and options, for messages."""
    base, _, _ = url.partition("?")
    scheme, mark, rest = base.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"

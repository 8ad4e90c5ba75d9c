# pure: the errors of backups
"""Defines the errors of backups, by what the caller should do."""

from __future__ import annotations

from epochmq_protocol.errors import EpochMQError


class BackupError(EpochMQError):
    """The backup, or the restore, cannot be carried out. Nothing counts as taken or restored. The message
    says what to do."""


class BrokenBackupError(BackupError):
    """An object of a backup is missing, or is not what its manifest says."""


class BackupStorageError(BackupError):
    """The storage cannot be reached, read or written. Trying again may help."""

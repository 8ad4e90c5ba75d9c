"""A store on a file system whose write-backs failed. The kernel reports such a failure to the next sync of
the file and to the next sync of the file system, also of another process, after the disk has recovered."""

from __future__ import annotations

import errno
import os

import pytest

from epochmq_formats.abort_file import TailState
from tests.integration.disks.faulty_volume import FaultyCall, FaultyVolume
from tests.unit.store.support import Message, open_store, put_all

QUEUES = 80
"""So many that a flush syncs the whole file system."""


def test_a_store_opens_and_flushes_after_write_backs_failed_that_nobody_saw(volume: FaultyVolume) -> None:
    messages = [Message(queue_id=number, body=bytes(300)) for number in range(QUEUES)]
    store = open_store(volume.mount_point)
    put_all(store, messages)
    assert len(store.log.files.files) > 1
    store.queues.pending.write_all()
    volume.fail(FaultyCall.WRITE)
    os.sync()
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
        store.log_flusher.flush_now()
    store.state.report_fsync_failure(OSError(errno.EIO, "the flush has failed"))
    volume.heal()
    store.stop()

    store = open_store(volume.mount_point)
    assert store.tail.state is TailState.UNKNOWN
    put_all(store, messages)
    store.log_flusher.flush_now()
    store.queue_flusher.flush_now()
    assert store.state.writable
    assert [store.queue("orders", number).max_offset for number in range(QUEUES)] == [2] * QUEUES
    store.stop()

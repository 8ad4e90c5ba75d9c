"""Has the C library keep freed memory for large buffers, instead of returning it to the system at once.

A message of 4 MiB is copied a few times: from the socket, into the log, into a response. The system zeroes
each page of new memory, which takes ten times as long as the copy, and the event loop waits. glibc keeps
large freed buffers only up to sizes that it learns from earlier ones. Other C libraries do not have the
setting.
"""

from __future__ import annotations

import ctypes
from typing import Final

from epochmq_protocol.memory_limit import memory_bytes

KEPT_BYTES_MAX: Final = 64 << 20
"""At most so much freed memory is kept at the end of the heap: a few of the largest frames."""
PART_OF_MEMORY: Final = 16
"""At most one part in so many of the memory that the process may use."""
MAPPED_BYTES: Final = 32 << 20
"""A larger buffer gets memory of its own, which is returned when it is freed. glibc accepts no larger
value."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_mallopt: Final = getattr(ctypes.CDLL(None), "mallopt", None)


def keep_freed_memory(limit_bytes: int | None = None) -> bool:
    """Keeps freed memory up to `KEPT_BYTES_MAX`, or to a part of `limit_bytes`, from now on. `limit_bytes`:
    the memory that this process may use, as the system says by default. False: the C library has no such
    setting."""
    if _mallopt is None:
        return False
    kept = min(KEPT_BYTES_MAX, (memory_bytes() if limit_bytes is None else limit_bytes) // PART_OF_MEMORY)
    mapped = min(MAPPED_BYTES, kept)
    return bool(_mallopt(_M_MMAP_THRESHOLD, mapped) and _mallopt(_M_TRIM_THRESHOLD, kept))

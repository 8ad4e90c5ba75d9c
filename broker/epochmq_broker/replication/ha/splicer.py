"""Moves bytes from a socket into a file with `splice`, through a pipe.

The bytes do not enter this process: the kernel copies each byte once, where `recv` and `write` copy it twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Final

PIPE_BYTES: Final = 1024 * 1024  # the default limit for unprivileged users (/proc/sys/fs/pipe-max-size)
UNABLE: Final = frozenset((errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM))


class SocketToFileSplicer:
    """Splices from one non-blocking socket. `open` becomes False once the kernel has rejected `splice`
    here."""

    def __init__(self, source: int) -> None:
        """`source` is the socket's descriptor; the caller keeps owning it. Raises OSError."""
        self.is_supported = True
        self._source = source
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def splice(self, target: int, at: int, most: int) -> int:
        """Moves up to `most` received bytes to position `at` of the file `target`, and returns how many; 0 if
        none has arrived or the peer has closed. Raises OSError; bytes that left the socket are then lost."""
        try:
            size = os.splice(self._source, self._in, min(most, PIPE_BYTES), flags=os.SPLICE_F_NONBLOCK)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            if error.errno not in UNABLE:
                raise
            self.is_supported = False
            return 0
        done = 0
        while done < size:
            done += self._put(target, at + done, size - done)
        return size

    def _put(self, target: int, at: int, size: int) -> int:
        if self.is_supported:
            try:
                return os.splice(self._out, target, size, offset_dst=at)
            except InterruptedError:
                return 0
            except OSError as error:
                if error.errno not in UNABLE:
                    raise
                self.is_supported = (
                    False  # this file system supports no splice; the bytes in the pipe are not lost
                )
        data = os.read(self._out, size)
        done = 0
        while done < len(data):
            done += os.pwrite(target, data[done:], at + done)
        return done

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._out)
        os.close(self._in)

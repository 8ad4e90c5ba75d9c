"""From a socket into a file without coming through this process: `splice` by way of a pipe. One copy a byte,
where receiving and writing it takes two.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Final

PIPE_BYTES: Final = 1024 * 1024  # as much as anybody may ask for, unless the machine says otherwise
UNABLE: Final = frozenset((errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM))


class Passage:
    """For one socket that does not block. `open` is False once the system has said that it cannot do this."""

    def __init__(self, source: int) -> None:
        """`source` is the socket's descriptor, which stays its owner's. Raises OSError."""
        self.open = True
        self._source = source
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def move(self, target: int, at: int, most: int) -> int:
        """Moves up to `most` bytes that have arrived to position `at` of a file, and tells how many; 0 when
        there are none, at the stream's end too. Raises OSError; what was taken from the socket is lost
        then."""
        try:
            size = os.splice(self._source, self._in, min(most, PIPE_BYTES), flags=os.SPLICE_F_NONBLOCK)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            if error.errno not in UNABLE:
                raise
            self.open = False
            return 0
        done = 0
        while done < size:
            done += self._put(target, at + done, size - done)
        return size

    def _put(self, target: int, at: int, size: int) -> int:
        if self.open:
            try:
                return os.splice(self._out, target, size, offset_dst=at)
            except InterruptedError:
                return 0
            except OSError as error:
                if error.errno not in UNABLE:
                    raise
                self.open = False  # this file's file system takes none; what is in the pipe is not lost
        data = os.read(self._out, size)
        done = 0
        while done < len(data):
            done += os.pwrite(target, data[done:], at + done)
        return done

    def close(self) -> None:
        """Gives the pipe back."""
        os.close(self._out)
        os.close(self._in)

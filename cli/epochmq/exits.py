"""The exit codes of the command, and how an error reaches the person who typed it: one readable message, no
traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum

TRACEBACK = "EPOCHMQ_TRACEBACK"
"""Set to anything, this variable of the environment shows where an unexpected error came from."""


class ExitCode(IntEnum):
    """What the command ends with."""

    OK = 0
    FAILED = 1
    """What was asked for could not be done."""
    USAGE = 2
    """It was asked for in a wrong way: an option, a file, a value."""
    NOTHING = 3
    """There is nothing to show: nothing runs here."""
    INTERNAL = 70
    """A fault of this program."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE = 141
    """Whoever read the output has gone."""


def print_error(message: str) -> None:
    """A message on the error output."""
    print(f"epochmq: {message}", file=sys.stderr, flush=True)


def exit_code_of(action: Callable[[], int]) -> int:
    """Runs an action and returns its exit code, or that of the error it ended with, after saying what it
    was."""
    from epochmq_protocol.errors import ConfigError, EpochMQError, RequestError

    try:
        return action()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Nothing that is still buffered can be written; do not let the interpreter try when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PIPE
    except (ConfigError, UsageError) as error:
        print_error(str(error))
        return ExitCode.USAGE
    except RequestError as error:
        print_error(f"{_code_name(error.code)}: {error.remark}")
        return ExitCode.FAILED
    except EpochMQError as error:
        print_error(str(error))
        return ExitCode.FAILED
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        print_error(f"unexpected {type(error).__name__}: {error} (set {TRACEBACK}=1 to see where)")
        return ExitCode.INTERNAL


class UsageError(Exception):
    """What was typed, or a file that was named, cannot be used. The message is for the person who typed
    it."""


def _code_name(code: int) -> str:
    """RocketMQ's name of a response code."""
    from epochmq_protocol.codes import ResponseCode

    return ResponseCode(code).name if code in set(ResponseCode) else f"code {code}"

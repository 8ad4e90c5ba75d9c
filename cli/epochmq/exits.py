"""Defines the exit codes of the command, and prints errors: one readable message, no traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum

TRACEBACK = "EPOCHMQ_TRACEBACK"
"""The environment variable that adds a traceback to unexpected errors, if set to anything."""


class ExitCode(IntEnum):
    """The exit codes of the command."""

    OK = 0
    FAILED = 1
    """The request could not be carried out."""
    USAGE = 2
    """The request was wrong: an option, a file, a value."""
    NOTHING = 3
    """There is nothing to show: nothing runs here."""
    INTERNAL = 70
    """An error in this program."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE = 141
    """The reader of the output has closed it."""


def print_error(message: str) -> None:
    """Prints a message to standard error."""
    print(f"epochmq: {message}", file=sys.stderr, flush=True)


def error_text(error: Exception) -> str:
    """What an error of ours says; one of a peer has the name of its response code."""
    from epochmq_protocol.errors import BodyError, RequestError

    if isinstance(error, RequestError) and not isinstance(error, BodyError):
        return f"{_code_name(error.code)}: {error.remark}"
    return str(error)


def open_standard_files() -> None:
    """Opens the null device in place of standard files that are closed, so that no socket or file gets their
    numbers, and a closed input reads as an empty one."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (the standard file)


def exit_code_of(action: Callable[[], int]) -> int:
    """Runs an action and returns its exit code. An exception is printed and gives its own exit code."""
    from epochmq_protocol.errors import ConfigError, EpochMQError

    try:
        return action()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Buffered output can no longer be written: keep the interpreter from trying that at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PIPE
    except (ConfigError, UsageError) as error:
        print_error(str(error))
        return ExitCode.USAGE
    except EpochMQError as error:
        print_error(error_text(error))
        return ExitCode.FAILED
    except MemoryError:
        print_error("out of memory")
        return ExitCode.FAILED
    except OSError as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        where = f"{error.filename}: " if error.filename is not None else ""
        print_error(f"{where}{error.strerror or error}")
        return ExitCode.FAILED
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        print_error(f"internal error: {type(error).__name__}: {error} (set {TRACEBACK}=1 for a traceback)")
        return ExitCode.INTERNAL


class UsageError(Exception):
    """An option, or a file that it names, cannot be used. The message is for the user of the command."""


def _code_name(code: int) -> str:
    """RocketMQ's name of a response code."""
    from epochmq_protocol.codes import ResponseCode

    return ResponseCode(code).name if code in set(ResponseCode) else f"code {code}"

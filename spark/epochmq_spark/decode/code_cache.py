"""Names a folder for compiled code where numba finds none.

numba keeps the code beside the modules, in the user's cache folder, or in `NUMBA_CACHE_DIR`. On an executor
whose image is read-only and whose user has no home, it finds no such folder and rejects the modules."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

VARIABLE: Final = "NUMBA_CACHE_DIR"


def ensure_code_cache() -> None:
    """Sets `NUMBA_CACHE_DIR` if numba would find no folder."""
    if os.environ.get(VARIABLE):
        return
    of_user = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = code_cache(Path(__file__).parent, of_user, Path(tempfile.gettempdir()))
    if folder is not None:
        os.environ[VARIABLE] = str(folder)
        if "numba" in sys.modules:  # it has read the variable already
            sys.modules["numba"].config.CACHE_DIR = str(folder)


def code_cache(package: Path, of_user: Path, temporary: Path) -> Path | None:
    """A folder below `temporary`; None if the folder of the package or that of the user can be written. All
    processes of the user share the folder, so that only one of them compiles."""
    if _can_write(package) or _can_write(of_user):
        return None
    folder = temporary / f"epochmq-numba-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    # Code is run from it, so another user must not be able to write there.
    return folder if is_own else Path(tempfile.mkdtemp(prefix="epochmq-numba-", dir=temporary))


def _can_write(folder: Path) -> bool:
    """Whether files can be created in a folder, which may have to be created."""
    existing = next((one for one in (folder, *folder.parents) if one.exists()), None)
    return existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)

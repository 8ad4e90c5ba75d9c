"""A process uses freed memory again for its next large buffer."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SIZE = 8 << 20
PAGES = SIZE // 4096
FAULTS = f"""
import resource, sys
from epochmq_protocol.transport.freed_memory import keep_freed_memory
if sys.argv[1] == "keeps":
    assert keep_freed_memory(2 << 30)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
pieces = [bytes({SIZE} // 8)] * 8
b"".join(pieces)
before = faults()
b"".join(pieces)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do not have the setting")
def test_a_large_buffer_gets_the_pages_of_the_one_before() -> None:
    def faults(how: str) -> int:
        made = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True, timeout=60
        )
        return int(made.stdout)

    assert faults("keeps") < PAGES // 10
    assert faults("as always") > PAGES // 10, "the test would notice a missing setting"

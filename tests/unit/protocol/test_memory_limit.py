"""The memory that the process may use, according to its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_protocol.memory_limit import read_memory_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "4294967296\n"}, 4 * GIB),
        ("0::/\n", {"memory.max": "max\n"}, 64 * GIB),
        ("0::/pods/broker\n", {"pods/broker/memory.max": "max\n", "pods/memory.max": str(2 * GIB)}, 2 * GIB),
        ("0::/pods/broker\n", {"pods/broker/memory.max": str(GIB), "pods/memory.max": str(2 * GIB)}, GIB),
        ("0::/of/the/host\n", {"memory.max": str(3 * GIB)}, 3 * GIB),
        ("9:memory:/pod\n", {"memory/pod/memory.limit_in_bytes": str(5 * GIB)}, 5 * GIB),
        ("9:cpu,memory:/pod\n", {"memory/memory.limit_in_bytes": str(5 * GIB)}, 5 * GIB),
        ("9:memory:/\n0::/x\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 64 * GIB),
        ("9:memory:/\n0::/x\n", {"memory/memory.limit_in_bytes": str(7 * GIB)}, 7 * GIB),
        ("", {"memory.max": str(GIB)}, GIB),
        ("0::/\n", {"memory.max": "garbage"}, 64 * GIB),
        (None, {}, 64 * GIB),
    ],
)
def test_the_smallest_limit_of_all_groups_counts(
    tmp_path: Path, membership: str | None, files: dict[str, str], expected: int
) -> None:
    mount = tmp_path / "cgroup"
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    if membership is not None:
        (tmp_path / "self").write_text(membership)
    assert read_memory_bytes(tmp_path / "self", mount, 64 * GIB) == expected


def test_limits_of_groups_outside_the_mount_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1")
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "self").write_text("0::/a\n")
    assert read_memory_bytes(tmp_path / "self", tmp_path / "cgroup", 64) == 64

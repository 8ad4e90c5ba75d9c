"""The parts of `make quick`, and the rooms of the product that it can be limited to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.quick import UnknownRoomError, main, parts, rooms, shares, unit_tests
from tools.run_tests import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree with three roots, a nested room, and tests of a tool."""
    for name in (
        "store/epochmq_store/__init__.py",
        "broker/epochmq_broker/__init__.py",
        "broker/epochmq_broker/services/__init__.py",
        "broker/epochmq_broker/services/timer/__init__.py",
        "cli/epochmq/__init__.py",
        "tests/__init__.py",
        "tests/unit/store/test_recovery.py",
        "tests/unit/broker/services/test_pop.py",
        "tests/unit/broker/services/golden/frame.bin",
        "tests/unit/tools/test_quick.py",
        "tests/unit/test_import_cycles.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_rooms_are_packages_of_the_product_and_folders_with_unit_tests(checkout: Path) -> None:
    expected = {"store", "broker", "broker/services", "broker/services/timer", "cli", "tools"}
    assert rooms(checkout) == expected


@pytest.mark.parametrize(
    ("room", "folder"),
    [
        ("store", "tests/unit/store"),
        ("broker/services", "tests/unit/broker/services"),
        ("broker/services/", "tests/unit/broker/services"),
        ("broker/services/timer", "tests/unit/broker/services"),
        ("tools", "tests/unit/tools"),
        ("cli", "tests/unit"),
    ],
)
def test_the_tests_of_a_room_are_in_the_folder_of_its_name_or_of_the_room_around_it(
    checkout: Path, room: str, folder: str
) -> None:
    assert unit_tests(room, checkout) == Path(folder)


@pytest.mark.parametrize(
    "room", ["", "shop", "store/shop", "broker/epochmq_broker", "../unit", "broker/services/golden"]
)
def test_an_unknown_room_is_an_error_that_names_the_rooms(checkout: Path, room: str) -> None:
    with pytest.raises(UnknownRoomError, match=r"broker, broker/services, .*store"):
        unit_tests(room, checkout)


def test_the_command_rejects_an_unknown_room_before_it_runs_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["shop"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no room 'shop'" in printed.err


def test_every_room_of_the_checkout_has_tests() -> None:
    names = rooms()
    assert {"protocol", "controller", "operator/plans", "tools", "docs"} <= names
    assert all(unit_tests(name).is_dir() for name in names)


def test_only_the_unit_tests_depend_on_the_room() -> None:
    of_room, of_tree = parts(Path("tests/unit/store"), 2), parts(Path("tests/unit"), 2)
    others = [one for one in of_room if one in of_tree]
    assert of_room[-len(others) :] == of_tree[-len(others) :] == others
    for part in of_room[: -len(others)]:
        at = part.command.index("not soak and not long") + 1
        assert all(Path(file).is_relative_to("tests/unit/store") for file in part.command[at:])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_every_file_is_in_one_share_beside_its_neighbours(tmp_path: Path, count: int) -> None:
    names = [f"tests/unit/store/{folder}/test_{number}.py" for folder in "ab" for number in range(8)]
    for size, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    divided = shares(Path("tests/unit/store"), count, tmp_path)
    assert [name for share in divided for name in share] == names
    largest, total = max(range(len(names))), sum(range(len(names)))
    sizes = [sum(names.index(name) for name in share) for share in divided]
    assert max(sizes) <= total / count + largest


def test_the_shares_of_the_tree_have_all_unit_tests_but_those_of_spark() -> None:
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests/unit").rglob("test_*.py")}
    divided = shares(Path("tests/unit"), 8)
    assert len(divided) == 8
    assert {name for share in divided for name in share} == {
        name for name in files if not name.startswith("tests/unit/spark/")
    }

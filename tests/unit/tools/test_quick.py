"""The parts of `make quick`, and the rooms of the product that it can be limited to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.quick import UnknownRoomError, main, parts, rooms, unit_tests


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
    assert [one for one in of_room if one not in of_tree] == [of_room[0]]
    assert of_room[0].command[-3:] == ["-m", "not soak and not long", "tests/unit/store"]

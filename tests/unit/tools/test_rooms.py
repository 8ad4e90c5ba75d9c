"""`tools.rooms` counts rooms, floors and arrows, and names a circle."""

from __future__ import annotations

from pathlib import Path

from tools.rooms import import_graph, product_modules, room_of, rooms_of, summary

HOUSE = {
    "house.cellar.pump": set[str](),
    "house.kitchen": {"house.cellar.pump"},
    "house.hall": {"house.kitchen", "house.cellar.pump"},
    "house.stairs": {"house.kitchen"},
    "garden": set[str](),
}


def test_a_room_stands_one_floor_above_the_highest_that_it_uses() -> None:
    rooms = rooms_of("house", HOUSE)
    assert rooms.floors == (("cellar",), ("kitchen",), ("hall", "stairs"))
    assert rooms.arrows == 4
    assert rooms.circle == ()
    assert "4 rooms,   4 arrows,  3 floors, no circle" in summary("house", rooms)


def test_imports_between_modules_of_one_room_are_no_arrow() -> None:
    assert rooms_of("house", {"house.a.x": {"house.a.y"}, "house.a.y": set()}).arrows == 0


def test_a_circle_of_rooms_is_named() -> None:
    rooms = rooms_of("house", {"house.a": {"house.b"}, "house.b": {"house.c"}, "house.c": {"house.a"}})
    assert rooms.floors == ()
    assert set(rooms.circle) == {"a", "b", "c"}
    assert "circle: " in summary("house", rooms)


def test_the_product_itself_is_a_house_of_packages() -> None:
    assert room_of("epochmq_store.record", "") == "epochmq_store"
    assert room_of("epochmq_store", "epochmq_store") is None
    assert room_of("epochmq_storehouse.record", "epochmq_store") is None


def test_modules_are_found_in_the_source_roots_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.hatch.build]\ndev-mode-dirs = ["store", "cli"]\n')
    for name, text in {
        "store/epochmq_store/__init__.py": "",
        "store/epochmq_store/record.py": "",
        "cli/epochmq/main.py": "from epochmq_store import record\nimport epochmq_store.missing\n",
        "broker/epochmq_broker/main.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert set(product_modules(tmp_path)) == {"epochmq_store", "epochmq_store.record", "epochmq.main"}
    assert import_graph(tmp_path)["epochmq.main"] == {"epochmq_store.record"}


def test_no_package_of_the_product_has_a_circle() -> None:
    graph = import_graph()
    assert rooms_of("", graph).circle == ()
    assert rooms_of("epochmq_broker", graph).circle == ()

"""A table's encoded entries are kept, and only the changed ones are encoded again."""

from __future__ import annotations

from epochmq_store.state_files.rendered_table import ENTRIES_AT_A_TIME, RenderedTable


class Table:
    """A table, and what was encoded of it."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.encoded: list[str] = []
        self.rendered = RenderedTable(self._encode)

    def _encode(self, name: str, value: object) -> bytes:
        self.encoded.append(name)
        return f"{name}={value}".encode()

    def join(self) -> bytes:
        self.encoded.clear()
        return self.rendered.join(self.values)


def test_entries_are_in_the_order_of_their_names_whatever_changes() -> None:
    table = Table()
    table.values = {"c": 3, "a": 1}
    assert table.join() == b"a=1,c=3"
    table.values |= {"b": 2, "c": 4}
    del table.values["a"]
    table.rendered.changed(["a", "b", "c", "never existed"])
    assert table.join() == b"b=2,c=4"
    assert sorted(table.encoded) == ["b", "c"]
    assert table.join() == b"b=2,c=4"
    assert table.encoded == []


def test_after_any_change_only_other_values_are_encoded() -> None:
    table = Table()
    table.values = {"a": 1, "b": 2, "c": 3}
    table.join()
    del table.values["a"]
    table.values["c"] = 4
    table.rendered.changed_everywhere()
    assert table.join() == b"b=2,c=4"
    assert table.encoded == ["c"]


def test_an_empty_table_has_no_entries() -> None:
    assert Table().join() == b""


def test_many_changes_are_encoded_in_steps_and_changes_between_them_are_not_lost() -> None:
    table = Table()
    table.values = {f"{n:04}": n for n in range(3 * ENTRIES_AT_A_TIME)}
    steps = table.rendered.refresh(table.values)
    next(steps)
    assert len(table.encoded) == ENTRIES_AT_A_TIME
    for name in ("0000", f"{3 * ENTRIES_AT_A_TIME - 1:04}"):
        table.values[name] = "new"
    del table.values["0001"]
    table.rendered.changed(["0000", "0001", f"{3 * ENTRIES_AT_A_TIME - 1:04}"])
    assert len(list(steps)) >= 1
    expected = b",".join(f"{name}={value}".encode() for name, value in sorted(table.values.items()))
    assert table.join() == expected
    assert table.encoded == []


def test_a_table_that_is_replaced_between_two_steps_is_encoded_anew() -> None:
    table = Table()
    table.values = {f"{n:04}": n for n in range(3 * ENTRIES_AT_A_TIME)}
    steps = table.rendered.refresh(table.values)
    next(steps)
    table.values.clear()
    table.values["x"] = 1
    table.rendered.changed_everywhere()
    assert list(steps) == []
    assert table.join() == b"x=1"

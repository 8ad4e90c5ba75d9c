"""Tests that a comparison is reused until one of the objects changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from epochmq_operator.plans.compared_objects import ComparisonCache
from epochmq_operator.plans.objects import Owner, with_owner


class Compared:
    """Counts the comparisons and returns given lines."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: tuple[str, ...] = ()

    def __call__(self, wanted: Mapping[str, Any], observed: Mapping[str, Any]) -> tuple[str, ...]:
        self.count += 1
        return self.lines


def wanted(data: str = "a", uid: str = "u") -> dict[str, Any]:
    """A manifest."""
    manifest = {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": data}
    return with_owner(manifest, Owner("BrokerGroup", "g", uid))


def seen(version: str = "1", uid: str = "x") -> dict[str, Any]:
    """An observed object."""
    return {"metadata": {"resourceVersion": version, "uid": uid}}


def test_equal_objects_are_compared_once() -> None:
    compared = Compared()
    comparison_cache = ComparisonCache(compared)
    assert [comparison_cache(wanted(), seen()) for _ in range(3)] == [(), (), ()]
    assert compared.count == 1


@pytest.mark.parametrize(
    ("now_wanted", "now_seen"),
    [(wanted("b"), seen()), (wanted(uid="v"), seen()), (wanted(), seen("2")), (wanted(), seen(uid="y"))],
)
def test_another_version_of_either_object_is_compared_again(
    now_wanted: dict[str, Any], now_seen: dict[str, Any]
) -> None:
    compared = Compared()
    comparison_cache = ComparisonCache(compared)
    comparison_cache(wanted(), seen())
    compared.lines = ("different",)
    assert comparison_cache(now_wanted, now_seen) == ("different",)


def test_differences_are_returned_every_time() -> None:
    compared = Compared()
    compared.lines = ("different",)
    comparison_cache = ComparisonCache(compared)
    assert comparison_cache(wanted(), seen()) == comparison_cache(wanted(), seen()) == ("different",)
    assert compared.count == 2


def test_objects_without_versions_are_always_compared() -> None:
    compared = Compared()
    comparison_cache = ComparisonCache(compared)
    for _ in range(2):
        comparison_cache(wanted(), {"metadata": {}})
        comparison_cache({"metadata": {"name": "c"}}, seen())
    assert compared.count == 4

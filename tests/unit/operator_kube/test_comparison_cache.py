"""Comparisons are remembered for as long as nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from epochmq_operator.kube.comparison_cache import ComparisonCache
from epochmq_operator.plans.objects import Owner, with_owner


class Compared:
    """Counts the comparisons, and says what it is told to say."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: tuple[str, ...] = ()

    def __call__(self, wanted: Mapping[str, Any], observed: Mapping[str, Any]) -> tuple[str, ...]:
        self.count += 1
        return self.lines


def wanted(data: str = "a", uid: str = "u") -> dict[str, Any]:
    """What is to be."""
    manifest = {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": data}
    return with_owner(manifest, Owner("BrokerGroup", "g", uid))


def seen(version: str = "1", uid: str = "x") -> dict[str, Any]:
    """What is."""
    return {"metadata": {"resourceVersion": version, "uid": uid}}


def test_the_same_two_are_compared_once() -> None:
    compared = Compared()
    comparison_cache = ComparisonCache(compared)
    assert [comparison_cache(wanted(), seen()) for _ in range(3)] == [(), (), ()]
    assert compared.count == 1


@pytest.mark.parametrize(
    ("now_wanted", "now_seen"),
    [(wanted("b"), seen()), (wanted(uid="v"), seen()), (wanted(), seen("2")), (wanted(), seen(uid="y"))],
)
def test_another_version_of_either_is_compared_anew(
    now_wanted: dict[str, Any], now_seen: dict[str, Any]
) -> None:
    compared = Compared()
    comparison_cache = ComparisonCache(compared)
    comparison_cache(wanted(), seen())
    compared.lines = ("different",)
    assert comparison_cache(now_wanted, now_seen) == ("different",)


def test_what_differs_is_told_every_time() -> None:
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

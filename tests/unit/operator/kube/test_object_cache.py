"""Tests that the cache is right in whatever order changes arrive."""

from __future__ import annotations

import asyncio

import pytest

from epochmq_operator.kube.api import ApiError, WatchEvent
from epochmq_operator.kube.object_cache import DELETIONS_MAX, Informer, ObjectCache
from epochmq_operator.kube.watch_states import WatchStates
from epochmq_operator.plans.objects import Ref
from tests.unit.operator.kube.watched_objects import Watching, pod


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    cache = ObjectCache()
    cache.put(pod("p", 5, status={"phase": "Running"}))
    cache.put(pod("p", 4, status={"phase": "Pending"}))
    found = cache.get(Ref("Pod", "a", "p"))
    assert found is not None
    assert found["status"] == {"phase": "Running"}
    assert "managedFields" not in found["metadata"]


def test_a_later_object_of_the_same_name_stays() -> None:
    cache = ObjectCache()
    cache.put(pod("p", 5, uid="old"))
    cache.put(pod("p", 3, uid="new"))
    cache.drop(pod("p", 9, uid="old"))
    found = cache.get(Ref("Pod", "a", "p"))
    assert found is not None
    assert found["metadata"]["uid"] == "new"


def test_a_late_response_does_not_bring_a_deleted_object_back() -> None:
    cache = ObjectCache()
    cache.put(pod("p", 5))
    cache.drop(pod("p", 9))
    cache.put(pod("p", 8))
    assert cache.get(Ref("Pod", "a", "p")) is None


def test_a_deletion_may_arrive_before_the_response_that_reports_the_object() -> None:
    cache = ObjectCache()
    cache.drop(pod("p", 9))
    cache.put(pod("p", 8))
    assert cache.get(Ref("Pod", "a", "p")) is None


def test_an_object_that_gets_the_operators_label_again_is_known_again() -> None:
    """A watch also reports DELETED when an object's labels no longer match."""
    cache = ObjectCache()
    cache.drop(pod("p", 9))
    cache.put(pod("p", 10))
    assert cache.get(Ref("Pod", "a", "p")) is not None
    cache.put(pod("q", 8, uid="other"))
    assert cache.get(Ref("Pod", "a", "q")) is not None


def test_a_late_deletion_does_not_remove_a_later_version() -> None:
    cache = ObjectCache()
    cache.put(pod("p", 10))
    cache.drop(pod("p", 9))
    assert cache.get(Ref("Pod", "a", "p")) is not None


def test_only_the_latest_deletions_are_remembered() -> None:
    cache = ObjectCache()
    for number in range(DELETIONS_MAX + 1):
        cache.drop(pod(f"p-{number}", 9, uid=str(number)))
    cache.put(pod("p-0", 8, uid="0"))
    cache.put(pod("p-1", 8, uid="1"))
    assert [ref.name for ref, _ in cache.all("Pod")] == ["p-0"]


def test_objects_missing_in_a_list_are_removed_and_notified() -> None:
    notified = []
    cache = ObjectCache(lambda found: notified.append(found["metadata"]["name"]))
    cache.put(pod("p", 1))
    cache.put(pod("q", 2))
    cache.replace("Pod", None, [pod("q", 2), pod("r", 3)])
    assert sorted(ref.name for ref, _ in cache.all("Pod")) == ["q", "r"]
    assert notified == ["p", "q", "p", "r"]


def test_an_object_that_is_later_than_a_list_comes_back_with_the_watch() -> None:
    cache = ObjectCache()
    cache.put(pod("p", 11))
    cache.replace("Pod", None, [])
    cache.put(pod("p", 11))
    assert cache.get(Ref("Pod", "a", "p")) is not None


def test_the_same_version_twice_is_notified_once() -> None:
    notified = []
    cache = ObjectCache(lambda found: notified.append(1))
    cache.put(pod("p", 1))
    cache.put(pod("p", 1))
    assert notified == [1]


async def test_a_list_in_smaller_versions_of_a_restored_api_server_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epochmq_operator.kube.object_cache.BACK_OFF_FIRST_S", 0.0)
    events = [
        WatchEvent("MODIFIED", pod("p", 900, status={"phase": "Failed"})),
        WatchEvent("DELETED", pod("q", 901, uid="v")),
        ApiError(504, "Too large resource version"),
    ]
    api = Watching(
        ([pod("p", 1), pod("q", 2, uid="v")], events),
        ([pod("p", 5, status={"phase": "Running"}), pod("q", 2, uid="v")], []),
    )
    cache = ObjectCache()
    informer = Informer(api, cache, "Pod", None, "", WatchStates())  # type: ignore[arg-type]
    task = asyncio.ensure_future(informer.run())
    async with asyncio.timeout(60):
        await api.idle.wait()
    task.cancel()
    found = cache.get(Ref("Pod", "a", "p"))
    assert found is not None
    assert found["status"] == {"phase": "Running"}
    assert cache.get(Ref("Pod", "a", "q")) is not None


def test_a_fetched_object_in_a_smaller_version_counts_unless_it_changed_meanwhile() -> None:
    cache = ObjectCache()
    cache.put(pod("p", 900))
    cache.put_fetched(pod("p", 5), cache.changes)
    found = cache.get(Ref("Pod", "a", "p"))
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "5"
    since = cache.changes
    cache.put(pod("p", 7))
    cache.put_fetched(pod("p", 6), since)
    found = cache.get(Ref("Pod", "a", "p"))
    assert found is not None
    assert found["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize("fault", [410, 0])
async def test_a_broken_watch_starts_again_with_a_list(fault: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochmq_operator.kube.object_cache.BACK_OFF_FIRST_S", 0.0)
    api = Watching(
        ([pod("p", 1)], [WatchEvent("ADDED", pod("q", 11)), ApiError(fault, "broken")]),
        ([pod("q", 11)], [WatchEvent("DELETED", pod("q", 12)), WatchEvent("BOOKMARK", pod("", 13))]),
    )
    cache = ObjectCache()
    states = WatchStates()
    informer = Informer(api, cache, "Pod", None, "", states)  # type: ignore[arg-type]
    task = asyncio.ensure_future(informer.run())
    async with asyncio.timeout(60):
        await api.idle.wait()
    task.cancel()
    assert states.blind() == []
    assert list(cache.all("Pod")) == []

"""A service's progress counts only as far as what it has stored is safe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.services.safe_progress import SafeProgress


def test_progress_is_safe_as_far_as_the_log_is() -> None:
    progress = SafeProgress((0, 0))
    progress.advance((5, 1), 1000)
    progress.advance((9, 2), 2000)
    assert (progress.reached, progress.safe, progress.unsafe) == ((9, 2), (0, 0), 2)
    assert not progress.settle(999)
    assert progress.settle(1999)
    assert (progress.reached, progress.safe) == ((9, 2), (5, 1))
    assert not progress.settle(1999)
    assert progress.settle(5000)
    assert (progress.safe, progress.unsafe) == ((9, 2), 0)


def test_a_step_that_stores_nothing_waits_only_for_earlier_steps() -> None:
    progress = SafeProgress(0)
    progress.advance(1, 0)
    assert (progress.safe, progress.unsafe) == (1, 0)
    assert progress.settle(0)
    progress.advance(2, 100)
    progress.advance(3, 0)
    assert (progress.reached, progress.safe) == (3, 1)
    assert progress.settle(100)
    assert progress.safe == 3


def test_a_reset_forgets_what_is_unsafe() -> None:
    progress = SafeProgress(0)
    progress.advance(7, 100)
    progress.reset(3)
    assert not progress.settle(1 << 62)
    assert (progress.reached, progress.safe, progress.unsafe) == (3, 3, 0)


def test_steps_are_bounded_and_none_is_safe_too_early() -> None:
    progress = SafeProgress(0, 64)
    for number in range(1, 75):
        assert progress.is_full == (number > 64)
        progress.advance(number, number * 100)
    assert (progress.reached, progress.unsafe) == (74, 64)
    assert progress.settle(7399)
    assert progress.safe == 63
    assert progress.settle(7400)
    assert progress.safe == 74


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40), st.integers(1, 5))
def test_progress_never_passes_a_step_that_is_not_safe(steps: list[tuple[int, bool]], bound: int) -> None:
    progress, ends, end, safe_end = SafeProgress(0, bound), [0], 0, 0
    for value, (stored, settles) in enumerate(steps, start=1):
        end += stored
        ends.append(end if stored else 0)
        progress.advance(value, ends[-1])
        if settles:
            safe_end = (safe_end + end) // 2
            progress.settle(safe_end)
        assert all(ends[before] <= safe_end for before in range(1, progress.safe + 1))
        assert progress.reached == value
    progress.settle(end)
    assert progress.safe == len(steps)

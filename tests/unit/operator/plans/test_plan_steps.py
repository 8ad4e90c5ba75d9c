"""Tests that the name of a step in a status tells its kind, whatever it is about."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from epochmq_operator.plans.plan_steps import DONE, PlanState, PlanStep, StepKind


def recorded(step: str) -> PlanState:
    """A plan that is at this step."""
    return PlanState("update", 1, step, "", 1, "2027-01-15T08:00:00Z")


@pytest.mark.parametrize("kind", StepKind)
@pytest.mark.parametrize("subject", ["", "3", "orders-broker-0"])
def test_the_kind_of_a_step_is_read_from_its_name(kind: StepKind, subject: str) -> None:
    step = PlanStep(kind, False, "Reason", "does something", subject=subject)
    assert step.name == (f"{kind.value}-{subject}" if subject else kind.value)
    assert recorded(step.name).step_kind is kind


@pytest.mark.parametrize("name", [DONE, "", "something-else", "readyish"])
def test_a_finished_plan_and_one_of_another_release_have_no_kind_of_step(name: str) -> None:
    state = recorded(name)
    assert state.step_kind is None
    assert PlanState.of({"plan": asdict(state)}) == state

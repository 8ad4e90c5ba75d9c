"""Builds the conditions that tools wait for, by the conventions of kstatus (Flux, Helm, Argo CD).

| condition | true when |
|---|---|
| Ready | the resource serves, and everything is as its spec says: every pod has the present template |
| Reconciling | the operator is on its way there |
| Stalled | only a person can help: the message says how |

Ready is false from the first status of a new generation on. So no tool takes a change for done before the
first pod has restarted."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Iterable

from epochmq_operator.plans.conditions import Condition, ConditionType
from epochmq_operator.plans.plan_steps import PlanProgress, PlanStep, StepKind

STEP_DEADLINE_S = 600
"""A step that waits this long for pods that do not run waits for a person. A Deployment has the same deadline
(`progressDeadlineSeconds`)."""
LISTED_MAX = 5
RESUME = "set spec.paused to false and remove the annotation epochmq.io/paused"
RESTORING_STEPS = (StepKind.CONTROLLERS, StepKind.OBJECTS, StepKind.REPLICAS)
"""The steps that apply objects: new ones, or those that others changed."""


def listed(lines: list[str]) -> str:
    """The first of these lines, in one."""
    more = f"; and {len(lines) - LISTED_MAX} more" if len(lines) > LISTED_MAX else ""
    return "; ".join(lines[:LISTED_MAX]) + more


def lacks_spec(step: PlanStep | None) -> bool:
    """Whether the resource is not as its spec says before this step, the first one that is not done. It is
    while the operator only restores what others changed, or tidies up."""
    if step is None or step.kind is StepKind.CONFIGURATIONS:
        return False
    return step.changed or step.kind not in RESTORING_STEPS


def tool_conditions(
    serving: Condition, progress: PlanProgress, rejection: str, idle_pods: Iterable[str], now: float
) -> list[Condition]:
    """The conditions Ready, Reconciling and Stalled. `serving` is Ready as far as the pods are concerned;
    `idle_pods` has one line for each pod that does not run. `rejection` is the API server's response to the
    operator's last write."""
    stalled = _stalled(progress, rejection, list(idle_pods), now)
    return [_ready(serving, progress), _reconciling(progress, stalled), stalled]


def deletion_conditions(progress: PlanProgress) -> list[Condition]:
    """The conditions Ready, Reconciling and Stalled of a resource that is being deleted."""
    step = progress.step
    message = "" if step is None else _what(step)
    stalled = _stalled(progress, "", [], 0.0)
    ready = Condition(ConditionType.READY, False, "Deleting", message)
    return [ready, _reconciling(progress, stalled), stalled]


def _ready(serving: Condition, progress: PlanProgress) -> Condition:
    """The condition Ready."""
    step = progress.undone
    if not serving.holds or step is None or not lacks_spec(step):
        return serving
    if progress.paused:
        return Condition(ConditionType.READY, False, "Paused", _paused(step))
    reason = f"{step.reason}Blocked" if step.blocked else step.reason
    return Condition(ConditionType.READY, False, reason, _what(step))


def _reconciling(progress: PlanProgress, stalled: Condition) -> Condition:
    """The condition Reconciling. A resource that is stalled is not reconciling."""
    step, kind = progress.step, ConditionType.RECONCILING
    if stalled.holds:
        return Condition(kind, False, "Stalled")
    if step is None:
        return Condition(kind, False, "AsWanted")
    return Condition(kind, True, step.reason, _what(step))


def _stalled(progress: PlanProgress, rejection: str, idle_pods: list[str], now: float) -> Condition:
    """The condition Stalled."""
    step, kind = progress.undone, ConditionType.STALLED
    if progress.paused:
        if not lacks_spec(step) or step is None:
            return Condition(kind, False, "Paused")
        return Condition(kind, True, "Paused", _paused(step))
    if step is not None and step.blocked and not step.opens_later:
        return Condition(kind, True, f"{step.reason}Blocked", step.waits_for)
    if rejection:
        return Condition(kind, True, "Refused", rejection)
    if step is not None and idle_pods and progress.step_seconds(now) >= STEP_DEADLINE_S:
        message = f"no progress for {STEP_DEADLINE_S // 60} minutes: {listed(idle_pods)}; {_what(step)}"
        return Condition(kind, True, "NoProgress", message)
    return Condition(kind, False, "AsWanted" if step is None else "Progresses")


def _paused(step: PlanStep) -> str:
    return f"the spec is not applied while the group is paused ({step.message}): to go on, {RESUME}"


def _what(step: PlanStep) -> str:
    return f"{step.message}, waiting for: {step.waits_for}" if step.waits_for else step.message

"""Advances plans: procedures that take several reconciliations, as sequences of steps.

A step says when it is done, what must hold before it starts (its guard), and what it does. All three are
computed from the observed state in every reconciliation, which takes the first step that is not done.
`status.plan` records the plan and its present step for users, and so that each step makes its Event once; no
decision depends on it. So an operator that is killed at any point is followed by one that continues from the
cluster's state and repeats nothing that is done."""

# pure: data in, effects out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from epochmq_operator.plans.conditions import seconds_of, timestamp
from epochmq_operator.plans.effects import CreateEvent, Effect, EventType

DONE = "done"
CREATE = "create"
DELETE = "delete"


class StepKind(StrEnum):
    """What a step does; `docs/develop/operator.md` lists them in their order. The last three belong to the
    deletion of a group."""

    GUARD = "guard"
    CONTROLLERS = "controllers"
    OBJECTS = "objects"
    RESTORE = "restore"
    REPLICAS = "replicas"
    CLAIMS = "claims"
    REPLACE = "replace"
    RELOAD = "reload"
    JOIN = "join"
    GROW = "grow"
    READY = "ready"
    STOP = "stop"
    STOPPED = "stopped"
    START = "start"
    STARTED = "started"
    LEAVE = "leave"
    RESTART = "restart"
    APPROVAL = "approval"
    TURN = "turn"
    SHRINK = "shrink"
    CONFIGURATIONS = "configurations"
    EXPAND = "expand"
    VOLUMES = "volumes"
    MEMBERS = "members"
    PEERS = "peers"
    HELD = "held"
    ADD = "add"
    ADMIT = "admit"
    FOUNDERS = "founders"
    REMOVE = "remove"
    CONFIRM = "confirm"
    BROKERS = "brokers"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan. `waits_for` is what its guard waits for; empty: the step may start. `reason` is the
    reason of its Event, in CamelCase; `message` says in a sentence what it does. `blocked`: only a person can
    resolve what it waits for. `opens_later`: it is blocked only until a maintenance window.
    `changed`: the operator wants a new state of an object; no one else has changed it. `target`: the step
    records this number of replicas in the status; the steps before it then bring the objects up to date.
    `recorded_after` are fields of the status that are recorded after the effects, if these succeed.
    `occurrence` distinguishes steps of one name in one plan, each of which makes its own Event. `event` is
    the type of the Event of a step that starts. `subject` is the pod, the claim or the number of replicas
    that the step is about; empty for the whole group."""

    kind: StepKind
    done: bool
    reason: str
    message: str
    waits_for: str = ""
    blocked: bool = False
    changed: bool = False
    effects: tuple[Effect, ...] = ()
    target: int | None = None
    recorded_after: Mapping[str, Any] = field(default_factory=dict)
    occurrence: str = ""
    event: EventType = EventType.NORMAL
    subject: str = ""
    opens_later: bool = False

    @property
    def name(self) -> str:
        """The name in the status and in Events: the kind, and the subject if there is one."""
        return f"{self.kind}-{self.subject}" if self.subject else str(self.kind)


@dataclass(frozen=True, slots=True)
class PlanState:
    """The content of `status.plan`. `number` counts the plans of a resource; `generation` is the resource's
    generation at the plan's last change; `finished` is empty until the plan is finished. `step_since`: when
    the step became the present one; empty in a status of a former release."""

    name: str
    number: int
    step: str
    message: str
    generation: int
    started: str
    finished: str = ""
    step_since: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> PlanState | None:
        """Reads a status of any shape; None without a usable plan."""
        found = status.get("plan")
        if not isinstance(found, Mapping):
            return None
        texts = {key: found.get(key, "") for key in ("name", "step", "message", "started", "finished")}
        texts["step_since"] = found.get("stepSince", "")
        numbers = {key: found.get(key, 0) for key in ("number", "generation")}
        if not all(isinstance(text, str) for text in texts.values()):
            return None
        if not all(type(number) is int for number in numbers.values()):
            return None
        return cls(**texts, **numbers)

    @property
    def step_kind(self) -> StepKind | None:
        """The kind of the present step; None after the last step, and for a step of another release."""
        kind = self.step.partition("-")[0]
        return StepKind(kind) if kind in StepKind.__members__.values() else None

    def document(self) -> dict[str, Any]:
        """The value for the status."""
        made: dict[str, Any] = {
            "name": self.name,
            "number": self.number,
            "step": self.step,
            "message": self.message,
            "generation": self.generation,
            "started": self.started,
        }
        if self.step_since:
            made["stepSince"] = self.step_since
        return {**made, "finished": self.finished} if self.finished else made


def was_created(before: PlanState | None) -> bool:
    """Whether the creation of a resource with this plan in its status is finished."""
    return before is not None and (before.name not in (CREATE, DELETE) or bool(before.finished))


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """The progress of a plan after one reconciliation: its state, the Events about it, and the effects of its
    step. `step` is the first one that is not done; None: all are done, or a person paused the resource. Then
    `held` is the first one that is not done."""

    state: PlanState | None
    step: PlanStep | None
    events: tuple[CreateEvent, ...] = ()
    effects: tuple[Effect, ...] = ()
    paused: bool = False
    held: PlanStep | None = None

    @property
    def undone(self) -> PlanStep | None:
        """The first step that is not done, also while the resource is paused."""
        return self.held if self.paused else self.step

    def step_seconds(self, now: float) -> float:
        """How long the present step lasts."""
        since = None if self.state is None else seconds_of(self.state.step_since or self.state.started)
        return 0.0 if since is None or self.step is None else now - since

    @property
    def target(self) -> int | None:
        """The number of replicas that the present step records; None if it records none or has to wait."""
        return None if self.step is None or self.step.waits_for else self.step.target

    @property
    def recorded_after(self) -> Mapping[str, Any]:
        """The fields of the status that the present step records after its effects."""
        return {} if self.step is None or self.step.waits_for else self.step.recorded_after

    @property
    def unfinished(self) -> bool:
        """Whether there is an unfinished plan."""
        return self.state is not None and not self.state.finished


def advance(
    before: PlanState | None, step: PlanStep | None, *, name: str, generation: int, uid: str, now: float
) -> PlanProgress:
    """Advances the plan by `step`, the first one that is not done; None: all are done. `name` is the name of
    a plan that begins now. `uid` is the resource's, so that Events of a later resource of the same name
    differ."""
    if step is None:
        if before is None or before.finished:
            return PlanProgress(before, None)
        state = replace(before, step=DONE, message="", finished=timestamp(now), step_since="")
        finish = CreateEvent(
            EventType.NORMAL, f"{_camel(before.name)}Done", f"{before.name}: done", _key(uid, state)
        )
        return PlanProgress(state, None, (finish,))
    if before is not None and _continues(before, name, generation):
        state = replace(before, step=step.name, message=step.waits_for or step.message, generation=generation)
        if step.name != before.step:
            state = replace(state, step_since=timestamp(now))
    else:
        number = before.number + 1 if before is not None else 1
        message, begun = step.waits_for or step.message, timestamp(now)
        state = PlanState(name, number, step.name, message, generation, begun, step_since=begun)
    events: list[CreateEvent] = []
    if state != before and step.blocked:
        key = _key(uid, state, "blocked", str(generation))
        events.append(CreateEvent(EventType.WARNING, f"{step.reason}Blocked", step.waits_for, key))
    elif state != before and not step.waits_for:
        more = [step.occurrence] if step.occurrence else []
        events.append(CreateEvent(step.event, step.reason, step.message, _key(uid, state, *more)))
    return PlanProgress(state, step, tuple(events), () if step.waits_for else step.effects)


def _continues(before: PlanState, name: str, generation: int) -> bool:
    """Whether the step belongs to the unfinished plan: the plan has the same name or the same generation. A
    deletion is always a plan of its own."""
    if before.finished:
        return False
    return before.name == name or (before.generation == generation and name != DELETE)


def _key(uid: str, state: PlanState, *more: str) -> str:
    return "/".join((uid, str(state.number), state.step, *more))


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))

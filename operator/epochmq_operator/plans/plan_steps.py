"""Plans: what takes several passes is a row of small steps, and where a group stands in it is noted in
`status.plan`.

A step says when it is done, what must hold before it starts (its guard), and what it does. All three are read
off the world in every pass; the step to take is the first that is not done. The note in the status decides
nothing about what is done next. It is there for people, and so that each step is told of once. So an operator
that was killed at any point goes on where the world stands, and nothing is done that is done already."""

# pure: data in, effects out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from epochmq_operator.plans.conditions import timestamp
from epochmq_operator.plans.effects import Effect, Emit, EventType

DONE = "done"
DELETE = "delete"


@dataclass(frozen=True, slots=True)
class PlanStep:
    """`missing` is what its guard still waits for; empty: it may start. `reason` is its Event's, in
    CamelCase, `message` what it does, in a sentence. `blocked`: only people can bring about what is missing;
    `changed`: the operator wants something new, and nobody else changed anything."""

    name: str
    done: bool
    reason: str
    message: str
    waits_for: str = ""
    blocked: bool = False
    changed: bool = False
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanState:
    """What `status.plan` holds. `number` counts the plans of a resource; `generation` is that of the
    resource when the plan began; `finished` is empty while it goes on."""

    name: str
    number: int
    step: str
    message: str
    generation: int
    started: str
    finished: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> PlanState | None:
        """From a status as it stands in the API server, whoever wrote it; None without a usable plan."""
        found = status.get("plan")
        if not isinstance(found, Mapping):
            return None
        texts = {key: found.get(key, "") for key in ("name", "step", "message", "started", "finished")}
        numbers = {key: found.get(key, 0) for key in ("number", "generation")}
        if not all(isinstance(text, str) for text in texts.values()):
            return None
        if not all(type(number) is int for number in numbers.values()):
            return None
        return cls(**texts, **numbers)

    def document(self) -> dict[str, Any]:
        """For the status."""
        made: dict[str, Any] = {
            "name": self.name,
            "number": self.number,
            "step": self.step,
            "message": self.message,
            "generation": self.generation,
            "started": self.started,
        }
        return {**made, "finished": self.finished} if self.finished else made


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """What a pass makes of the steps: where the plan stands now, the Events that say so, and then the step's
    own effects. `step` is the one that is not done; None: all are."""

    state: PlanState | None
    step: PlanStep | None
    events: tuple[Emit, ...] = ()
    effects: tuple[Effect, ...] = ()

    @property
    def unfinished(self) -> bool:
        """Whether a plan goes on."""
        return self.state is not None and not self.state.finished


def advance(
    before: PlanState | None, step: PlanStep | None, *, name: str, generation: int, uid: str, now: float
) -> PlanProgress:
    """Takes a step, the first that is not done; None: all are. `name` is what a plan that begins now is
    called; `uid` is the resource's, which Events of its namesake before it do not share."""
    if step is None:
        if before is None or before.finished:
            return PlanProgress(before, None)
        state = replace(before, step=DONE, message="", finished=timestamp(now))
        finish = Emit(
            EventType.NORMAL, f"{_camel(before.name)}Done", f"{before.name}: done", _key(uid, state)
        )
        return PlanProgress(state, None, (finish,))
    if before is not None and _continues(before, name, generation):
        state = replace(before, step=step.name, message=step.waits_for or step.message, generation=generation)
    else:
        number = before.number + 1 if before is not None else 1
        state = PlanState(name, number, step.name, step.waits_for or step.message, generation, timestamp(now))
    events: list[Emit] = []
    if state != before and step.blocked:
        key = _key(uid, state, "blocked", str(generation))
        events.append(Emit(EventType.WARNING, f"{step.reason}Blocked", step.waits_for, key))
    elif state != before and not step.waits_for:
        events.append(Emit(EventType.NORMAL, step.reason, step.message, _key(uid, state)))
    return PlanProgress(state, step, tuple(events), () if step.waits_for else step.effects)


def _continues(before: PlanState, name: str, generation: int) -> bool:
    """Whether the step belongs to the plan that was begun: one of the same name, or another turn of the same
    wish. A deletion is a plan of its own."""
    if before.finished:
        return False
    return before.name == name or (before.generation == generation and name != DELETE)


def _key(uid: str, state: PlanState, *more: str) -> str:
    return "/".join((uid, str(state.number), state.step, *more))


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))

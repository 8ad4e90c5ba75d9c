# pure: words for the reasons why a broker stores no messages
"""Says why a broker stores no messages: the state, the cause, and the next command.

These words are the only ones for it. Responses to rejected sends, the runtime information that
`epochmq status` shows, and the reasons of the admin API, from which conditions on Kubernetes come, use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

_STATUS = "epochmq status"


class SendRefusal(Struct, frozen=True):
    """Why a broker stores no messages. `state` in a word or two; `command` is the next thing to do.
    `is_expected`: the role of the broker demands it, and nothing is wrong with this broker."""

    state: str
    cause: str
    command: str
    is_expected: bool = False

    def __str__(self) -> str:
        """One line with all three."""
        return f"{self.state}: {self.cause}; next: {self.command}"


FENCED = SendRefusal(
    "fenced", "it stores no messages until it is unfenced", "epochmq fence GROUP/REPLICA --off"
)
IN_DOUBT = SendRefusal(
    "in doubt",
    "its log may lack acknowledged messages (after a power loss, a disk failure or a restored "
    "volume) until it has caught up with a master",
    _STATUS,
)
ISOLATED = SendRefusal("isolated", "it takes back the tables of its group before it serves clients", _STATUS)
STOPPING = SendRefusal("stopping", "it is being stopped", _STATUS)
ACTING = SendRefusal("acting", "it serves consumers for the master, which is down", _STATUS, is_expected=True)


def refusal_info(refusal: SendRefusal | None) -> Mapping[str, str]:
    """The entries of the runtime information about a broker that stores no messages although it should."""
    if refusal is None or refusal.is_expected:
        return {}
    return {"refusalState": refusal.state, "refusesMessages": str(refusal)}


def fenced_reason() -> str:
    """That the broker is fenced, as a sentence."""
    return f"it is {FENCED.state}: {FENCED.cause}"


def disk_full(faults: Sequence[str]) -> SendRefusal:
    """A disk of the store is full."""
    command = "free space on its disk, for example with epochmq config set fileReservedTime=24"
    return SendRefusal("disk full", "; ".join(faults), command)


def store_fault(faults: Sequence[str]) -> SendRefusal:
    """The store rejects messages for another reason than a full disk."""
    return SendRefusal("store fault", "; ".join(faults), "restart it, and see its log if that does not help")


def no_lease(waits_for: str | None) -> SendRefusal:
    """A master may not write now. `waits_for` says what it waits for, if it knows."""
    why = f" and {waits_for}" if waits_for is not None else ""
    return SendRefusal("no lease", f"the master has no write lease{why}", "epochmq controller list")


def few_replicas(in_sync: int, least: int, key: str = "minInSyncReplicas") -> SendRefusal:
    """Fewer replicas are in sync than `key` demands."""
    return SendRefusal("waits for replicas", f"{in_sync} replicas are in sync, but {key}={least}", _STATUS)


def store_refused(why: str) -> SendRefusal:
    """The controllers refuse the store for its broker id."""
    return SendRefusal("store refused", f"the controllers refuse its store: {why}", _STATUS)


def starting(waits_for: str) -> SendRefusal:
    """The broker has no role yet, or does not serve in it yet."""
    return SendRefusal("starting", waits_for, _STATUS)


def no_master_yet(leading_controller: str | None) -> str:
    """What a broker under controllers waits for as long as it has no role."""
    if leading_controller is None:
        return "no leading controller is known"
    return f"the leading controller {leading_controller} has not named a master yet"

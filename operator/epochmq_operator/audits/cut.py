"""The cut of an audit: up to where the replicas' logs are compared, and what their epoch files said then.

The master's confirm offset is asked first. What lies below it every replica of its SyncStateSet has, and
nobody writes there again; so each may be looked at later, at its own time. The epoch files are asked after
that: they know every epoch of what is below. A replica that is not in the set counts as far as it is."""

# pure: data in, data out.

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.plans.words import BrokerWord, ControllerWord, Word

EPOCH_FILE_BYTES_MAX = 64 * 1024
"""Of a copy: some 3,000 elections. A longer file is read from the volume alone."""


@dataclass(frozen=True, slots=True)
class ReplicaCut:
    """`end` is an offset of the log."""

    name: str
    end: int
    epochs: bytes | None

    def document(self) -> dict[str, Any]:
        """For the job."""
        copy = None if self.epochs is None else b64encode(self.epochs).decode()
        return {"name": self.name, "end": self.end, "epochs": copy}


@dataclass(frozen=True, slots=True)
class GroupCut:
    """`view` is the controllers' of the group, in the shape of `epochmq status`; None when none leads."""

    master: str
    epoch: int
    confirmed: int
    replicas: tuple[ReplicaCut, ...]
    view: Mapping[str, Any] | None


def cut_of(
    pods: tuple[str, ...], words: Mapping[str, Word], copies: Mapping[str, bytes], broker_name: str
) -> GroupCut | str:
    """The cut, or why there is none. `words` were said before the `copies` of epoch files were made."""
    said = {pod: word for pod in pods if isinstance(word := words.get(pod), BrokerWord)}
    masters = [(word.master_epoch or 0, pod) for pod, word in said.items() if word.role == "master"]
    if not said:
        return "no replica answers"
    if not masters:
        return "no replica says that it is the master"
    epoch, master = max(masters)
    leading = said[master]
    if leading.confirm_offset is None:
        return f"{master} does not say what is confirmed"
    members, confirmed = set(leading.sync_state_set), leading.confirm_offset
    replicas = []
    for pod in pods:
        word, copy = said.get(pod), copies.get(pod)
        end = confirmed
        if word is not None and word.broker_id not in members and word.max_offset is not None:
            end = min(end, word.max_offset)
        if copy is not None and len(copy) > EPOCH_FILE_BYTES_MAX:
            copy = None
        replicas.append(ReplicaCut(pod, end, copy))
    return GroupCut(master, epoch, confirmed, tuple(replicas), _view(words, broker_name, members))


def _view(words: Mapping[str, Word], broker_name: str, members: set[int]) -> dict[str, Any] | None:
    """What the leading controller knows of the group. Of the SyncStateSet what it and the master agree on: a
    change of it may be under way. Which replica is master is left out: its epoch may have nothing confirmed
    yet, and then has no entry below the cut."""
    leading = [
        (word.term or 0, pod, word)
        for pod, word in words.items()
        if isinstance(word, ControllerWord) and word.role == "leader"
    ]
    if not leading:
        return None
    *_, word = max(leading, key=lambda one: one[:2])
    kept = next((one for one in word.groups if one.broker_name == broker_name), None)
    if kept is None:
        return None
    return {
        "brokerName": broker_name,
        "masterEpoch": kept.master_epoch,
        "syncStateSet": sorted(set(kept.sync_state_set) & members),
        "replicas": [{"brokerId": one.broker_id} for one in kept.replicas],
    }

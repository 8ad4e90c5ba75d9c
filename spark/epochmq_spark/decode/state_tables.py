# pure: bytes of state files to entries and contradictions
"""Parses the state files of the broker's features: one row for each entry, with its contradictions.

Every parser raises ValueError or EpochMQError if the document as a whole has another shape than a broker
writes. The rows contain no passwords."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from epochmq_protocol import fastjson
from epochmq_protocol.bodies import TimerMetricsSerializeWrapper, from_json
from epochmq_protocol.bodies_admin import AclInfo, PolicyEntryInfo, UserInfo
from epochmq_protocol.bodies_base import convert
from epochmq_protocol.bodies_client import MessageRequestModeSerializeWrapper
from epochmq_protocol.topics import LogicQueueMappingItem, TopicQueueMappingSerializeWrapper

Document = dict[str, Any]

ACTIONS: Final = frozenset({"all", "pub", "sub", "create", "update", "delete", "get", "list"})
RESOURCE_TYPES: Final = frozenset({"cluster", "namespace", "topic", "group", "any", "unknown"})


@dataclass(frozen=True)
class StateEntry:
    """An entry of a state file. `offset` is the highest queue offset that it names. `problems` are (kind of
    finding, detail)."""

    topic: str | None = None
    consumer_group: str | None = None
    queue_id: int | None = None
    offset: int | None = None
    content: str = ""
    problems: tuple[tuple[str, str], ...] = ()


def parse_order_info(data: bytes) -> list[StateEntry]:
    """Entries of consumerOrderInfo.json: what groups received of a queue in order, and did not
    acknowledge."""
    entries = []
    for key, queues in _table(data, "table").items():
        words = str(key).split("@")
        for queue_id, info in _mapping(queues, key).items():
            info = _mapping(info, key)
            offsets = [int(one) for one in info.get("o") or ()]
            names = [offsets[0] + distance for distance in (0, *offsets[1:])] if offsets else []
            wrong = []
            if len(words) != 2 or not all(words):
                wrong.append(f"key {key}: expected TOPIC@GROUP")
            if sorted(set(names)) != names or any(one < 0 for one in names):
                wrong.append(f"offsets {names[:5]}: expected rising ones")
            if int(info.get("cm") or 0) >> len(names):
                wrong.append(f"it acknowledges more than {len(names)} messages")
            entries.append(
                StateEntry(
                    words[0],
                    words[1] if len(words) == 2 else None,
                    int(queue_id),
                    names[-1] if names else None,
                    _text(info),
                    _problems("pop.broken-order", wrong),
                )
            )
    return entries


def parse_filters(data: bytes) -> list[StateEntry]:
    """Entries of consumerFilter.json: the expressions that groups registered."""
    entries = []
    for topic, filters in _table(data, "filterDataByTopic").items():
        for group, one in _mapping(_mapping(filters, topic).get("groupFilterData"), topic).items():
            one = _mapping(one, group)
            wrong = []
            if not one.get("expression"):
                wrong.append("it has no expression")
            if one.get("topic") != topic or one.get("consumerGroup") != group:
                wrong.append(f"it names {one.get('topic')}@{one.get('consumerGroup')}")
            bloom = _mapping(one.get("bloomFilterData") or {}, group)
            bits, positions = int(bloom.get("bitNum") or 0), [int(at) for at in bloom.get("bitPos") or ()]
            if not positions or any(not 0 <= at < bits for at in positions):
                wrong.append(f"bit positions {positions[:5]} of a bit map of {bits}")
            problems = _problems("filter.broken-entry", wrong)
            entries.append(StateEntry(topic, group, content=_text(one), problems=problems))
    return entries


def filter_bits(data: bytes) -> int | None:
    """The size of the bit maps of the filters in a consumerFilter.json, in bits; None without a filter."""
    sizes = {
        int(_mapping(one.get("bloomFilterData") or {}, topic).get("bitNum") or 0)
        for topic, filters in _table(data, "filterDataByTopic").items()
        for one in _mapping(_mapping(filters, topic).get("groupFilterData"), topic).values()
    }
    return max(sizes, default=0) or None


def parse_request_modes(data: bytes) -> list[StateEntry]:
    """Entries of messageRequestMode.json: pull or POP, by topic and group."""
    _table(data, "messageRequestModeMap")
    modes = from_json(MessageRequestModeSerializeWrapper, data).message_request_mode_map
    return [
        StateEntry(
            topic,
            group,
            content=f"{mode.mode} {mode.pop_share_queue_num}",
            problems=()
            if (mode.topic, mode.consumer_group) == (topic, group)
            else (("request-mode.broken-entry", f"it names {mode.topic}@{mode.consumer_group}"),),
        )
        for topic, groups in modes.items()
        for group, mode in groups.items()
    ]


def parse_mappings(data: bytes) -> list[StateEntry]:
    """Entries of topicQueueMapping.json: one for each logical queue of a static topic."""
    _table(data, "topicQueueMappingInfoMap")
    entries = []
    for topic, detail in from_json(
        TopicQueueMappingSerializeWrapper, data
    ).topic_queue_mapping_info_map.items():
        shared = [f"it names {detail.topic}"] if detail.topic != topic else []
        for queue_id, items in sorted(detail.hosted_queues.items()):
            wrong = [*shared, *mapping_problems(items)]
            if not 0 <= queue_id < detail.total_queues:
                wrong.append(f"queue {queue_id} of {detail.total_queues}")
            problems = _problems("static-topic.broken-mapping", wrong)
            ranges = " ".join(f"{one.bname}/{one.queue_id}@{one.logic_offset}" for one in items)
            entries.append(StateEntry(topic, None, queue_id, None, ranges, problems))
    return entries


def mapping_problems(items: Iterable[LogicQueueMappingItem]) -> list[str]:
    """The contradictions in the ranges of a logical queue: generations and offsets must rise
    (TopicQueueMappingUtils.checkLogicQueueMappingItemOffset)."""
    wrong = []
    listed = list(items)
    for one in listed:
        if min(one.gen, one.queue_id, one.start_offset) < 0:
            wrong.append(f"generation {one.gen} has negative numbers")
        if one.end_offset != -1 and one.end_offset < one.start_offset:
            wrong.append(f"generation {one.gen} ends at {one.end_offset}, before {one.start_offset}")
    for before, after in pairwise(listed):
        if before.gen >= after.gen:
            wrong.append(f"generation {after.gen} follows {before.gen}")
        if before.logic_offset < 0:
            wrong.append(f"generation {before.gen} has no logical offset, and is not the last one")
        elif after.logic_offset != -1:
            end = before.logic_offset + max(before.end_offset - before.start_offset, 0)
            if after.logic_offset <= before.logic_offset or end > after.logic_offset:
                wrong.append(f"generation {after.gen} starts at {after.logic_offset}, before {end}")
    return wrong


def parse_auth(data: bytes) -> list[StateEntry]:
    """Entries of auth.json: users and ACLs. Passwords are left out."""
    parsed = _mapping(fastjson.loads(data), "the file")
    users = [convert(UserInfo, one) for one in _list(parsed.get("users"), "users")]
    acls = [convert(AclInfo, one) for one in _list(parsed.get("acls"), "acls")]
    names = {user.username for user in users}
    entries = []
    for user in users:
        wrong = [] if user.username else ["a user has no name"]
        if (user.user_type or "normal").lower() not in ("super", "normal"):
            wrong.append(f"user {user.username}: type {user.user_type}")
        if (user.user_status or "enable").lower() not in ("enable", "disable"):
            wrong.append(f"user {user.username}: status {user.user_status}")
        shown = f"User:{user.username} {user.user_type} {user.user_status}"
        entries.append(StateEntry(content=shown, problems=_problems("auth.broken-entry", wrong)))
    for acl in acls:
        kind, _, name = (acl.subject or "").partition(":")
        wrong = [] if kind == "User" and name else [f"subject {acl.subject}: expected User:NAME"]
        rules = [entry for policy in acl.policies or () for entry in policy.entries or ()]
        wrong += [f"{acl.subject}: {text}" for rule in rules for text in _rule_problems(rule)]
        problems = _problems("auth.broken-entry", wrong)
        if name and name not in names:
            problems += (("auth.unknown-user", f"an ACL is for {acl.subject}"),)
        shown = f"{acl.subject} {len(rules)} entries"
        entries.append(StateEntry(content=shown, problems=problems))
    return entries


def without_passwords(data: bytes) -> bytes:
    """The same auth.json without passwords. Of a file that is no JSON, nothing is shown."""
    try:
        parsed = fastjson.loads(data)
    except Exception:
        return b"not shown, because it is no JSON"
    if not isinstance(parsed, dict):
        return b"[]"
    users = parsed.get("users")
    for user in users if isinstance(users, list) else ():
        if isinstance(user, dict):
            user.pop("password", None)
    return fastjson.dumps({"users": users, "acls": parsed.get("acls")})


def _rule_problems(rule: PolicyEntryInfo) -> list[str]:
    wrong = []
    kind = (rule.resource or "").partition(":")[0].lower()
    if rule.resource != "*" and kind not in RESOURCE_TYPES:
        wrong.append(f"resource {rule.resource}")
    if not rule.actions or any(action.lower() not in ACTIONS for action in rule.actions):
        wrong.append(f"actions {rule.actions} on {rule.resource}")
    if (rule.decision or "").lower() not in ("allow", "deny"):
        wrong.append(f"decision {rule.decision} on {rule.resource}")
    return wrong


def parse_timer_metrics(data: bytes) -> list[StateEntry]:
    """Entries of timermetrics: the number of pending timer messages of each topic."""
    _table(data, "timingCount")
    counts = from_json(TimerMetricsSerializeWrapper, data).timing_count
    return [StateEntry(topic, content=str(entry.count)) for topic, entry in counts.items()]


STATE_FILES: Final[Mapping[str, Callable[[bytes], list[StateEntry]]]] = {
    "config/consumerOrderInfo.json": parse_order_info,
    "config/consumerFilter.json": parse_filters,
    "config/messageRequestMode.json": parse_request_modes,
    "config/topicQueueMapping.json": parse_mappings,
    "config/auth.json": parse_auth,
    "config/timermetrics": parse_timer_metrics,
}
"""The parser of each state file, by its path in the store."""


def _table(data: bytes, name: str) -> Document:
    """The object in a field of the document. Raises ValueError or EpochMQError."""
    parsed = _mapping(fastjson.loads(data), "the file")
    return _mapping(parsed.get(name), name)


def _mapping(value: Any, name: object) -> Document:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected a list")
    return value


def _problems(kind: str, texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((kind, text) for text in texts)


def _text(value: Document) -> str:
    return fastjson.dumps(value).decode("utf-8", "replace")

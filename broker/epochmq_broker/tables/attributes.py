"""Parses and checks changes of the attributes of topics and groups.

A request spells `+key=value` to add or change and `-key` to delete an attribute; a table stores keys without
a sign. The rules, the four topic attributes, the group attribute and the wording of the errors are
RocketMQ's (AttributeUtil, AttributeParser, TopicAttributes, SubscriptionGroupAttributes), because its tools
print the remark. The type PRIORITY and `priority.factor` are those of 5.4 and later.
"""
# pure: rules over dictionaries

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import TopicConfig

MESSAGE_TYPE = "message.type"
QUEUE_TYPE, BATCH_CQ = "queue.type", "BatchCQ"
CLEANUP_POLICY, COMPACTION = "cleanup.policy", "COMPACTION"
PRIORITY, PRIORITY_FACTOR = "PRIORITY", "priority.factor"
PRIORITY_FACTOR_MAX = 100
LONG_MAX = (1 << 63) - 1
DIGITS_MAX = 1000
_DECIMAL = re.compile(r"[+-]?[0-9]+")


class Attribute(msgspec.Struct, frozen=True):
    """The rule for one attribute: a set of texts, or (if `choices` is empty) an integer in [low, high]."""

    changeable: bool
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0

    def verify(self, value: str) -> None:
        """Raises RequestError if the value is not allowed."""
        if self.choices:
            if value not in self.choices:
                raise _rejected(f"value is not in set: [{', '.join(self.choices)}]")
            return
        number = _long(value)
        if number is None:
            raise _rejected(f'For input string: "{value}"')
        if not self.low <= number <= self.high:
            raise _rejected(f"value is not in range({self.low}, {self.high})")


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    QUEUE_TYPE: Attribute(False, (BATCH_CQ, "SimpleCQ")),
    CLEANUP_POLICY: Attribute(False, (COMPACTION, "DELETE")),
    MESSAGE_TYPE: Attribute(
        True, ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", PRIORITY, "MIXED")
    ),
    "reserve.time": Attribute(True, (), -1, LONG_MAX),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {PRIORITY_FACTOR: Attribute(True, (), 0, PRIORITY_FACTOR_MAX)}


def is_batch_cq(topic: TopicConfig) -> bool:
    """Whether a topic has batch consume queues (QueueTypeUtils.isBatchCq)."""
    return (topic.attributes or {}).get(QUEUE_TYPE) == BATCH_CQ


def is_compacted(topic: TopicConfig) -> bool:
    """Whether of each key only the newest message of a topic is kept (CleanupPolicyUtils.isCompaction)."""
    return (topic.attributes or {}).get(CLEANUP_POLICY) == COMPACTION


def has_priorities(topic: TopicConfig) -> bool:
    """Whether POPs of a topic look into its queues by priority."""
    return (topic.attributes or {}).get(MESSAGE_TYPE) == PRIORITY


def priority_factor(group: SubscriptionGroupConfig) -> int:
    """How many of 100 POPs of a group go by priority, if the topic has priorities."""
    factor = _long((group.attributes or {}).get(PRIORITY_FACTOR, ""))
    return PRIORITY_FACTOR_MAX if factor is None else factor


def parse_attributes(text: str | None) -> dict[str, str]:
    """Parses `+k=v,-k2` of a request header into {"+k": "v", "-k2": ""}. Raises RequestError if the text is
    malformed."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        key, equals, value = part.partition("=")
        if equals and "+" not in key:
            raise _rejected(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise _rejected(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise _rejected(f"key duplication: {key}")
        changes[key] = value
    return changes


def alter_attributes(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Returns the attributes after `changes` (signed keys). `current` is None while the topic or group is
    being created; then only additions are allowed, of unchangeable attributes, too. Raises RequestError with
    the first key that is not allowed."""
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _rejected("kv string format wrong.")
        if key in seen:
            raise _rejected(f"alter duplication key. key: {key}")
        seen.add(key)
        if current is None and sign != "+":
            raise _rejected(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise _rejected(f"wrong format key: {key}")
        if sign == "-" and key not in result:
            raise _rejected(f"attempt to delete a nonexistent key: {key}")
        attribute = known.get(key)
        if attribute is None:
            raise _rejected(f"unsupported key: {key}")
        if current is not None and not attribute.changeable:
            raise _rejected(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "+":
            attribute.verify(value)
            result[key] = value
        else:
            del result[key]
    return result


def _long(text: str) -> int | None:
    """The value of a decimal that a Java long holds; None of any other text."""
    if not _DECIMAL.fullmatch(text) or len(text) > DIGITS_MAX:
        return None
    number = int(text)
    return number if -LONG_MAX - 1 <= number <= LONG_MAX else None


def _rejected(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)

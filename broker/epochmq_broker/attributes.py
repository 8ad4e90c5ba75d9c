"""Attributes of topics and groups: how a request spells a change and what may be changed.

A request says `+key=value` to add or alter and `-key` to delete; a table stores keys without a sign. The
rules, the four topic attributes and the wording of the faults are RocketMQ's (AttributeUtil, AttributeParser,
TopicAttributes), for its tools show the remark.
"""
# pure: rules over dictionaries

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError

MESSAGE_TYPE = "message.type"
LONG_MAX = (1 << 63) - 1


class Attribute(msgspec.Struct, frozen=True):
    """One known attribute: a choice of texts, or (when `choices` is empty) an integer in [low, high]."""

    changeable: bool
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0

    def verify(self, value: str) -> None:
        """Refuses a value outside the attribute's range with a RequestError."""
        if self.choices:
            if value not in self.choices:
                raise _refused(f"value is not in set: [{', '.join(self.choices)}]")
            return
        try:
            number = int(value)
        except ValueError:
            raise _refused(f'For input string: "{value}"') from None
        if not self.low <= number <= self.high:
            raise _refused(f"value is not in range({self.low}, {self.high})")


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(False, ("BatchCQ", "SimpleCQ")),
    "cleanup.policy": Attribute(False, ("COMPACTION", "DELETE")),
    MESSAGE_TYPE: Attribute(True, ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")),
    "reserve.time": Attribute(True, (), -1, LONG_MAX),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {}


def parse_attributes(text: str | None) -> dict[str, str]:
    """`+k=v,-k2` as a request header spells it -> {"+k": "v", "-k2": ""}; RequestError when it is
    malformed."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        key, equals, value = part.partition("=")
        if equals and "+" not in key:
            raise _refused(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise _refused(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise _refused(f"key duplication: {key}")
        changes[key] = value
    return changes


def alter_attributes(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes after `changes` (signed keys). `current` is None when the topic or group is being
    created, when only additions are allowed, of unchangeable attributes too. RequestError names the first
    offending key."""
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _refused("kv string format wrong.")
        if key in seen:
            raise _refused(f"alter duplication key. key: {key}")
        seen.add(key)
        if current is None and sign != "+":
            raise _refused(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {key}")
        if sign == "-" and key not in result:
            raise _refused(f"attempt to delete a nonexistent key: {key}")
        attribute = known.get(key)
        if attribute is None:
            raise _refused(f"unsupported key: {key}")
        if current is not None and not attribute.changeable:
            raise _refused(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "+":
            attribute.verify(value)
            result[key] = value
        else:
            del result[key]
    return result


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)

"""Checks names and filters that a person typed, before a broker is asked: each error names the option, the
value and what was expected."""

from __future__ import annotations

from typing import Final

from epochmq.exits import UsageError
from epochmq_protocol.topics import (
    GROUP_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
    is_topic_or_group_illegal,
    validate_topic,
)

NAME_CHARACTERS: Final = "letters, digits, '-', '_', '|' and '%'"
SEPARATORS: Final = "\x01\x02"
"""RocketMQ writes properties as text: these characters separate names and values."""


def check_topic(topic: str, option: str = "TOPIC") -> str:
    """The topic's name. Raises UsageError for one that no broker accepts."""
    if validate_topic(topic) is not None:
        raise UsageError(f"{option} {topic[:150]!r}: expected 1 to {TOPIC_LENGTH_MAX} {NAME_CHARACTERS}")
    return topic


def check_group(group: str, option: str = "--group") -> str:
    """The name of a producer or consumer group. Raises UsageError for one that no broker accepts."""
    if is_topic_or_group_illegal(group) or not 0 < len(group) <= GROUP_LENGTH_MAX:
        raise UsageError(f"{option} {group[:40]}: expected at most {GROUP_LENGTH_MAX} {NAME_CHARACTERS}")
    return group


def check_tags(option: str, tags: str) -> str:
    """A filter by tags. Raises UsageError."""
    if tags.strip() != "*" and not all(tag.strip() for tag in tags.split("||")):
        raise UsageError(f"{option} {tags}: expected '*', or tags separated by '||'")
    return tags


def check_property_text(option: str, text: str) -> None:
    """Raises UsageError for a name or a value that would end inside of the message's properties."""
    if any(separator in text for separator in SEPARATORS):
        raise UsageError(
            f"{option} {text!r:.60}: expected no characters U+0001 and U+0002, which separate properties"
        )

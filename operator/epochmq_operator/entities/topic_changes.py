"""Computes how a topic of a broker group differs from its resource, and the change that makes it equal.

A field that the resource leaves out is not compared. The number of queues for reading never shrinks unless
the resource gives it: messages in the queues that go would become unreadable."""

# pure: data in, data out.

from __future__ import annotations

import msgspec

from epochmq_operator.entities.broker_changes import Changes, PutTopic
from epochmq_operator.resources.entities import TopicPermission, TopicResource
from epochmq_protocol.topics import TopicConfig


def topic_changes(topic: TopicResource, found: TopicConfig | None) -> Changes:
    """The changes to the topic as found, None if the broker group does not have it."""
    spec, name = topic.spec, topic.broker_side_name
    attributes = {f"+{key}": value for key, value in spec.wanted_attributes.items()}
    if found is None:
        made = TopicConfig(
            topic_name=name,
            read_queue_nums=spec.read_queues or spec.queues,
            write_queue_nums=spec.queues,
            perm=spec.permission.perm,
            attributes=attributes,
        )
        return Changes((PutTopic(made),), ("the topic does not exist",))
    desired = msgspec.structs.replace(
        found,
        topic_name=name,
        write_queue_nums=spec.queues,
        read_queue_nums=spec.read_queues or max(spec.queues, found.read_queue_nums),
        perm=spec.permission.perm,
        attributes={
            f"+{key}": value
            for key, value in spec.wanted_attributes.items()
            if (found.attributes or {}).get(key) != value
        },
    )
    differences = _differences(found, desired)
    return Changes((PutTopic(desired),), differences) if differences else Changes()


def _differences(found: TopicConfig, wanted: TopicConfig) -> tuple[str, ...]:
    pairs = [
        ("writeQueueNums", found.write_queue_nums, wanted.write_queue_nums),
        ("readQueueNums", found.read_queue_nums, wanted.read_queue_nums),
        ("permission", _permission(found.perm), _permission(wanted.perm)),
        *(
            (signed[1:], (found.attributes or {}).get(signed[1:], "absent"), value)
            for signed, value in sorted(wanted.attributes.items())
        ),
    ]
    return tuple(f"{name} is {old}, expected {new}" for name, old, new in pairs if old != new)


def _permission(perm: int) -> str:
    """The permission in the resource's words; the number if these have no word for it."""
    return next((str(one) for one in TopicPermission if one.perm == perm), str(perm))

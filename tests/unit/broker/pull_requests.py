"""Pull requests, and queues that are filled for them."""

from __future__ import annotations

from epochmq_protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, to_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command
from epochmq_protocol.javahash import java_hash
from tests.unit.broker.kit import (
    UNIQ_KEY,
    Peer,
    command,
    send_command,
)

TOPIC = "BenchmarkTest"
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4


def fill(peer: Peer, *tags: str, topic: str = TOPIC) -> None:
    """Sends one message per tag; its body is its number."""
    for number, tag in enumerate(tags):
        properties = {"UNIQ_KEY": UNIQ_KEY} | ({"TAGS": tag} if tag else {})
        assert peer.call(send_command(topic, str(number).encode(), properties)).code == 0


def heartbeat(
    topic: str = TOPIC, tags: str = "*", version: int = 1, model: str = "CLUSTERING", kind: str = "TAG"
) -> Command:
    """Registers a push consumer of `group` that subscribes a topic."""
    words = set() if tags == "*" else set(tags.split("||"))
    subscription = SubscriptionData(
        topic=topic,
        sub_string=tags,
        tags_set=words,
        code_set={java_hash(word) for word in words},
        sub_version=version,
        expression_type=kind,
    )
    data = HeartbeatData(
        client_id="client",
        consumer_data_set=[
            ConsumerData(
                group_name="group",
                consume_type="CONSUME_PASSIVELY",
                message_model=model,
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                subscription_data_set=[subscription],
            )
        ],
    )
    return command(RequestCode.HEART_BEAT, body=to_json(data))


def positions(answer: Command) -> tuple[int, int, int]:
    """(next, min, max) of a response."""
    ext = answer.ext or {}
    return int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])

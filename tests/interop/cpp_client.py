"""Runs RocketMQ's C++ client, through its Python binding, as a program of its own, because its shutdown may
crash the process. Arguments: NAMESERVER and a JSON plan; the output is JSON lines.

Plans: {"do": "send", "topic": T, "sends": [{"how": "sync|async|oneway|orderly", "body": …, "tags", "keys",
"key", "properties", "delay"}]}; {"do": "consume", "topic": T, "group": G, "orderly": bool, "broadcast": bool,
"expression": E}, which runs until its standard input ends; {"do": "pull", "topic": T, "group": G}.

Batches are left out: RocketMQ 5.3.3 stores one as a single message, as this client sends it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from typing import Any

# The binding carries no types.
from rocketmq.client import (  # type: ignore[import-untyped]
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
)
from rocketmq.ffi import MessageModel  # type: ignore[import-untyped]

Plan = dict[str, Any]
SEND_TIMEOUT_MS = 60_000
_telling = threading.Lock()


def tell(**line: Any) -> None:
    """Prints one JSON line."""
    with _telling:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def describe(message: RecvMessage) -> Plan:
    """A received message as plain data; bodies of the tests are text without a zero byte."""
    return {
        "topic": message.topic,
        "body": message.body.decode(),
        "tags": message.tags.decode(),
        "keys": message.keys.decode(),
        "msg_id": message.id,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "reconsume_times": message.reconsume_times,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "own": (message.get_property("own") or b"").decode(),
    }


def build(topic: str, send: Plan) -> Message:
    """The message of one planned send."""
    message = Message(topic)
    message.set_body(send["body"])
    if "tags" in send:
        message.set_tags(send["tags"])
    if "keys" in send:
        message.set_keys(send["keys"])
    for name, value in send.get("properties", {}).items():
        message.set_property(name, value)
    if "delay" in send:
        message.set_delay_time_level(send["delay"])
    return message


def sign(client: Any, plan: Plan) -> None:
    """Lets a client sign as the user of the plan, if there is one."""
    if "user" in plan:
        client.set_session_credentials(plan["user"], plan["secret"], "")


def producer_of(nameserver: str, plan: Plan) -> Producer:
    """A started producer."""
    producer = Producer("cpp_producer", timeout=SEND_TIMEOUT_MS)
    producer.set_namesrv_addr(nameserver)
    sign(producer, plan)
    producer.start()
    return producer


def send(nameserver: str, plan: Plan) -> None:
    """Sends as planned and prints the result of each send that has one."""
    producer = producer_of(nameserver, plan)
    answered = threading.Semaphore(0)
    awaited = 0
    for planned in plan["sends"]:
        message, how, body = build(plan["topic"], planned), planned["how"], planned["body"]
        if how == "oneway":
            producer.send_oneway(message)
            continue
        if how == "async":

            def succeeded(result: Any, body: str = body) -> None:
                tell(body=body, status=result.status.name, msg_id=result.msg_id, offset=result.offset)
                answered.release()

            def failed(error: Exception, body: str = body) -> None:
                tell(body=body, status=str(error))
                answered.release()

            producer.send_async(message, succeeded, failed)
            awaited += 1
            continue
        result = (
            producer.send_orderly(message, planned["key"])
            if how == "orderly"
            else producer.send_sync(message)
        )
        tell(body=body, status=result.status.name, msg_id=result.msg_id, offset=result.offset)
    for _ in range(awaited):
        answered.acquire(timeout=120)
    # A thread of the client writes one-way sends; a send behind them that is answered shows that they are
    # sent.
    producer.send_sync(build(plan["topic"], {"body": "flush", "tags": "flush"}))


def consume(nameserver: str, plan: Plan) -> None:
    """Prints each message as it comes, until standard input ends."""
    model = MessageModel.BROADCASTING if plan.get("broadcast") else MessageModel.CLUSTERING
    consumer = PushConsumer(plan["group"], orderly=plan.get("orderly", False), message_model=model)
    consumer.set_namesrv_addr(nameserver)
    sign(consumer, plan)
    consumer.set_instance_name(f"cpp-{os.getpid()}")
    consumer.set_thread_count(4)
    consumer.subscribe(plan["topic"], lambda message: tell(**describe(message)), plan.get("expression", "*"))
    consumer.start()
    sys.stdin.read()


def pull(nameserver: str, plan: Plan) -> None:
    """Prints all messages of a topic, by plain pulls."""
    consumer = PullConsumer(plan["group"])
    consumer.set_namesrv_addr(nameserver)
    sign(consumer, plan)
    consumer.start()
    for message in itertools.islice(consumer.pull(plan["topic"]), 10_000):
        tell(**describe(message))


def main() -> None:
    """Runs the plan, and ends without the client's destructors."""
    nameserver, plan = sys.argv[1], json.loads(sys.argv[2])
    {"send": send, "consume": consume, "pull": pull}[plan["do"]](nameserver, plan)
    tell(done=True)
    os._exit(0)


if __name__ == "__main__":
    main()

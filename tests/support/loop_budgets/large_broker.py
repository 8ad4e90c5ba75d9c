"""A broker with large tables and many clients."""

from __future__ import annotations

import gc
import itertools
from dataclasses import dataclass
from typing import Final

from epochmq_broker.services.cold_control.flow_control import GROUPS_MAX
from epochmq_protocol.bodies import (
    AclInfo,
    ConsumerData,
    HeartbeatData,
    MessageRequestModeSerializeWrapper,
    PolicyEntryInfo,
    PolicyInfo,
    ProducerData,
    SetMessageRequestModeRequestBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    UserInfo,
    to_json,
)
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.topics import TopicConfig
from tests.unit.broker.auth.kit import PROVIDERS, ROOT
from tests.unit.broker.kit import Bench, Peer, command, send_command

SETTINGS: Final = PROVIDERS | {
    "longPollingEnable": "false",
    "maxMessageSize": str(4 << 20),
    "mappedFileSizeCommitLog": str(64 << 20),
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
}
WIDE_TOPIC: Final = "BenchmarkTest"
"""Every broker has it, with 1,024 queues."""
BUSY_GROUP: Final = "g0"
"""It has offsets on every topic, and many members."""


@dataclass(frozen=True)
class Sizes:
    """How large the tables and requests are."""

    topics: int = 5000
    groups: int = 2000
    queues: int = 8
    members: int = 1000
    messages: int = 2000
    users: int = 500
    heartbeat_groups: int = 1000
    heartbeat_subscriptions: int = 5000
    locked_queues: int = 5000


SMALL: Final = Sizes(
    topics=20, groups=20, members=5, messages=50, users=5, heartbeat_groups=20, heartbeat_subscriptions=100,
    locked_queues=50,
)  # fmt: skip
"""For tests of the tool itself."""


class LargeBroker:
    """A broker whose tables are filled, and its clients."""

    def __init__(self, bench: Bench, sizes: Sizes) -> None:
        self.bench = bench
        self.sizes = sizes
        self.members: list[Peer] = []
        self._numbers = itertools.count()

    def fill(self) -> None:
        """Fills the tables."""
        self._fill_tables()
        self._fill_users()
        self._join_members()
        self._send_messages()
        gc.collect()
        gc.freeze()  # as a broker does with the tables that it loads

    def _fill_tables(self) -> None:
        broker, sizes = self.bench.broker, self.sizes
        broker.topics.update(
            [
                TopicConfig(f"t{n}", read_queue_nums=sizes.queues, write_queue_nums=sizes.queues)
                for n in range(sizes.topics)
            ]
        )
        broker.groups.update([SubscriptionGroupConfig(group_name=f"g{n}") for n in range(sizes.groups)])
        for number in range(sizes.topics):
            for group in {BUSY_GROUP, f"g{number % sizes.groups}"}:
                for queue_id in range(sizes.queues):
                    broker.tables.offsets.commit(group, f"t{number}", queue_id, 1_000_000 + queue_id)
        for queue_id in range(1024):
            broker.tables.offsets.commit(BUSY_GROUP, WIDE_TOPIC, queue_id, 1_000_000)
        broker.tables.request_modes.replace_all(
            MessageRequestModeSerializeWrapper(
                message_request_mode_map={
                    "t0": {
                        f"g{n}": SetMessageRequestModeRequestBody(topic="t0", consumer_group=f"g{n}")
                        for n in range(sizes.groups)
                    }
                }
            )
        )

    def _fill_users(self) -> None:
        metadata = self.bench.broker.tables.auth
        listeners, metadata.on_change[:] = list(metadata.on_change), []
        root = UserInfo(username=ROOT.access_key, password=ROOT.secret_key, user_type="Super")
        metadata.create_user(root)
        for number in range(self.sizes.users):
            metadata.create_user(UserInfo(username=f"user{number}", password="secret", user_type="Normal"))
            metadata.merge_acl(acl_of(10, f"t{number}-"), f"User:user{number}")
        metadata.on_change[:] = listeners
        self.bench.broker.tables.auth_file.encode()  # as a broker does with the file that it loads

    def _join_members(self) -> None:
        """Many clients in one group."""
        beat = HeartbeatData(
            consumer_data_set=[consumer_of(BUSY_GROUP, 1, 0)], producer_data_set=[ProducerData("crowd")]
        )
        clients = self.bench.broker.tables.clients
        listeners, clients.on_group_change[:] = list(clients.on_group_change), []
        for number in range(self.sizes.members):
            peer = self.bench.peer(address=(f"127.1.{number // 250}.{number % 250 + 1}", 40_000))
            beat.client_id = f"member-{number}"
            assert peer.call(command(Code.HEART_BEAT, None, to_json(beat))).code == 0
            self.members.append(peer)
        clients.on_group_change[:] = listeners

    def _send_messages(self) -> None:
        peer = self.bench.peer()
        for number in range(self.sizes.messages):
            peer.send(send_command(f"t{number % 100}", bytes(1000), {"KEYS": "k", "WAIT": "true"}))
        for number in range(64):
            peer.send(
                send_command("big", bytes(200 << 10), {"KEYS": "k", "WAIT": "true"}, queue_id=number % 4)
            )
        peer.collect()
        peer.answers.clear()

    def next_number(self) -> int:
        """A number that no other request has got."""
        return next(self._numbers)

    def change_topics(self) -> None:
        """Changes one topic, so that nothing that was encoded before is valid."""
        self.bench.broker.topics.put(TopicConfig("changing", topic_sys_flag=self.next_number() % 1000))

    def change_groups(self) -> None:
        """Changes one group."""
        self.bench.broker.groups.update(
            [SubscriptionGroupConfig(group_name="changing", retry_queue_nums=1 + self.next_number() % 1000)]
        )

    def change_offsets(self) -> None:
        """Changes one offset."""
        self.bench.broker.tables.offsets.commit(BUSY_GROUP, "t0", 0, 1_000_000 + self.next_number())

    def change_modes(self) -> None:
        """Changes how one group receives."""
        self.bench.broker.tables.request_modes.set_mode(
            SetMessageRequestModeRequestBody(
                topic="t0", consumer_group="g1", pop_share_queue_num=self.next_number()
            )
        )

    def fill_thresholds(self) -> None:
        """Gives as many groups as possible a threshold of cold reads."""
        flow = self.bench.broker.cold_control.flow
        for number in range(GROUPS_MAX):
            flow.set_threshold(f"cold{number}", 1000)

    def record_offset(self) -> int:
        """Where the log has a large message."""
        queue = self.bench.broker.store.lookup.existing_queue("big", 0)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        return unit[0]


def acl_of(entries: int, prefix: str) -> AclInfo:
    return AclInfo(
        policies=[
            PolicyInfo(
                policy_type="CUSTOM",
                entries=[
                    PolicyEntryInfo(resource=f"Topic:{prefix}{n}", actions=["Pub", "Sub"], decision="Allow")
                    for n in range(entries)
                ],
            )
        ]
    )


def consumer_of(group: str, subscriptions: int, first: int, version: int = 0) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        subscription_data_set=[
            SubscriptionData(topic=f"t{first + n}", sub_string="*", sub_version=version)
            for n in range(subscriptions)
        ],
    )

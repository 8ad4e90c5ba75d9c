"""The acting master of one group sends its special messages to a second broker, over sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from msgspec import structs

from epochmq_broker.config.clock import now_ms
from epochmq_broker.config.role import ActingRole, MasterRole, ReplicaRole
from epochmq_broker.membership.modes.acting import ActingMasterMode
from epochmq_broker.membership.modes.plain import PlainMode
from epochmq_broker.services import delay_service
from epochmq_broker.services.pop.checkpoints import REVIVE_GROUP, PopCheckPoint, decode_checkpoint
from epochmq_broker.services.transactions import half_messages
from epochmq_broker.writing.escape.rules import Destination
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_protocol import message as records
from epochmq_protocol.bodies import to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.message import MessageExt
from epochmq_protocol.route import BrokerData, QueueData, TopicRouteData
from epochmq_protocol.topics import PERM_READ, TopicConfig
from epochmq_store.statuses import PutStatus
from tests.support.net import free_port, loopback
from tests.unit.broker.kit import UNIQ_KEY, Bench, until
from tests.unit.broker.services.pop.support import ack_command, change_command, extra_info, pop, pop_command
from tests.unit.broker.services.transactions.support import GROUP, HALF, OP

REVIVE = "rmq_sys_REVIVE_LOG_TestCluster"
SETTINGS = {
    "messageDelayLevel": "1s 2s",
    "reviveInterval": "20",
    "timerPrecisionMs": "100",
    "transactionCheckInterval": "50",
    "namesrvAddr": "127.0.0.1:9",
    "loadBalancePollNameServerInterval": "20",
    "slaveReadEnable": "true",
}
ACTING = {
    "brokerRole": "SLAVE",
    "brokerId": "1",
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
}


@contextlib.asynccontextmanager
async def listening(directory: Path, settings: Mapping[str, str]) -> AsyncIterator[Bench]:
    """A broker with its ports, without registration."""
    host = loopback(68)
    addresses = {"bindAddress": host, "brokerIP1": host, "listenPort": str(free_port(host))}
    bench = Bench(directory, SETTINGS | addresses | dict(settings))
    await bench.broker.start_without_ports()
    await bench.broker.ports.start()
    try:
        yield bench
    finally:
        await bench.broker.stop()


def host_of(bench: Bench) -> bytes:
    """A broker's encoded address."""
    config = bench.broker.live.current
    return records.encode_host(config.broker_ip1, config.listen_port)


class TwoGroups:
    """broker-a, whose master is down, and broker-b. This object is the nameserver of both."""

    def __init__(self, acting: Bench, other: Bench) -> None:
        self.acting, self.other = acting, other
        self.reachable = True
        self.unknown: set[str] = set()
        for bench in (acting, other):
            bench.broker.routes._client = self

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """The route of a topic: broker-a serves it for reading only."""
        if not self.reachable:
            raise ConnectError("refused")
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        topic = (command.ext or {})["topic"]
        if topic in self.unknown:
            return response(command, ResponseCode.TOPIC_NOT_EXIST)
        route = TopicRouteData(
            queue_datas=[QueueData("broker-a", 4, 4, PERM_READ), QueueData("broker-b", 4, 4, 6)],
            broker_datas=[
                BrokerData("TestCluster", name, {0: bench.broker.live.current.client_addr})
                for name, bench in (("broker-a", self.acting), ("broker-b", self.other))
            ],
        )
        return response(command, ResponseCode.SUCCESS, body=to_json(route))

    def be_master(self) -> None:
        """Makes broker-a the master that fails later. Its special services are not running."""
        self._set_role("ASYNC_MASTER")
        self.acting.broker.live.standing.become(ReplicaRole(1))
        self.acting.broker.live.standing.become(MasterRole())

    def _set_role(self, role: str) -> None:
        live = self.acting.broker.live
        live.current = structs.replace(live.current, broker_role=role)

    def act(self) -> None:
        """Starts the special services of broker-a."""
        self._set_role("SLAVE")
        self.acting.broker.live.standing.become(ReplicaRole(1))
        self.acting.broker.live.standing.become(ActingRole(1, 0))
        self.acting.broker.master_services.start()

    def put(self, topic: str = "T", body: bytes = b"later", queue_id: int = 0, **properties: str) -> None:
        """Stores a message at broker-a, as it was copied from its master."""
        broker = self.acting.broker
        message = InnerMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties={"UNIQ_KEY": UNIQ_KEY, "WAIT": "true", **properties},
            born_timestamp=now_ms(),
            born_host=host_of(self.acting),
        )
        assert broker.writer.put(message).ok

    def arrived(self, topic: str = "T") -> list[MessageExt]:
        """The messages of a topic at broker-b."""
        return [
            self.other.record(topic, queue_id, offset)
            for queue_id in range(8)
            for offset in range(self.other.count(topic, queue_id))
        ]

    def escaped(self, kind: str) -> float:
        return self.acting.broker.escape.metric_values()[f"broker_escaped_total:{kind}"]

    def waiting(self, kind: str) -> float:
        return self.acting.broker.escape.metric_values()[f"broker_escape_waiting:{kind}"]


@pytest.fixture
async def groups(tmp_path: Path) -> AsyncIterator[TwoGroups]:
    async with (
        listening(tmp_path / "a", ACTING) as acting,
        listening(tmp_path / "b", {"brokerName": "broker-b"}) as other,
    ):
        for bench in (acting, other):
            bench.broker.topics.update([TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)])
        yield TwoGroups(acting, other)


async def test_delayed_messages_are_delivered_to_the_other_group(groups: TwoGroups) -> None:
    for number in range(50):
        groups.put(body=b"%d" % number, DELAY="1", TAGS="a", queue_id=number % 4)
    groups.act()
    await until(lambda: groups.acting.broker.delays.offsets.get(1) == 50)
    came = groups.arrived()
    assert sorted(int(message.body) for message in came) == list(range(50))
    assert {message.queue_id for message in came} == {0, 1, 2, 3}
    properties = records.parse_properties(came[0].properties)
    assert (properties["TAGS"], properties["REAL_TOPIC"], properties["WAIT"]) == ("a", "T", "true")
    assert "DELAY" not in properties
    delayed = groups.acting.record("SCHEDULE_TOPIC_XXXX", 0, int(came[0].body))
    assert came[0].born_timestamp == delayed.born_timestamp
    assert groups.acting.count("T") == 0
    assert (groups.escaped("delay"), groups.waiting("delay")) == (50, 0)


async def test_an_acting_master_begins_at_once(groups: TwoGroups) -> None:
    def first_round_s() -> float:
        timer = groups.acting.broker.delays._timer
        assert timer is not None
        return timer.when() - asyncio.get_running_loop().time()

    groups.act()
    assert first_round_s() <= delay_service.ROUND_S
    groups.acting.broker.master_services.stop()
    groups.be_master()
    groups.acting.broker.master_services.start()
    assert delay_service.ROUND_S < first_round_s() <= delay_service.FIRST_ROUND_S


async def test_timer_messages_are_delivered_to_the_other_group(groups: TwoGroups) -> None:
    groups.put(body=b"timer", TIMER_DELAY_MS="300")
    groups.act()
    timer = groups.acting.broker.timer
    assert timer is not None
    await until(groups.arrived)
    (came,) = groups.arrived()
    assert came.body == b"timer"
    due_ms = int(records.parse_properties(came.properties)["TIMER_OUT_MS"])
    assert came.store_timestamp >= due_ms
    assert groups.other.count("rmq_sys_wheel_timer") == 0  # the other group does not delay it again
    await until(lambda: timer.read_progress.safe > due_ms)
    assert groups.escaped("timer") == 1


async def test_7577_a_timer_message_that_cannot_leave_at_first_is_not_stored_here(groups: TwoGroups) -> None:
    """The second attempt of RocketMQ's slave wrote it into its own log, beside the master's bytes."""
    groups.unknown = {"T"}
    groups.put(body=b"timer", TIMER_DELAY_MS="100")
    end = groups.acting.broker.store.max_phy_offset
    groups.act()
    failures = "broker_escape_failures_total:timer"
    await until(lambda: groups.acting.broker.escape.metric_values()[failures] >= 2)
    groups.unknown = set()
    await until(groups.arrived)
    assert [message.body for message in groups.arrived()] == [b"timer"]
    assert groups.acting.broker.store.max_phy_offset == end


async def test_half_messages_without_an_end_go_to_the_other_group(groups: TwoGroups) -> None:
    for number in range(3):
        groups.put(HALF, b"half %d" % number, TRAN_MSG="true", PGROUP="g", REAL_TOPIC="T", REAL_QID="3")
    ended = half_messages.op_message(0, b"1,", host_of(groups.acting), now_ms())
    assert groups.acting.broker.writer.put(ended).ok
    halves, ops = groups.acting.count(HALF), groups.acting.count(OP)
    groups.act()
    await until(lambda: groups.acting.broker.offsets.query(GROUP, HALF, 0) == 3)
    came = groups.arrived(HALF)
    assert sorted(message.body for message in came) == [b"half 0", b"half 2"]
    properties = records.parse_properties(came[0].properties)
    assert (properties["REAL_TOPIC"], properties["PGROUP"]) == ("T", "g")
    assert (groups.acting.count(HALF), groups.acting.count(OP)) == (halves, ops)
    assert groups.escaped("transaction") == 2


async def test_popped_messages_of_an_acting_master_are_revived_by_the_other_group(groups: TwoGroups) -> None:
    for body in (b"acknowledged", b"forgotten"):
        groups.put(body=body, TAGS="a")
    groups.act()
    messages, header = await pop(groups.acting, invisible_time=4000, queue_id=0)
    assert [message.body for message in messages] == [b"acknowledged", b"forgotten"]
    peer = groups.acting.peer()
    answer = await peer.answer(peer.send(ack_command(extra_info(header, messages[0], 0), messages[0])))
    assert answer.code == 0
    assert groups.escaped("checkpoint") == 2
    await until(lambda: groups.acting.broker.offsets.query("g", "T", 0) == 2)
    await until(lambda: groups.arrived("%RETRY%g_T"))
    (came,) = groups.arrived("%RETRY%g_T")
    assert (came.body, came.reconsume_times) == (b"forgotten", 1)
    assert records.parse_properties(came.properties)["1ST_POP_TIME"] == str(header.pop_time)
    revive_queues = {queue_id for queue_id in range(8) if groups.other.count(REVIVE, queue_id)}
    assert len(revive_queues) == 1  # the acknowledgement has met its checkpoint
    assert groups.acting.count(REVIVE) == 0


async def test_a_changed_invisible_time_leaves_as_a_checkpoint_and_an_acknowledgement(
    groups: TwoGroups,
) -> None:
    groups.put(body=b"sooner", TAGS="a")
    groups.act()
    (message,), header = await pop(groups.acting, invisible_time=100_000, queue_id=0)
    peer = groups.acting.peer()
    answer = await peer.answer(peer.send(change_command(extra_info(header, message, 0), message, 1000)))
    assert answer.code == 0
    assert groups.escaped("checkpoint") == 3
    await until(lambda: groups.arrived("%RETRY%g_T"))
    (came,) = groups.arrived("%RETRY%g_T")
    assert (came.body, came.reconsume_times) == (b"sooner", 1)
    assert came.store_timestamp < header.pop_time + 100_000
    assert groups.acting.count(REVIVE) == 0


async def test_popped_messages_of_the_failed_master_are_revived_by_the_other_group(groups: TwoGroups) -> None:
    """Their checkpoints are in the timer of the acting master."""
    groups.be_master()
    for body in (b"acknowledged", b"forgotten"):
        groups.put(body=body, TAGS="a")
    messages, header = await pop(groups.acting, invisible_time=4000, queue_id=0)
    assert len(messages) == 2
    groups.act()
    peer = groups.acting.peer()
    answer = await peer.answer(peer.send(ack_command(extra_info(header, messages[0], 0), messages[0])))
    assert answer.code == 0
    await until(lambda: groups.arrived("%RETRY%g_T"))
    assert [message.body for message in groups.arrived("%RETRY%g_T")] == [b"forgotten"]


@pytest.mark.parametrize("known", [True, False])
async def test_a_settled_checkpoint_of_the_failed_master_is_revived_in_the_other_group(
    groups: TwoGroups, *, known: bool
) -> None:
    """Its record is in the revive topic of the acting master already. The other group may lack the retry
    topic."""
    retry = "%RETRY%g_T"
    if known:
        groups.other.broker.topics.update([TopicConfig(retry, 4, 4)])
    else:
        groups.unknown = {retry}
    groups.be_master()
    groups.put(body=b"forgotten")
    groups.acting.broker.master_services.start()
    messages, _ = await pop(groups.acting, invisible_time=1000, queue_id=0)
    assert len(messages) == 1
    await until(lambda: sum(groups.acting.count(REVIVE, queue_id) for queue_id in range(8)))
    groups.acting.broker.master_services.stop()
    groups.act()
    await until(lambda: groups.arrived(retry))
    assert [message.body for message in groups.arrived(retry)] == [b"forgotten"]
    await until(lambda: groups.escaped("retry") == 1)
    topic = groups.other.broker.topics.get(retry)
    assert topic is not None
    assert topic.write_queue_nums == (4 if known else 1)


async def test_a_checkpoint_whose_group_cannot_be_read_is_tried_again_later(groups: TwoGroups) -> None:
    broker = groups.other.broker
    checkpoint = PopCheckPoint(
        count=1,
        pop_time=now_ms() - 52_000,
        invisible_time=50_000,
        topic="T",
        group="g",
        diffs=[0],
        broker_name="broker-c",
    )
    assert broker.pop.revive_log.put_checkpoint(checkpoint, 3).ok
    assert groups.other.count(REVIVE, 3) == 1
    await until(lambda: groups.other.count("rmq_sys_wheel_timer") == 1)
    again = decode_checkpoint(groups.other.record("rmq_sys_wheel_timer", 0, 0).body)
    assert again is not None
    assert (again.broker_name, again.times_re_put, again.invisible_time) == ("broker-c", 1, 60_000)
    await until(lambda: broker.offsets.query(REVIVE_GROUP, REVIVE, 3) == 0)
    assert groups.arrived("%RETRY%g_T") == []


async def test_a_message_that_cannot_leave_stays_and_leaves_later(groups: TwoGroups) -> None:
    groups.unknown = {"T"}
    groups.put(DELAY="1")
    groups.act()
    failures = "broker_escape_failures_total:delay"
    await until(lambda: groups.acting.broker.escape.metric_values()[failures] >= 2)
    assert groups.waiting("delay") == 1
    delays = groups.acting.broker.delays
    delays.persist()
    assert delays.offsets.get(1, 0) == 0
    groups.unknown = set()
    await until(lambda: delays.offsets.get(1) == 1)
    assert len(groups.arrived()) == 1
    assert groups.waiting("delay") == 0


class FewReplicas:
    """What a master with too few replicas knows of them: it rejects messages, or their replicas are slow."""

    may_reject = sends_wait = True

    def __init__(self) -> None:
        self.rejects = True
        self.asked = 0
        self.waiting: list[Callable[[PutStatus], None]] = []

    def rejection(self) -> PutStatus | None:
        self.asked += 1
        return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH if self.rejects else None

    def replicated_end(self, *, acknowledged: bool = False) -> int:
        return -1

    def when_replicated(self, end: int, done: Callable[[PutStatus], None]) -> None:
        self.waiting.append(done)


async def test_a_message_leaves_only_when_the_other_group_could_lose_its_master(groups: TwoGroups) -> None:
    replicas = FewReplicas()
    groups.other.broker.writer.set_replica_acks(replicas)
    groups.put(DELAY="1")
    groups.act()
    await until(lambda: replicas.asked >= 2)
    assert (groups.arrived(), groups.waiting("delay")) == ([], 1)
    replicas.rejects = False
    await until(lambda: len(replicas.waiting) == 1)
    assert len(groups.arrived()) == 1
    assert (groups.waiting("delay"), groups.acting.broker.delays.offsets.get(1, 0)) == (1, 0)
    replicas.waiting[0](PutStatus.PUT_OK)
    await until(lambda: groups.acting.broker.delays.offsets.get(1) == 1)
    assert groups.waiting("delay") == 0


async def test_a_message_that_has_not_left_is_delivered_again_after_the_role_ends(groups: TwoGroups) -> None:
    groups.reachable = False
    groups.put(DELAY="1")
    groups.act()
    await until(lambda: groups.waiting("delay") == 1)
    broker = groups.acting.broker
    broker.master_services.stop()
    assert (groups.waiting("delay"), broker.delays.offsets.get(1, 0)) == (0, 0)
    groups.reachable = True
    groups.act()
    await until(lambda: broker.delays.offsets.get(1) == 1)
    assert len(groups.arrived()) == 1


@pytest.mark.parametrize("settings", [ACTING, {**ACTING, "brokerRole": "SYNC_MASTER", "brokerId": "0"}, {}])
async def test_the_role_in_the_group_decides_where_messages_go(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    broker = Bench(tmp_path, SETTINGS | settings).broker
    destination = broker.escape.destination
    if not settings:
        assert isinstance(broker.mode, PlainMode)
        assert destination() is Destination.LOCAL
        return
    assert isinstance(broker.mode, ActingMasterMode)
    group = broker.mode.group
    if broker.live.current.broker_id == 0:
        assert destination() is Destination.LOCAL
        return
    assert destination() is Destination.NONE  # the master is alive, or may be
    group._group.service_started(1, None, 0)
    group._take_role()
    assert group.is_acting_master
    assert destination() is Destination.REMOTE


async def test_a_pop_is_rejected_where_checkpoints_cannot_leave(tmp_path: Path) -> None:
    async with listening(tmp_path, ACTING | {"enableRemoteEscape": "false"}) as bench:
        bench.broker.topics.update([TopicConfig("T", 4, 4)])
        bench.broker.live.standing.become(ActingRole(1, 0))
        peer = bench.peer()
        assert peer.call(pop_command()).code == ResponseCode.SYSTEM_BUSY

"""A nameserver with many brokers and topics, and the largest request of each code that it serves."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from epochmq_controller.nameserver import config
from epochmq_controller.nameserver.routes import BrokerRegistration
from epochmq_controller.nameserver.server import Nameserver, now_ms
from epochmq_protocol.bodies import to_json
from epochmq_protocol.codes import RequestCode as Code
from epochmq_protocol.frame import Command
from epochmq_protocol.properties import REQUEST_LINES_MAX
from epochmq_protocol.route import QueueData, TopicRouteData
from epochmq_protocol.topics import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from tests.support.header_classes import request_header
from tests.support.loop_budgets.measuring import LargestRequest
from tests.unit.broker.kit import Peer, command

TOPICS: Final = 5000
GROUPS: Final = 20
KV_ENTRIES: Final = 5000
LAST: Final = f"broker-{GROUPS - 1}"
VALUES: Final = {
    "namespace": "N",
    "key": "k1",
    "value": "v",
    "brokerName": LAST,
    "brokerAddr": f"{LAST}:10911",
    "clusterName": "c",
    "haServerAddr": f"{LAST}:10912",
    "brokerId": "0",
    "topic": "t1",
    "cluster": "c",
    "compressed": "false",
}


class LargeNameserver:
    """A nameserver with many routes."""

    def __init__(self, nameserver: Nameserver) -> None:
        self.nameserver = nameserver
        self._numbers = itertools.count(2)

    def peer(self) -> Peer:
        """A new client."""
        return Peer(self.nameserver.server.dispatcher)

    def fill(self) -> None:
        """Registers brokers with many topics, and fills the KV configuration."""
        for number in range(GROUPS):
            self.register(f"broker-{number}", self.topics(0))
        table = {f"k{number}": "v" * 100 for number in range(KV_ENTRIES)}
        self.nameserver._kv._table["N"] = table

    def register(self, name: str, topics: TopicConfigSerializeWrapper) -> None:
        """Registers one broker."""
        self.nameserver.tables.register(
            BrokerRegistration(
                cluster="c",
                broker_name=name,
                broker_id=0,
                address=f"{name}:10911",
                ha_address=f"{name}:10912",
                topics=topics,
                filter_servers=[],
                zone_name=None,
                heartbeat_timeout_ms=None,
                enable_acting_master=False,
                channel=name,
            ),
            now_ms(),
        )

    def topics(self, flag: int) -> TopicConfigSerializeWrapper:
        """A new version of a broker's topics."""
        return TopicConfigSerializeWrapper(
            topic_config_table={f"t{n}": TopicConfig(f"t{n}", topic_sys_flag=flag) for n in range(TOPICS)},
            data_version=DataVersion(counter=next(self._numbers), timestamp=1),
        )

    def registration(self, *, compress: bool) -> bytes:
        """The body of a registration with changed topics."""
        wrapper = self.topics(next(self._numbers) % 4)
        return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode(compress=compress)

    def register_all(self) -> None:
        """Registers the last broker with all topics."""
        self.register(LAST, self.topics(0))


@contextlib.asynccontextmanager
async def large_nameserver(folder: Path) -> AsyncIterator[LargeNameserver]:
    """Runs a nameserver without its port."""
    settings = {"kvConfigPath": str(folder / "kv.json"), "configStorePath": str(folder / "namesrv.conf")}
    large = LargeNameserver(Nameserver(config.load("", settings)))
    large.fill()
    try:
        yield large
    finally:
        await large.nameserver.stop()


def largest_requests(large: LargeNameserver) -> list[LargestRequest]:
    """The largest request of each code."""
    topics = f"{TOPICS} topics of {GROUPS} brokers"
    route = TopicRouteData(
        queue_datas=[
            QueueData(broker_name=f"broker-{n}", read_queue_nums=8, write_queue_nums=8, perm=6)
            for n in range(GROUPS)
        ]
    )
    settings = "".join(f"unknown{number}=value\n" for number in range(REQUEST_LINES_MAX))
    return [
        _one(Code.PUT_KV_CONFIG, f"a table of {KV_ENTRIES} keys"),
        _one(Code.GET_KV_CONFIG, f"a table of {KV_ENTRIES} keys"),
        _one(Code.GET_KVLIST_BY_NAMESPACE, f"{KV_ENTRIES} keys"),
        _one(Code.DELETE_KV_CONFIG, f"a table of {KV_ENTRIES} keys", ext={"key": "nothing"}),
        _one(Code.REGISTER_BROKER, f"{TOPICS} changed topics", lambda: large.registration(compress=False)),
        _one(
            Code.REGISTER_BROKER,
            f"{TOPICS} changed topics, compressed",
            lambda: large.registration(compress=True),
            ext={"compressed": "true"},
        ),
        _one(Code.UNREGISTER_BROKER, f"a broker of {TOPICS} topics", before=large.register_all),
        _one(Code.BROKER_HEARTBEAT, "header only", before=large.register_all),
        _one(Code.QUERY_DATA_VERSION, "header only"),
        _one(Code.GET_BROKER_MEMBER_GROUP, "header only"),
        _one(Code.GET_ROUTEINFO_BY_TOPIC, f"a topic of {GROUPS} brokers"),
        _one(Code.GET_BROKER_CLUSTER_INFO, f"{GROUPS} brokers"),
        _one(Code.WIPE_WRITE_PERM_OF_BROKER, f"a broker of {TOPICS} topics"),
        _one(Code.ADD_WRITE_PERM_OF_BROKER, f"a broker of {TOPICS} topics"),
        _one(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, topics),
        _one(Code.GET_TOPICS_BY_CLUSTER, topics),
        _one(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, topics),
        _one(Code.GET_UNIT_TOPIC_LIST, topics),
        _one(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, topics),
        _one(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, topics),
        _one(Code.DELETE_TOPIC_IN_NAMESRV, topics, ext={"topic": "t2"}),
        _one(
            Code.REGISTER_TOPIC_IN_NAMESRV, f"{GROUPS} brokers", to_json(route), ext={"topic": "registered"}
        ),
        _one(Code.UPDATE_NAMESRV_CONFIG, f"{REQUEST_LINES_MAX} unknown settings", settings.encode()),
        _one(Code.GET_NAMESRV_CONFIG, "all settings"),
    ]


def _one(
    code: int,
    what: str,
    body: bytes | Callable[[], bytes] = b"",
    ext: Mapping[str, str] | None = None,
    **how: Any,
) -> LargestRequest:
    def make() -> Command:
        header = request_header(code)
        names = () if header is None else header.__struct_encode_fields__
        fields = {name: VALUES[name] for name in names if name in VALUES} | dict(ext or {})
        return command(code, None, body() if callable(body) else body, **fields)

    return LargestRequest(code, what, make, **how)

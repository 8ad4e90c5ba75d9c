"""The nameserver responds to every request on its port as RocketMQ's does."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from epochmq_controller.nameserver import config
from epochmq_controller.nameserver.kv_config import KVConfig, KVLimits
from epochmq_protocol.bodies_base import to_json
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import QueueData, TopicRouteData
from epochmq_protocol.topics import DataVersion, RegisterBrokerBody
from epochmq_protocol.transport import RemotingClient, RemotingConnection, RemotingServer
from tests.support.net import loopback
from tests.unit.controller.nameserver.asking_nameserver import MASTER, SLAVE, Asker, Code, asking, plain
from tests.unit.controller.nameserver.brokers import wrapper


async def test_a_registered_broker_is_found_by_topic_cluster_and_name(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        answer = await ns.register()
        assert (answer.code, answer.ext, answer.body) == (0, {}, b"")
        assert plain(await ns.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == {"topicList": ["T1", "T2"]}
        assert plain(await ns.ask(Code.GET_TOPICS_BY_CLUSTER, cluster="c")) == {"topicList": ["T1", "T2"]}
        assert plain(await ns.ask(Code.GET_TOPICS_BY_CLUSTER, cluster="x")) == {"topicList": []}
        assert plain(await ns.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)) == {
            "brokerAddr": MASTER,
            "topicList": ["c", "broker-a"],
        }
        for code in (311, 312, 313):
            assert plain(await ns.ask(code)) == {"topicList": []}


async def test_the_route_comes_in_the_json_of_the_askers_version(tmp_path: Path) -> None:
    broker = '"brokerName":"broker-a","cluster":"c","enableActingMaster":false}]'
    queues = '[{"brokerName":"broker-a","perm":6,"readQueueNums":16,"topicSysFlag":0,"writeQueueNums":16}]'
    rest = f',{broker},"filterServerTable":{{}},"queueDatas":{queues}}}'
    quoted = f'{{"brokerDatas":[{{"brokerAddrs":{{"0":"{MASTER}"}}{rest}'
    unquoted = f'{{"brokerDatas":[{{"brokerAddrs":{{0:"{MASTER}"}}{rest}'
    async with asking(tmp_path) as ns:
        await ns.register()
        code = Code.GET_ROUTEINFO_BY_TOPIC
        assert (await ns.ask(code, topic="T1")).body.decode() == quoted
        assert (await ns.ask(code, topic="T1", version=400)).body.decode() == unquoted
        assert (
            await ns.ask(code, topic="T1", version=400, acceptStandardJsonOnly="true")
        ).body.decode() == quoted
        answer = await ns.ask(code, topic="nobody's")
        assert answer.code == 17
        assert answer.remark is not None
        assert answer.remark.startswith("No topic route info in name server for the topic: nobody's\n")


async def test_cluster_info_and_members_write_ids_unquoted(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        await ns.register()
        await ns.register(1, SLAVE)
        info = await ns.ask(Code.GET_BROKER_CLUSTER_INFO)
        assert info.body.decode() == (
            f'{{"brokerAddrTable":{{"broker-a":{{"brokerAddrs":{{0:"{MASTER}",1:"{SLAVE}"}},'
            '"brokerName":"broker-a","cluster":"c","enableActingMaster":false}},'
            '"clusterAddrTable":{"c":["broker-a"]}}'
        )
        members = await ns.ask(Code.GET_BROKER_MEMBER_GROUP, clusterName="c", brokerName="broker-a")
        assert members.body.decode() == (
            f'{{"brokerMemberGroup":{{"brokerAddrs":{{0:"{MASTER}",1:"{SLAVE}"}},'
            '"brokerName":"broker-a","cluster":"c"}}'
        )


async def test_a_slave_learns_the_addresses_of_its_master(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        await ns.register()
        answer = await ns.register(1, SLAVE)
        assert answer.ext == {"haServerAddr": f"ha-{MASTER}", "masterAddr": MASTER}


async def test_a_registration_is_checked_against_its_checksum(tmp_path: Path) -> None:
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper()).encode()
    crc = zlib.crc32(body) & 0x7FFFFFFF
    async with asking(tmp_path) as ns:
        answer = await ns.register(body=body, bodyCrc32=str(crc ^ 1))
        assert (answer.code, answer.remark) == (1, "crc32 not match")
        assert (await ns.register(body=body, bodyCrc32=str(crc))).code == 0


async def test_compressed_old_and_empty_registrations_are_read(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        compressed = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper(["A", "B"])).encode(
            compress=True
        )
        assert (await ns.register(body=compressed, compressed="true", brokerName="one")).code == 0
        old = to_json(wrapper(["C", "D"]))
        assert (await ns.register(body=old, version=36, brokerName="two", address="10.0.0.3:1")).code == 0
        assert (await ns.register(body=b"", brokerName="three", address="10.0.0.4:1")).code == 0
        topics = plain(await ns.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))["topicList"]
        assert sorted(topics) == ["A", "B", "C", "D"]
        assert ns.nameserver.tables.live.data_version("c", "10.0.0.4:1") == DataVersion()


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"topicConfigSerializeWrapper":5}', b"\xff\xfe"])
async def test_a_registration_that_cannot_be_read_is_answered_and_changes_nothing(
    tmp_path: Path, body: bytes
) -> None:
    async with asking(tmp_path) as ns:
        assert (await ns.register(body=body)).code == 1
        assert (await ns.register(body=body, compressed="true")).code == 1
        assert ns.nameserver.tables.brokers == {}


async def test_a_first_registration_of_one_topic_fails(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        answer = await ns.register(topics=wrapper(["T1"]))
        assert (answer.code, answer.remark) == (1, "register broker failed")


async def test_the_order_configuration_goes_back_to_registering_brokers(tmp_path: Path) -> None:
    async with asking(tmp_path, "orderMessageEnable=true") as ns:
        await ns.ask(Code.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T1", value="broker-a:4")
        assert plain(await ns.register()) == {"table": {"T1": "broker-a:4"}}
        route = plain(await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1"))
        assert route["orderTopicConf"] == "broker-a:4"
        assert "orderTopicConf" not in plain(await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T2"))
    async with asking(tmp_path, "returnOrderTopicConfigToBroker=false") as ns:
        assert (await ns.register()).body == b""


async def test_kv_config_by_request(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        missing = await ns.ask(Code.GET_KV_CONFIG, namespace="n", key="k")
        assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
        missing = await ns.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace="n")
        assert (missing.code, missing.remark) == (22, "No config item, Namespace: n")
        await ns.ask(Code.PUT_KV_CONFIG, namespace="n", key="k", value="v")
        assert (await ns.ask(Code.GET_KV_CONFIG, namespace="n", key="k")).ext == {"value": "v"}
        assert plain(await ns.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace="n")) == {"table": {"k": "v"}}
        await ns.ask(Code.DELETE_KV_CONFIG, namespace="n", key="k")
        assert (await ns.ask(Code.GET_KV_CONFIG, namespace="n", key="k")).code == 22
        assert (await ns.ask(Code.PUT_KV_CONFIG, namespace="n")).code == 1


async def test_the_kv_config_does_not_grow_without_bound(tmp_path: Path) -> None:
    """Any client may write it, all of it is in memory, and each change writes all of it."""
    async with asking(tmp_path, "kvConfigMaxEntries=3\nkvConfigMaxChars=20") as ns:

        async def put(namespace: str, key: str, value: str) -> tuple[int, str]:
            answer = await ns.ask(Code.PUT_KV_CONFIG, namespace=namespace, key=key, value=value)
            return answer.code, answer.remark or ""

        assert (await put("n", "k1", "v"))[0] == 0  # 2 entries, 4 characters
        assert (await put("n", "k2", "v"))[0] == 0  # 3 entries, 7 characters
        for namespace, key in (("n", "k3"), ("m", "k")):
            code, remark = await put(namespace, key, "v")
            assert code == 1
            assert "kvConfigMaxEntries=3" in remark
        assert (await put("n", "k1", "v" * 14))[0] == 0  # 20 characters
        code, remark = await put("n", "k1", "v" * 15)
        assert (code, "21 characters, more than kvConfigMaxChars=20" in remark) == (1, True)
        assert (await put("n", "k2", "w"))[0] == 0
        await ns.ask(Code.DELETE_KV_CONFIG, namespace="n", key="k1")
        assert (await put("n", "k3", "v"))[0] == 0
        shown = plain(await ns.ask(Code.GET_KVLIST_BY_NAMESPACE, namespace="n"))
        assert shown == {"table": {"k2": "w", "k3": "v"}}
        await ns.ask(Code.UPDATE_NAMESRV_CONFIG, b"kvConfigMaxEntries=5")
        assert (await put("m", "k", "v"))[0] == 0


async def test_a_kv_config_that_exceeds_its_bounds_may_shrink(tmp_path: Path) -> None:
    kv = KVConfig(tmp_path / "kvConfig.json")
    for number in range(5):
        await kv.put("n", f"k{number}", "long value")
    small = KVConfig(tmp_path / "kvConfig.json", lambda: KVLimits(2, 10))
    small.load()
    await small.put("n", "k0", "short")
    assert small.get("n", "k0") == "short"
    with pytest.raises(RequestError, match="kvConfigMaxChars=10"):
        await small.put("n", "k0", "longer")
    with pytest.raises(RequestError, match="kvConfigMaxEntries=2"):
        await small.put("n", "new", "")


async def test_a_data_version_query_compares_answers_and_keeps_the_broker_alive(tmp_path: Path) -> None:
    who = {"clusterName": "c", "brokerName": "broker-a", "brokerAddr": MASTER, "brokerId": "0"}
    async with asking(tmp_path) as ns:
        answer = await ns.ask(Code.QUERY_DATA_VERSION, b'{"counter":1}', **who)
        assert (answer.ext, answer.body) == ({"changed": "true"}, b"")
        await ns.register()
        ns.nameserver.tables.live.table["c", MASTER].last_update_ms = 0
        version = to_json(wrapper().data_version)
        answer = await ns.ask(Code.QUERY_DATA_VERSION, version, **who)
        assert (answer.ext, answer.body) == (
            {"changed": "false"},
            b'{"counter":1,"stateVersion":0,"timestamp":1}',
        )
        assert ns.nameserver.tables.live.table["c", MASTER].last_update_ms > 0
        assert (await ns.ask(Code.QUERY_DATA_VERSION, b"", **who)).ext == {"changed": "true"}


async def test_a_broker_that_unregisters_is_gone(tmp_path: Path) -> None:
    who = {"clusterName": "c", "brokerName": "broker-a", "brokerAddr": MASTER, "brokerId": "0"}
    async with asking(tmp_path) as ns:
        await ns.register()
        assert (await ns.ask(Code.UNREGISTER_BROKER, **who)).code == 0
        await ns.eventually(lambda: not ns.nameserver.tables.brokers, "the batch is done")
        assert (await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")).code == 17


async def test_a_broker_whose_connection_breaks_is_gone_and_a_silent_one_after_its_timeout(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path, "scanNotActiveBrokerInterval=20") as ns:
        async with RemotingClient() as broker:
            await Asker(ns.nameserver, broker).register()
            assert ns.nameserver.tables.brokers
        await ns.eventually(lambda: not ns.nameserver.tables.brokers, "the broken connection is noticed")
        await ns.register(heartbeatTimeoutMillis="100")
        (connection,) = ns.client.connections
        await ns.eventually(lambda: not ns.nameserver.tables.brokers, "silence is noticed")
        await ns.eventually(lambda: connection.closed, "the silent broker's connection is closed")


async def test_heartbeats_keep_a_broker(tmp_path: Path) -> None:
    who = {"clusterName": "c", "brokerName": "broker-a", "brokerAddr": MASTER}
    async with asking(tmp_path, "scanNotActiveBrokerInterval=5") as ns:
        await ns.register(heartbeatTimeoutMillis="60000")
        live = ns.nameserver.tables.live.table["c", MASTER]
        registered = live.last_update_ms
        live.last_update_ms -= 30_000
        assert (await ns.ask(Code.BROKER_HEARTBEAT, **who)).code == 0
        assert live.last_update_ms >= registered
        live.last_update_ms -= 60_000
        await ns.eventually(lambda: not ns.nameserver.tables.brokers, "silence is noticed")


async def test_brokers_are_told_of_a_new_smallest_id(tmp_path: Path) -> None:
    notifications: list[dict[str, str] | None] = []

    def notified(connection: RemotingConnection, command: Command) -> Command:
        notifications.append(command.ext)
        return response(command, 0)

    slave = RemotingServer({Code.NOTIFY_MIN_BROKER_ID_CHANGE: notified})
    await slave.start(loopback(51), 0)
    at = f"{slave.host}:{slave.port}"
    async with asking(tmp_path, "notifyMinBrokerIdChanged=true") as ns:
        await ns.register(1, at, enableActingMaster="true")
        await ns.register(0, MASTER, enableActingMaster="true")
        await ns.eventually(lambda: len(notifications) == 1, "the slave hears of the master")
        who = {"clusterName": "c", "brokerName": "broker-a", "brokerAddr": MASTER, "brokerId": "0"}
        await ns.ask(Code.UNREGISTER_BROKER, **who)
        await ns.eventually(lambda: len(notifications) == 2, "the slave hears of its end")
    assert notifications == [
        {"minBrokerId": "0", "minBrokerAddr": MASTER, "haBrokerAddr": f"ha-{MASTER}"},
        {"minBrokerId": "1", "minBrokerAddr": at, "offlineBrokerAddr": MASTER},
    ]
    await slave.stop(1)


async def test_a_stop_is_not_taken_for_the_death_of_the_brokers(tmp_path: Path) -> None:
    async with asking(tmp_path, "notifyMinBrokerIdChanged=true") as ns:
        await ns.register(enableActingMaster="true")
        await ns.nameserver.stop()
        assert ns.nameserver.tables.brokers
        assert not ns.nameserver.tables.has_pending


async def test_clients_in_zone_mode_see_the_brokers_of_their_zone(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        await ns.register(brokerName="near", address="10.1.0.1:1", __ZONE_NAME="Z1")
        await ns.register(brokerName="far", address="10.2.0.1:1", __ZONE_NAME="z2")
        await ns.register(1, brokerName="headless", address="10.3.0.1:1", __ZONE_NAME="z3")
        code = Code.GET_ROUTEINFO_BY_TOPIC
        answer = await ns.ask(code, topic="T1", __ZONE_MODE="true", __ZONE_NAME="z1")
        route = plain(answer)
        assert {broker["brokerName"] for broker in route["brokerDatas"]} == {"near", "headless"}
        assert {queue["brokerName"] for queue in route["queueDatas"]} == {"near", "headless"}
        assert b'{0:"10.1.0.1:1"}' in answer.body
        for ext in (
            {"__ZONE_NAME": "z1"},
            {"__ZONE_MODE": "true"},
            {"__ZONE_MODE": "true", "__ZONE_NAME": " "},
        ):
            assert len(plain(await ns.ask(code, topic="T1", **ext))["brokerDatas"]) == 3
        assert len(ns.nameserver.tables.topics["T1"]) == 3


async def test_write_permission_is_wiped_and_given_back(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        await ns.register()
        answer = await ns.ask(Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert answer.ext == {"wipeTopicCount": "2"}
        assert plain(await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1"))["queueDatas"][0]["perm"] == 4
        answer = await ns.ask(Code.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert answer.ext == {"addTopicCount": "2"}
        assert plain(await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1"))["queueDatas"][0]["perm"] == 6


async def test_topics_are_registered_and_deleted_by_hand(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        await ns.register()
        queues = [QueueData(broker_name="broker-a", read_queue_nums=2, write_queue_nums=2, perm=6)]
        body = to_json(TopicRouteData(queue_datas=queues))
        assert (await ns.ask(Code.REGISTER_TOPIC_IN_NAMESRV, body, topic="by hand")).code == 0
        assert (await ns.ask(Code.REGISTER_TOPIC_IN_NAMESRV, topic="nothing")).code == 0
        assert plain(await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="by hand"))["queueDatas"][0]["perm"] == 6
        await ns.ask(Code.DELETE_TOPIC_IN_NAMESRV, topic="by hand")
        await ns.ask(Code.DELETE_TOPIC_IN_NAMESRV, topic="T1", clusterName="c")
        assert plain(await ns.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == {"topicList": ["T2"]}


async def test_topic_lists_can_be_switched_off(tmp_path: Path) -> None:
    async with asking(tmp_path, "enableAllTopicList=false\nenableTopicList=false") as ns:
        for code in (206, 224, 311, 312, 313):
            answer = await ns.ask(code, cluster="c")
            assert (answer.code, answer.remark) == (1, "disable")
        assert (await ns.ask(304)).code == 0


async def test_settings_are_shown_changed_kept_and_protected(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# by hand\nmine = 1\ntls.server.mode=permissive\n")
    async with asking(tmp_path, "mine=1\nconfigBlackList=configBlackList;productEnvName") as ns:
        shown = (await ns.ask(Code.GET_NAMESRV_CONFIG)).body.decode()
        assert "\nmine=1\n" in shown
        assert "\nsupportActingMaster=false\n" in shown
        changed = await ns.ask(Code.UPDATE_NAMESRV_CONFIG, b"supportActingMaster=true\nmine=2\nnew=3\n")
        assert changed.code == 0
        assert ns.nameserver.tables.config.support_acting_master
        written = file.read_text()
        assert written == "# by hand\nmine=2\ntls.server.mode=permissive\nsupportActingMaster=true\n"
        assert "\nmine=2\n" in (await ns.ask(Code.GET_NAMESRV_CONFIG)).body.decode()
        for key in (
            b"kvConfigPath",
            b"configStorePath",
            b"rocketmqHome",
            b"configBlackList",
            b"productEnvName",
        ):
            rejected = await ns.ask(Code.UPDATE_NAMESRV_CONFIG, key + b"=x\nsupportActingMaster=false")
            assert (rejected.code, rejected.remark) == (16, "Can not update config in black list.")
        bad = await ns.ask(Code.UPDATE_NAMESRV_CONFIG, b"supportActingMaster=maybe")
        assert (bad.code, bad.remark) == (1, "supportActingMaster=maybe: expected true or false")
        assert (await ns.ask(Code.UPDATE_NAMESRV_CONFIG)).code == 0
        assert ns.nameserver.tables.config.support_acting_master
        assert config.load(written).config.support_acting_master


async def test_routes_are_refused_while_brokers_may_still_be_registering(tmp_path: Path) -> None:
    async with asking(tmp_path, "needWaitForService=true\nwaitSecondsForService=60") as ns:
        await ns.register()
        answer = await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")
        assert (answer.code, answer.remark) == (1, "name server not ready")
    async with asking(tmp_path, "needWaitForService=true\nwaitSecondsForService=0") as ns:
        await ns.register()
        assert (await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")).code == 0


async def test_every_request_with_missing_fields_is_answered_with_an_error_that_names_one(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as ns:
        for code in (100, 101, 102, 103, 104, 105, 205, 216, 217, 219, 224, 322, 327, 901, 904):
            answer = await ns.ask(code)
            assert answer.code == 1, code
            assert answer.remark is not None
            assert "missing" in answer.remark
        unknown = await ns.ask(999)
        assert (unknown.code, unknown.remark) == (3, " request type 999 not supported")


async def test_route_json_is_plain_json_for_todays_clients(tmp_path: Path) -> None:
    async with asking(tmp_path) as ns:
        await ns.register(topics=wrapper(["Ünïcode", "T2"]))
        body = (await ns.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic="Ünïcode")).body
        assert json.loads(body)["queueDatas"][0]["brokerName"] == "broker-a"
        body.decode("ascii")

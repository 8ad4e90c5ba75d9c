"""RocketMQ's `mqadmin` shows of an EpochMQ cluster what it shows of RocketMQ's own: the same scenario runs
against both at the same time, and every command's output is compared line by line. Only what must differ is
removed (`MqAdmin.comparable`).

The `mqadmin` of both releases that `java_env` knows runs against the cluster of the older release, so the
newer one's requests must be answered as by an older broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interop.conftest import CLIENT_KINDS, CLUSTERS, EACH_RELEASE
from tests.interop.java_cluster import JavaCluster
from tests.interop.java_env import NEWEST, Release, compile_java, using
from tests.interop.mqadmin import CommandOutput, MqAdmin, Step
from tests.interop.secured_cluster import JavaUsersCluster
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.java, pytest.mark.timeout(1200)]

OCTET = 54
TOPICS = [
    {"topicName": "list-a", "readQueueNums": 2, "writeQueueNums": 3, "perm": 6},
    {"topicName": "list-b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 4, "order": True},
]
GROUPS = [{"groupName": "list-g1", "retryMaxTimes": 3}, {"groupName": "list-g2", "consumeEnable": False}]

RUNTIME_HIDDEN = (
    # values that depend on the moment, on RocketMQ's threads, or on a timer wheel that has just started
    r"^(bootTimestamp|runtime|\w*Tps|getMessageEntireTimeMax|putMessageEntireTimeMax|putLatency\d+"
    r"|earliestMessageTimeStamp|remainHowManyDataToFlush|timerReadBehind|putMessageDistributeTime"
    r"|dispatchMaxBuffer|pageCacheLockTimeMills|\w+HeadWaitTimeMills) *: .*",
    r"\d+\.\d [GM]iB",
    r"DiskRatio\S* *: \S+",
)
CAUGHT_UP = r"^orders (?s:.*)Diff Total: 0\n"
"""A group without a lag. RocketMQ prints a total of 0, without queues, for a group that it does not know to
subscribe to the topic yet."""
SUM24 = r"^orders +g1 .* 24 +24 *$"
RETRY = r"^%RETRY%"  # a group's retry topic gets an offset only some 20 s after the client's start
SPENT = (r"spentTimeMills=\d+",)
SUMS_HIDDEN = (r" \d+ +\d+ *$", r" \d+ +NO_CONSUMER")

# Batches run one after another, the steps of a batch in parallel.
SCENARIO: list[list[Step]] = [
    [
        Step("clusterList", rates=True),
        Step("clusterList -m"),
        Step("topicList", any_order=True),
        Step("topicList -c", any_order=True),
        Step("brokerStatus -b {broker}", hidden=RUNTIME_HIDDEN),
        Step(
            "getNamesrvConfig",
            only=r"^(waitSecondsForService|orderMessageEnable|scanNotActiveBrokerInterval) ",
        ),
        Step("haStatus -b {broker}"),
        Step("getBrokerEpoch -c {cluster} -b {name}"),
    ],
    [
        Step("updateTopic -c {cluster} -t orders -r 4 -w 4"),
        Step("updateTopic -b {broker} -t fifo -r 2 -w 2 -a +message.type=FIFO"),
        Step("updateTopic -b {broker} -t ordered -o true -r 2 -w 2"),
        Step("updateTopic -b {broker} -t bad!name"),
        Step("updateTopic -b {broker} -t TBW102"),
        Step("updateTopic -b {broker} -t badattr -a +nothing=1"),
        Step("updateTopic -b {broker} -t mixed -a +message.type=MIXED"),
        Step("updateTopic -b {broker} -t batches -r 1 -w 1 -a +queue.type=BatchCQ"),
        Step("updateTopicList -b {broker} -f {dir}/topics.json"),
        Step("updateSubGroup -c {cluster} -g g1 -r 5 -q 2"),
        Step("updateSubGroup -b {broker} -g g2 -s false"),
        Step("updateSubGroupList -b {broker} -f {dir}/groups.json"),
    ],
    # By itself. RocketMQ's broker registers each changed topic with the newest version of its table. Two
    # changes at once may thus be registered with the same version. Of the second one a nameserver keeps the
    # queues but not the mapping: it looks at mappings only when the version is another one.
    [Step("updateStaticTopic -b {name} -t fixed -qn 2")],
    [
        Step("topicRoute -t orders"),
        Step("topicRoute -t orders -l"),
        Step("topicRoute -t nothing"),
        Step("topicStatus -t orders", rates=True),
        Step("topicStatus -t nothing"),
        Step("topicRoute -t fixed"),
        Step("topicStatus -t fixed", rates=True),
        Step("topicClusterList -t orders"),
        Step("getConsumerConfig -g g1"),
        Step("getConsumerConfig -g list-g2"),
        Step("allocateMQ -t orders -i 1.1.1.1,2.2.2.2"),
        Step("topicList", any_order=True),
        Step("updateTopic -b {broker} -t fifo -r 2 -w 2 -a +queue.type=SimpleCQ"),
        Step("updateTopicPerm -t fifo -c {cluster} -p 6"),
        Step("updateOrderConf -t ordered -m put -v broker-a:4"),
        Step("updateKvConfig -s space -k k1 -v v1"),
        Step("updateTopicPerm -t list-a -b {broker} -p 4"),
    ],
    [
        Step("topicRoute -t list-a"),
        Step("updateStaticTopic -c {cluster} -t fixed -qn 3"),
        Step("updateOrderConf -t ordered -m get"),
        Step("deleteKvConfig -s space -k k1"),
        Step("updateStaticTopic -b nowhere -t fixed -qn 4"),
        Step("remappingStaticTopic -b {name} -t orders"),
        Step("@produce p1 orders 20 4"),
    ],
    [
        Step("updateTopicPerm -t list-a -b {broker} -p 6"),
        Step("remappingStaticTopic -c {cluster} -t fixed"),
        Step("updateOrderConf -t ordered -m delete"),
        Step("topicStatus -t orders", rates=True),
        Step("queryMsgById -i {id0} -t orders"),
        Step("queryMsgByKey -t orders -k key-3"),
        Step("queryMsgByKey -t orders -k nokey"),
        Step("queryMsgByUniqueKey -t orders -i {key0}"),
        Step("queryMsgByUniqueKey -t orders -i {key0} -a"),
        Step("queryMsgTraceById -i {key0}"),
        Step("queryMsgByOffset -t orders -b {name} -i 1 -o 2"),
        Step("queryCq -t orders -q 1 -i 0 -c 3 -b {broker}"),
        Step("queryCq -t orders -q 1 -i 0 -c 3 -b {broker} -g g1"),
        Step("queryCq -t nothing -q 1 -i 0 -c 3 -b {broker}"),
        Step("printMsgByQueue -t orders -a {name} -i 2 -p true -d true"),
        Step("printMsgByQueue -t orders -a {name} -i 2 -f true"),
        Step("consumeMessage -t orders -b {name} -i 3 -o 0 -c 5"),
        Step("printMsg -t orders -d true -s even", any_order=True),
        Step("producerConnection -g p1 -t orders"),
        Step("producerConnection -g nobody -t orders"),
        Step("producer -b {broker}", only=r"producer group \(p1\)"),
    ],
    [Step("sendMessage -t batches -p hello -k kk -c tt -b {name} -i 0")],
    [
        Step("updateTopic -b {broker} -t batches -r 1 -w 1 -a +queue.type=SimpleCQ"),
        Step("topicStatus -t batches", rates=True),
        Step("queryCq -t batches -q 0 -i 0 -c 3 -b {broker}"),
        Step("queryMsgByOffset -t batches -b {name} -i 0 -o 0"),
        Step("consumeMessage -t batches -b {name} -i 0 -o 0 -c 1"),
    ],
    [
        Step("sendMessage -t orders -p hello -k kk -c tt -b {name} -i 1"),
        Step("checkMsgSendRT -t orders -a 3 -s 10", hidden=(r"(?<=true)\s+\d+ *$", r"RT: .*")),
        Step("sendMsgStatus -b {name} -s 10 -c 2", hidden=(r"rt=\d+ms",)),
        Step("@consume g1 orders *"),
        Step("@consume g3 orders even orderly"),
    ],
    [Step("@await g1 24"), Step("@await g3 10")],
    [Step("@persist g1"), Step("@persist g3")],
    [
        Step("consumerProgress -g g1", until=CAUGHT_UP, rates=True, dropped=RETRY),
        Step("consumerProgress -g g3", until=CAUGHT_UP, rates=True, dropped=RETRY),
    ],
    [
        # Sums are of the last minute until the broker is ten minutes old, and a slow machine takes longer
        # than that: they have a test of their own.
        Step("statsAll -t orders", until=SUM24, rates=True, any_order=True, hidden=SUMS_HIDDEN),
        Step("statsAll -a", until=SUM24, any_order=True, rates=True, hidden=SUMS_HIDDEN),
    ],
    [
        Step("consumerProgress -g g1 -t orders", rates=True, dropped=RETRY),
        # A tool's consumer may send another heartbeat while it shuts down.
        Step(
            "consumerProgress", any_order=True, hidden=(r"(?<=CLUSTERING) +\d+",), dropped=r"^TOOLS_CONSUMER "
        ),
        Step("consumerConnection -g g1"),
        Step("consumerConnection -g g1 -b {broker}"),
        Step("consumerConnection -g nobody"),
        Step("brokerConsumeStats -b {broker}", any_order=True, dropped=RETRY),
        Step("brokerConsumeStats -b {broker} -o true", any_order=True),
        Step("topicList -c", any_order=True, dropped=r"%RETRY%"),
        Step("queryCq -t orders -q 1 -i 0 -c 3 -b {broker} -g g1"),
        Step("clusterList", rates=True),
        Step("clusterList -m"),
    ],
    # The Java client answers a broker's requests with two threads, and asks the broker meanwhile: one
    # request at a time.
    [Step("consumerProgress -g g1 -s true", until=r"(.* client .*\n){4}", rates=True, dropped=RETRY)],
    [Step("consumerStatus -g g1", until="Rebalance OK")],
    [Step("consumerStatus -g g3", until="Rebalance OK")],
    [
        Step(
            "consumerStatus -g g1 -i client@consumer-g1",
            until="#Consumer RT&TPS#",
            rates=True,
            dropped=RETRY,
            # Of the two clusters with users, the clients of one have TLS.
            hidden=(
                *(r"last\w+Timestamp=\d+", r"consumeTimestamp .*", r"127\.54\.\d+\.\d+:\d+;?"),
                r"(?<=useTLS) .*",
            ),
        )
    ],
    [Step("queryMsgById -i {id0} -t orders -g g1 -d client@consumer-g1", until="CR_SUCCESS", hidden=SPENT)],
    [
        Step(
            "queryMsgByUniqueKey -t orders -i {key0} -g g1 -d client@consumer-g1",
            until="CR_SUCCESS",
            hidden=SPENT,
        )
    ],
    [
        Step("statsAll", any_order=True, rates=True, hidden=SUMS_HIDDEN),
        Step("brokerStatus -b {broker}", hidden=RUNTIME_HIDDEN),
        Step("resetOffsetByTime -g g1 -t orders -s -1"),
        Step("resetOffsetByTime -g g1 -t nothing -s -1"),
        Step("resetOffsetByTime -g nogroup -t orders -s -1"),
        Step("cloneGroupOffset -s g1 -d g9 -t orders"),
        Step("skipAccumulatedMessage -g g3 -t orders"),
    ],
    [Step("@leave g1"), Step("@leave g3"), Step("@quit p1")],
    [
        Step("resetOffsetByTime -g g1 -t orders -s 0"),
        Step("skipAccumulatedMessage -g g8 -t orders"),
        Step("consumerConnection -g g1"),
        Step("consumerStatus -g g1"),
        Step("producerConnection -g p1 -t orders"),
    ],
    [Step("resetOffsetByTime -g g1 -t orders -s -1 -b {broker} -q 1 -o 2")],
    [
        Step("consumerProgress -g g1", rates=True, dropped=RETRY),
        Step("consumerProgress -g g3", rates=True, dropped=RETRY),
        Step("consumerProgress -g g8"),
        Step("brokerConsumeStats -b {broker} -l 0", any_order=True, dropped=RETRY),
        Step("wipeWritePerm -b {name}"),
    ],
    [
        Step("topicRoute -t orders"),
        Step("cloneGroupOffset -s g3 -d g1 -t orders"),
    ],
    [
        Step("consumerProgress -g g1", rates=True, dropped=RETRY),
        Step("addWritePerm -b {name}"),
        Step("updateBrokerConfig -b {broker} -k maxMessageSize -v 1048576"),
        Step("updateBrokerConfig -b {broker} -k brokerConfigPath -v /somewhere"),
        Step("updateBrokerConfig -c {cluster} -k nosuchkey -v 1"),
        Step("updateNamesrvConfig -k waitSecondsForService -v 46"),
        Step("setConsumeMode -b {broker} -t orders -g g1 -m PULL -q 0"),
        Step("setConsumeMode -b {broker} -t orders -g g2 -m POP -q 0"),
        Step("updateColdDataFlowCtrGroupConfig -b {broker} -g g1 -v 4096"),
        Step("updateColdDataFlowCtrGroupConfig -c {cluster} -g g2 -v 8192"),
        Step("setCommitLogReadAheadMode -b {broker} -m 1"),
    ],
    [
        Step("getColdDataFlowCtrInfo -b {broker}", is_json=True),
        Step("getColdDataFlowCtrInfo -c {cluster}", is_json=True),
        Step("setCommitLogReadAheadMode -b {broker} -m 2"),
    ],
    [
        Step("updateColdDataFlowCtrGroupConfig -b {broker} -g g2 -v many"),
        Step("removeColdDataFlowCtrGroupConfig -b {broker} -g g1"),
        Step("removeColdDataFlowCtrGroupConfig -c {cluster} -g nobody"),
        Step("setCommitLogReadAheadMode -c {cluster} -m 0"),
    ],
    [Step("getColdDataFlowCtrInfo -b {broker}", is_json=True)],
    [
        Step("topicRoute -t orders"),
        Step("getNamesrvConfig", only=r"^waitSecondsForService "),
        Step("getBrokerConfig -b {broker}"),
    ],
    [Step("updateBrokerConfig -b {broker} -k brokerPermission -v 4")],
    [
        Step("topicRoute -t orders"),
        Step("cleanExpiredCQ -b {broker}"),
        Step("cleanExpiredCQ -c {cluster}"),
        Step("cleanUnusedTopic -b {broker}"),
        Step("deleteExpiredCommitLog -b {broker}"),
        Step("haStatus -c {cluster}"),
        Step("exportMetadata -c {cluster} -f {dir}/metadata"),
        Step("exportConfigs -c {cluster} -f {dir}/configs"),
        Step("exportMetrics -c {cluster} -f {dir}/metrics"),
        Step("resetMasterFlushOffset -b {broker} -o 0"),
        Step("exportPopRecord -b {broker} -d true"),
        Step("rocksDBConfigToJson -b {broker} -t topics"),
        Step("checkRocksdbCqWriteProgress -c {cluster} -n {nameserver}"),
    ],
    [
        Step("deleteTopic -c {cluster} -t orders"),
        Step("deleteTopic -c {cluster} -t nothing"),
        Step("deleteTopic -c {cluster} -t TBW102"),
        Step("deleteSubGroup -b {broker} -g g1 -r true"),
        Step("deleteSubGroup -c {cluster} -g list-g1"),
        Step("updateBrokerConfig -b {broker} -k brokerPermission -v 6"),
    ],
    [
        Step("topicList", any_order=True),
        Step("topicList -c", any_order=True),
        Step("topicStatus -t orders"),
        # Not g1: its consumer's next heartbeat creates it again.
        Step("getConsumerConfig -g list-g1"),
        Step("consumerProgress -g g1"),
        Step("consumerProgress", any_order=True, dropped=r"^TOOLS_CONSUMER "),
        Step("statsAll -t orders"),
    ],
]


def _labels() -> dict[tuple[int, int], str]:
    """A name for every compared step: its command, numbered when it comes again."""
    seen: dict[str, int] = {}
    labels = {}
    for at, batch in enumerate(SCENARIO):
        for position, step in enumerate(batch):
            if not step.is_actor:
                seen[step.command] = number = seen.get(step.command, 0) + 1
                labels[at, position] = step.command if number == 1 else f"{step.command} #{number}"
    return labels


LABELS = _labels()


class MqAdminScenario:
    """Runs the scenario against one cluster, and keeps the outputs."""

    def __init__(self, admin: MqAdmin) -> None:
        self.admin = admin
        self.outcomes: dict[str, CommandOutput] = {}
        self.steps: dict[str, Step] = {}

    def play(self) -> None:
        """Runs all batches."""
        for at, batch in enumerate(SCENARIO):
            for position, outcome in enumerate(self.admin.run(batch)):
                if (at, position) in LABELS:
                    label = LABELS[at, position]
                    self.outcomes[label], self.steps[label] = outcome, batch[position]

    def comparable(self, label: str) -> list[str]:
        """The comparable lines of one command's output."""
        return self.admin.comparable(self.steps[label], self.outcomes[label])

    def file(self, name: str) -> str:
        """The content of a file that a command wrote."""
        return (self.admin.directory / name).read_text()


@pytest.fixture(scope="module", params=EACH_RELEASE)
def tool(request: pytest.FixtureRequest) -> Release:
    """The release whose `mqadmin` runs."""
    release: Release = request.param
    return release


COUNTERPARTS: dict[str, type[Cluster]] = {"ours": JavaCluster, "secured": JavaUsersCluster}
"""EpochMQ's cluster → RocketMQ's."""


@pytest.fixture(scope="module", params=[kind for kind in CLIENT_KINDS if kind.values[0] in COUNTERPARTS])
def kinds(request: pytest.FixtureRequest) -> tuple[type[Cluster], type[Cluster]]:
    """RocketMQ's cluster and EpochMQ's, which are compared."""
    return COUNTERPARTS[request.param], CLUSTERS[request.param]


@pytest.fixture(scope="module")
def scenarios(
    tool: Release, kinds: tuple[type[Cluster], type[Cluster]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MqAdminScenario, MqAdminScenario]]:
    """(RocketMQ's, EpochMQ's): the scenario run against both in parallel."""

    def play(cluster: Cluster) -> MqAdminScenario:
        directory = cluster.directory / "admin"
        directory.mkdir()
        (directory / "topics.json").write_text(json.dumps(TOPICS))
        (directory / "groups.json").write_text(json.dumps(GROUPS))
        admin = MqAdmin(cluster, directory)
        try:
            scenario = MqAdminScenario(admin)
            scenario.play()
        finally:
            admin.close()
        return scenario

    clusters = [kind(tmp_path_factory.mktemp(kind.__name__), octet=OCTET) for kind in kinds]
    with using(tool):
        compile_java("AdminDriver.java")
    with ThreadPoolExecutor(2) as pool:
        try:
            for _ in pool.map(lambda cluster: cluster.start(), clusters):
                pass
            with using(tool):
                java, ours = pool.map(play, clusters)
            yield java, ours
        finally:
            for cluster in clusters:
                cluster.abandon()


SKIPPED_KEY = "not support unquoted name"
"""The error of the newest release's commands that skip the mapping of a static topic: they cannot skip the
keys without quotes that RocketMQ's brokers write, of either release. EpochMQ's broker writes quotes."""
COMPARED = [
    label for label in LABELS.values() if not label.startswith("getBrokerConfig")
]  # that one: key by key


def without_the_topics_name(lines: list[str]) -> list[str]:
    """Leaves out the topic's own name, which RocketMQ reports among the groups that subscribe to it."""
    return [line for line in lines if "orders orders" not in line]


@pytest.mark.parametrize("label", COMPARED)
def test_a_command_prints_the_same_of_epochmq_and_of_rocketmq(
    scenarios: tuple[MqAdminScenario, MqAdminScenario], label: str
) -> None:
    java, ours = scenarios
    if SKIPPED_KEY in java.outcomes[label].error:
        assert ours.outcomes[label].error == ""
        return
    assert ours.comparable(label) == without_the_topics_name(java.comparable(label))


@pytest.mark.parametrize("label", ["statsAll -t orders", "statsAll -a"])
def test_messages_in_and_out_of_the_last_minute_are_counted_as_by_rocketmq(
    scenarios: tuple[MqAdminScenario, MqAdminScenario], label: str
) -> None:
    java, ours = (re.search(SUM24, scenario.outcomes[label].out, re.M) for scenario in scenarios)
    assert ours is not None or java is None


def test_settings_that_both_have_are_shown_with_the_same_values(
    scenarios: tuple[MqAdminScenario, MqAdminScenario],
) -> None:
    java, ours = (
        dict(
            re.findall(
                r"^(\w+) = ?(.*)$", "\n".join(scenario.comparable("getBrokerConfig -b {broker}")), re.M
            )
        )
        for scenario in scenarios
    )
    differ = {"bindAddress", "brokerIP1", "brokerIP2", "haListenPort", "listenPort"}
    common = java.keys() & ours.keys() - differ
    assert len(common) > 80
    assert {key: ours[key] for key in common} == {key: java[key] for key in common}
    # RocketMQ shows all but the first three and those of the external listener only when they are set.
    only_ours = {key for key in ours.keys() - java.keys() if not key.startswith("tls")}
    only_ours -= {"popFromRetryProbabilityForPriority", "priorityOrderAsc"}  # RocketMQ's since 5.4
    assert only_ours == {
        "adminSocketPath",
        "brokerConfigPath",
        "clientIP",
        "externalIP",
        "externalListenPort",
        "externalPort",
        "externalTlsMode",
        "dLegerGroup",
        "dLegerPeers",
        "dLegerSelfId",
        "preferredLeaderId",
        "readOnlyCommitLogStorePaths",
        "storePathDLedgerCommitLog",
        "storePathEpochFile",
        "storePathBrokerIdentity",
        "haMasterAddress",
        "haTlsMode",
        "joinDLedgerGroup",
        "frameTimeoutMillis",
        "maxConnectionsPerAddress",
        "maxGroupsPerHeartbeat",
        "maxHeaderSize",
        "maxNewConnectionsPerAddress",
        "allowUnauthenticatedMembers",
        "memberSecretPath",
        "maxQueuesPerLock",
        "maxReceivedBytes",
        "proxyProtocolFrom",
        "maxSubscriptionsPerHeartbeat",
        "rejectSystemTopicSends",
        "scrubBytesPerSecond",
        "scrubFirstDelayMs",
        "scrubPassIntervalMs",
    }


def test_exported_metadata_holds_the_same_topics_and_groups(
    scenarios: tuple[MqAdminScenario, MqAdminScenario], tool: Release
) -> None:
    if tool == NEWEST:  # that one exports nothing of RocketMQ's broker, see SKIPPED_KEY
        export = json.loads(scenarios[1].file("metadata/metadata.json"))
        assert {"orders", "fixed"} <= export["topicConfigTable"].keys()
        assert {"g1", "g2"} <= export["subscriptionGroupTable"].keys()
        return
    java, ours = (json.loads(scenario.file("metadata/metadata.json")) for scenario in scenarios)
    for export in (java, ours):
        export.pop("exportTime", None)
    assert ours == java


def test_exported_configurations_agree(scenarios: tuple[MqAdminScenario, MqAdminScenario]) -> None:
    java, ours = (json.loads(scenario.file("configs/configs.json")) for scenario in scenarios)
    assert ours == java


def test_exported_metrics_have_the_same_shape(
    scenarios: tuple[MqAdminScenario, MqAdminScenario], tool: Release
) -> None:
    if tool == NEWEST:
        export = json.loads(scenarios[1].file("metrics/metrics.json"))
        assert _dig(export, "evaluateReport", "broker-a").keys() >= {"runtimeEnv", "runtimeQuota"}
        return
    java, ours = (json.loads(scenario.file("metrics/metrics.json")) for scenario in scenarios)
    assert _shape(ours) == _shape(java)
    quota = "evaluateReport", "broker-a", "runtimeQuota"
    assert {key: _dig(ours, *quota)[key] for key in ("topicSize", "groupSize")} == {
        key: _dig(java, *quota)[key] for key in ("topicSize", "groupSize")
    }


def test_a_changed_setting_is_written_to_the_brokers_file_and_the_rest_is_unchanged(
    scenarios: tuple[MqAdminScenario, MqAdminScenario],
) -> None:
    ours = scenarios[1].admin.cluster
    text = (ours.directory / "broker" / "broker.conf").read_text()
    assert "maxMessageSize=1048576\n" in text
    assert "brokerPermission=6\n" in text
    assert "nosuchkey" not in text
    assert text.startswith("brokerClusterName=TestCluster\nbrokerName=broker-a\n")


def _shape(value: object) -> object:
    """The keys of a JSON document; values are left out."""
    return {key: _shape(item) for key, item in value.items()} if isinstance(value, dict) else None


def _dig(value: dict[str, object], *keys: str) -> dict[str, object]:
    for key in keys:
        value = value[key]  # type: ignore[assignment]
    return value

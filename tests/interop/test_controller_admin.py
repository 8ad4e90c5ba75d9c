"""RocketMQ's `mqadmin` shows of EpochMQ's controllers what it shows of RocketMQ's own. Its commands run
against three EpochMQ controllers with simulated brokers, and print what is recorded here. The soak run proves
the record on RocketMQ's controllers, and compares both with RocketMQ's brokers under them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.controller_fixture import ATTEMPTS_MAX, ControllerFixture
from tests.interop.java_cluster import java_broker
from tests.interop.java_controllers import java_controller
from tests.interop.java_env import NEWEST, in_use, using
from tests.interop.mqadmin import Step
from tests.support.group_processes import Factory, our_broker, our_controller
from tests.support.process import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

KINDS: dict[str, Factory] = {"ours": our_controller, "java": java_controller}
WHO = "-c {cluster} -bn {name}"
FAQ = "For more information, please visit the url, https://rocketmq.apache.org/docs/bestPractice/06FAQ"


@dataclass(frozen=True)
class AdminStep:
    """A command and its output with RocketMQ's controllers; `ours` where EpochMQ's differ on purpose."""

    command: str
    shown: str
    ours: str | None = None


DIES = 3
"""In place of a batch: the connections of this broker close."""

METADATA = """
    #ControllerGroup controllers
    #ControllerLeaderId LEADER
    #ControllerLeaderAddress LEADER
    #Peer: FOLLOWER1:FOLLOWER1
    #Peer: FOLLOWER2:FOLLOWER2
    #Peer: LEADER:LEADER
"""
AT_FIRST = """
    #brokerName group-a
    #MasterBrokerId ID0
    #MasterAddr BROKER0
    #MasterEpoch 1
    #SyncStateSetEpoch 2
    #SyncStateSetNums 2
    InSyncReplica: ReplicaIdentity{brokerName='group-a', brokerId=ID0, brokerAddress='BROKER0', alive=true}
    InSyncReplica: ReplicaIdentity{brokerName='group-a', brokerId=ID1, brokerAddress='BROKER1', alive=true}
    NotInSyncReplica: ReplicaIdentity{brokerName='group-a', brokerId=ID2, brokerAddress='BROKER2', alive=true}
"""
AFTER_THE_ELECTION = """
    #brokerName group-a
    #MasterBrokerId ID1
    #MasterAddr BROKER1
    #MasterEpoch 2
    #SyncStateSetEpoch 3
    #SyncStateSetNums 1
    InSyncReplica: ReplicaIdentity{brokerName='group-a', brokerId=ID1, brokerAddress='BROKER1', alive=true}
    NotInSyncReplica: ReplicaIdentity{brokerName='group-a', brokerId=ID0, brokerAddress='BROKER0', alive=true}
"""
DEAD = """
NotInSyncReplica: ReplicaIdentity{brokerName='group-a', brokerId=ID2, brokerAddress='BROKER2', alive=false}
"""


def rejection(code: int, remark: str, kind: str = "MQBrokerException") -> str:
    """What mqadmin prints for a rejection."""
    return f"{kind}: CODE: {code} DESC: {remark}\n{FAQ}"


NOT_ELECTED = "Failed to elect a new master"
STILL_ALIVE = "The old master ID0 is still alive, not need to elect new master for broker group-a"
NO_IDS = "Please set the option <brokerControllerIdsToClean> according to the format, exception: "
SCENARIO: list[list[AdminStep] | int] = [
    [
        AdminStep("getControllerMetaData -a {leader}", METADATA),
        AdminStep("getControllerMetaData -a {follower}", METADATA),
        AdminStep("getSyncStateSet -a {follower} -b {name}", AT_FIRST),
        AdminStep("getSyncStateSet -a {leader} -c {cluster}", AT_FIRST),
        AdminStep("getSyncStateSet -a {leader} -b nobody", ""),
        AdminStep(
            "electMaster -a {follower} " + WHO + " -b {id0}",
            rejection(2011, STILL_ALIVE),
        ),
        AdminStep(
            "electMaster -a {follower} " + WHO + " -b {id2}",
            rejection(2012, NOT_ELECTED),
            rejection(
                2012,
                f"{NOT_ELECTED}: broker 3 may lack acknowledged messages; brokers 1, 2 have all. If these "
                "are gone for good, accept the loss: set enableElectUncleanMaster=true with "
                "updateControllerConfig until a master is elected",
            ),
        ),
        AdminStep(
            "electMaster -a {leader} " + WHO + " -b 99",
            rejection(2012, NOT_ELECTED),
            rejection(2012, f"{NOT_ELECTED}: broker 99 sends no heartbeats to the controllers"),
        ),
        AdminStep(
            "electMaster -a {leader} -c {cluster} -bn nobody -b 1",
            rejection(2010, "Broker hasn't been registered"),
        ),
    ],
    [
        AdminStep(
            "electMaster -a {follower} " + WHO + " -b {id1}",
            """
            #ClusterName TestCluster
            #BrokerName group-a
            #BrokerMasterAddr BROKER1
            #MasterEpoch 2
            #SyncStateSetEpoch 3
            """,
        )
    ],
    DIES,
    [
        AdminStep(
            "getSyncStateSet -a {follower} -b {name}",
            AFTER_THE_ELECTION + DEAD,
        ),
        AdminStep(
            "cleanBrokerMetadata -a {leader} " + WHO + " -b {id0}",
            rejection(2009, "Broker [group-a, ID0] is still alive, clean up failure"),
        ),
        AdminStep(
            "cleanBrokerMetadata -a {leader} " + WHO,
            rejection(2009, "Broker group-a is still alive, clean up failure"),
        ),
        AdminStep(
            "cleanBrokerMetadata -a {leader} " + WHO + " -b x",
            rejection(2009, NO_IDS + 'java.lang.NumberFormatException: For input string: "x"'),
            rejection(2009, NO_IDS + "'x' is no id"),
        ),
        AdminStep(
            "cleanBrokerMetadata -a {leader} -c {cluster} -bn nobody -b 1",
            rejection(2009, "Broker nobody is not existed,clean broker data failure."),
        ),
    ],
    [
        AdminStep(
            "cleanBrokerMetadata -a {follower} " + WHO + " -b {id2}",
            "clear broker group-a metadata from controller success!",
        )
    ],
    [AdminStep("getSyncStateSet -a {leader} -b {name}", AFTER_THE_ELECTION)],
    [
        AdminStep(
            "cleanBrokerMetadata -a {follower} -bn {name} -l",
            "clear broker group-a metadata from controller success!",
        ),
    ],
    [
        AdminStep("getSyncStateSet -a {follower} -b {name} -c {cluster}", ""),
        AdminStep(
            "updateControllerConfig -a {all} -k enableElectUncleanMaster -v true",
            "update controller config success![ALL]\nenableElectUncleanMaster : true",
        ),
        AdminStep(
            "updateControllerConfig -a {leader} -k configStorePath -v /x",
            rejection(16, "Can not update config in black list.", "MQClientException"),
        ),
        AdminStep(
            "updateControllerConfig -a {leader} -k nothing -v 1",
            "update controller config success![LEADER]\nnothing : 1",
        ),
        AdminStep(
            "updateControllerConfig -a {leader} -k scanInactiveMasterInterval -v soon",
            "update controller config success![LEADER]\nscanInactiveMasterInterval : soon",
            rejection(
                1,
                "scanInactiveMasterInterval=soon: expected a whole number of at least 1",
                "MQClientException",
            ),
        ),
    ],
]
LABELS = [f"{at}: {step.command}" for at, batch in enumerate(SCENARIO) if batch != DIES for step in batch]  # type: ignore[union-attr]


def lines(text: str) -> list[str]:
    """The lines of the record, comparable with an output."""
    return sorted(line for line in (re.sub(r"\s+", " ", line).strip() for line in text.splitlines()) if line)


ALL = re.compile(r"\[(LEADER|FOLLOWER\d)(, (LEADER|FOLLOWER\d)){2}\]")


class AdminScenario:
    """Runs the scenario; the lines that mqadmin printed are sorted, because lists come in the order of a hash
    table or of the controllers' ids."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.fixture = ControllerFixture(directory, KINDS[kind])
        self.printed: dict[str, list[str]] = {}
        self.configuration: dict[str, str] = {}

    def play(self) -> None:
        """Runs all steps."""
        for at, batch in enumerate(SCENARIO):
            if isinstance(batch, int):
                self.fixture.end(batch)
                continue
            for step, found in zip(
                batch, self.fixture.run([Step(step.command) for step in batch]), strict=True
            ):
                self.printed[f"{at}: {step.command}"] = lines(ALL.sub("[ALL]", "\n".join(found)))
        (found,) = self.fixture.run([Step("getControllerConfig -a {leader}")])
        self.configuration = settings_of(found)


def settings_of(printed: list[str]) -> dict[str, str]:
    """The settings that getControllerConfig printed."""
    return dict(line.split(" =", 1) for line in printed if " =" in line)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("ours", in_use()), id="ours"),
        pytest.param(("ours", NEWEST), id="ours-newest", marks=pytest.mark.soak),
        pytest.param(("java", in_use()), id="java", marks=pytest.mark.soak),
    ],
)
def scenario(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AdminScenario]:
    """The scenario, run against three controllers, by the `mqadmin` of a release."""
    kind, tool = request.param
    for number in range(ATTEMPTS_MAX):
        with using(tool):
            found = AdminScenario(kind, tmp_path_factory.mktemp(f"admin-{kind}-{number}"))
            found.fixture.start()
        try:
            with using(tool):
                found.play()
            if found.fixture.kept_leader():
                yield found
                return
        finally:
            found.fixture.close()
    pytest.fail("the leader was replaced in every attempt")


@pytest.mark.parametrize("label", LABELS)
def test_a_command_prints_what_it_prints_of_rocketmqs_controllers(
    scenario: AdminScenario, label: str
) -> None:
    at, _, command = label.partition(": ")
    batch = SCENARIO[int(at)]
    assert isinstance(batch, list)
    step = next(step for step in batch if step.command == command)
    wanted = step.shown if scenario.kind == "java" or step.ours is None else step.ours
    assert scenario.printed[label] == lines(wanted)


OF_JAVA_ALONE = {"jraftConfig"}
OF_OURS_ALONE = {
    "controllerBindAddress",
    "controllerSnapshotEntries",
    "heartBeatTimeIntervalMs",
    "joinControllerGroup",
    "writeLeaseMs",
    "frameTimeoutMillis",
    "maxConnectionsPerAddress",
    "maxHeaderSize",
    "maxNewConnectionsPerAddress",
    "allowUnauthenticatedMembers",
    "memberSecretPath",
    "maxReceivedBytes",
    "proxyProtocolFrom",
}
OF_PLACE = {"bindAddress", "configStorePath", "rocketmqHome", "controllerStorePath", "listenPort"}
SHORTER_WITH_US = {"scanNotActiveBrokerInterval": "500", "scanInactiveMasterInterval": "1000"}
CONFIGURATION = {
    "configBlackList": "configBlackList;configStorePath",
    "controllerDLegerGroup": "controllers",
    "controllerRequestThreadPoolQueueCapacity": "50000",
    "controllerThreadPoolNums": "16",
    "controllerType": "DLedger",
    "electMasterMaxRetryCount": "3",
    "enableElectUncleanMaster": "true",
    "enableShutdownGracefully": "false",
    "isProcessReadEvent": "false",
    "mappedFileSize": "16777216",
    "metricGrpcExporterIntervalInMills": "60000",
    "metricGrpcExporterTimeOutInMills": "3000",
    "metricLoggingExporterIntervalInMills": "10000",
    "metricsExporterType": "DISABLE",
    "metricsGrpcExporterHeader": "",
    "metricsGrpcExporterTarget": "",
    "metricsInDelta": "false",
    "metricsLabel": "",
    "metricsPromExporterHost": "",
    "metricsPromExporterPort": "5557",
    "notifyBrokerRoleChanged": "true",
    "scanInactiveMasterInterval": "5000",
    "scanNotActiveBrokerInterval": "5000",
    "serverAsyncSemaphoreValue": "64",
    "serverCallbackExecutorThreads": "0",
    "serverChannelMaxIdleTimeSeconds": "120",
    "serverNettyWorkerGroupEnable": "true",
    "serverOnewaySemaphoreValue": "256",
    "serverPooledByteBufAllocatorEnable": "true",
    "serverSelectorThreads": "3",
    "serverSocketBacklog": "1024",
    "serverSocketRcvBufSize": "0",
    "serverSocketSndBufSize": "0",
    "serverWorkerThreads": "8",
    "shutdownWaitTimeSeconds": "30",
    "useEpollNativeSelector": "false",
    "writeBufferHighWaterMark": "0",
    "writeBufferLowWaterMark": "0",
}


def test_the_configuration_has_rocketmqs_keys_and_values(scenario: AdminScenario) -> None:
    """Includes the changes made above. Only the values that docs/controller.md lists differ."""
    differ = OF_PLACE | {"controllerDLegerPeers", "controllerDLegerSelfId"}
    alone = OF_JAVA_ALONE if scenario.kind == "java" else OF_OURS_ALONE
    shown = {key: value.strip() for key, value in scenario.configuration.items()}
    assert {key: value for key, value in shown.items() if key not in differ | alone} == (
        CONFIGURATION if scenario.kind == "java" else CONFIGURATION | SHORTER_WITH_US
    )
    assert alone <= shown.keys()
    assert differ - {"rocketmqHome"} <= shown.keys()


# With RocketMQ's brokers ------------------------------------------------------------------------------------

EPOCHS = (r"(?<=#SyncStateSetEpoch )\d+",)
"""The number of changes of the SyncStateSet is up to the brokers."""
OFFSETS = (r"(?<=Offset=)\d+",)
EPOCH = r"(?<=EpochEntry{epoch=)\d+"
"""Of empty epochs RocketMQ's brokers keep the first, EpochMQ's the last."""
REPLICATION = (r"(?<=#MasterCommitLogMaxOffset\t)\d+", r"\d+\s+-?\d+\s+[\d.]+\s+(?=OK)", r"(?<=OK)\s+-?\d+")
"""Ports, offsets and rates in the output of haStatus."""


def with_brokers(kind: str, directory: Path, broker: Factory = java_broker) -> dict[str, list[str]]:
    """The output for two brokers: at first, after an election, and after the end of the former master."""
    fixture = ControllerFixture(directory, KINDS[kind], [broker] * 2)
    printed: dict[str, list[str]] = {}

    def run(chapter: str, *commands: str) -> None:
        steps = [Step(command, hidden=(*EPOCHS, *OFFSETS, *REPLICATION, EPOCH)) for command in commands]
        for command, found in zip(commands, fixture.run(steps), strict=True):
            printed[f"{chapter}: {command}"] = lines("\n".join(found))

    fixture.start()
    try:
        group = fixture.group
        looks = (
            "getSyncStateSet -a {follower} -b {name}",
            "getSyncStateSet -a {leader} -c {cluster}",
            "getBrokerEpoch -b {name}",
            "getBrokerEpoch -c {cluster}",
            "haStatus -c {cluster}",
        )
        clean = "cleanBrokerMetadata -a {leader} " + WHO
        run("at first", "getControllerMetaData -a {follower}", *looks, clean)
        former = group.wait_master()
        run("electing", "electMaster -a {follower} " + WHO + " -b {id1}")
        group.wait_master(other_than=former)
        group.wait_in_sync(2)
        run("after the election", *looks, clean + " -b {id0}")
        former.process.kill()
        wait_until(lambda: len(fixture.living()) == 1, what="the former master's end is noticed")
        wait_until(lambda: len(group.in_sync()) == 1, what="it is no longer in sync")
        run("after its end", clean + " -b {id0}")
        run("after it was cleaned", "getSyncStateSet -a {leader} -b {name}")
    finally:
        fixture.close()
    return printed


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_with_brokers_every_command_prints_the_same_of_rocketmqs_and_of_ours(tmp_path: Path) -> None:
    """Compares RocketMQ's controllers and brokers, EpochMQ's controllers with RocketMQ's brokers, and
    EpochMQ's with EpochMQ's."""
    java = with_brokers("java", tmp_path / "java")
    found = {
        "ours with rocketmq's brokers": with_brokers("ours", tmp_path / "mixed"),
        "ours with ours": with_brokers("ours", tmp_path / "ours", our_broker),
    }
    for label, printed in java.items():
        for whose, ours in found.items():
            assert ours[label] == printed, f"{label}, {whose}"

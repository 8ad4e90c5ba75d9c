"""The results of a broker's admin API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.common_operations import redacted_config
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminOperation,
    ChangeConfigArguments,
    LogLevelArguments,
    PromoteArguments,
    ReadinessLimits,
    ReloadConfigArguments,
)
from epochmq_sidecar.metrics import exposition
from tests.support.net import free_port, loopback
from tests.unit.broker.admin.served_operations import Served


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    await made.broker.start()
    yield made
    await made.broker.stop()
    assert not await asyncio.to_thread(Path(made.socket).exists)


@pytest.fixture
def levels() -> Iterator[None]:
    logger = logging.getLogger("epochmq_broker.replication.ha")
    before = logger.level
    yield
    logger.setLevel(before)


async def test_a_broker_without_controllers_is_master_and_ready(served: Served) -> None:
    state = await served.ask(AdminOperation.STATE, results.ProcessState, ReadinessLimits())
    assert isinstance(state, results.BrokerState)
    assert (state.role, state.controlled, state.ready, state.not_ready) == ("master", False, True, [])
    assert (state.lease, state.lag_bytes, state.takes_messages) == (None, 0, True)
    live = await served.ask(AdminOperation.LIVE, results.ProcessLiveness)
    assert live.component == "broker"


async def test_an_isolated_master_takes_no_messages_and_says_what_it_waits_for(tmp_path: Path) -> None:
    """No nameserver tells it which members of its group are alive."""
    nameserver = f"{loopback(73)}:{free_port(loopback(73))}"
    made = Served(tmp_path, enableSlaveActingMaster="true", totalReplicas="2", namesrvAddr=nameserver)
    await made.broker.start()
    try:
        async with asyncio.timeout(60):
            while True:
                state = await made.ask(AdminOperation.STATE, results.BrokerState, ReadinessLimits())
                assert state.group is not None
                assert (state.group.role, state.takes_messages, state.ready) == ("isolated", False, False)
                if "AskMembers" in state.group.isolated_because:
                    break
        assert f"it is isolated: it {state.group.isolated_because}" in state.not_ready
        info = await made.ask(AdminOperation.METRICS, results.MetricValues, ReadinessLimits())
        assert isinstance(info.state, results.BrokerState)
        assert info.state.group is not None
    finally:
        await made.broker.stop()


async def test_a_fenced_broker_is_not_ready_for_that_reason(served: Served) -> None:
    done = await served.ask(AdminOperation.FENCE, results.ReplicaControlResult)
    assert (done.fenced, done.takes_messages) == (True, False)
    state = await served.ask(AdminOperation.STATE, results.BrokerState, ReadinessLimits())
    assert state.not_ready == ["it is fenced: it stores no messages until it is unfenced"]
    done = await served.ask(AdminOperation.UNFENCE, results.ReplicaControlResult)
    assert (done.fenced, done.takes_messages) == (False, True)


async def test_without_controllers_there_is_no_switchover(served: Served) -> None:
    done = await served.ask(AdminOperation.HANDOVER, results.SwitchoverResult)
    assert (done.moved, done.reason) == (False, "there are no controllers that could elect another master")
    for operation, arguments in ((AdminOperation.PROMOTE, PromoteArguments()), (AdminOperation.DRAIN, None)):
        with pytest.raises(AdminError, match="no controllers") as caught:
            await served.ask(operation, results.SwitchoverResult, arguments)
        assert caught.value.kind is FaultKind.REFUSED


def test_secrets_among_the_settings_are_not_shown() -> None:
    config = {
        "innerClientAuthenticationCredentials": "{k}",
        "initAuthenticationUser": "u",
        "tls.server.keyPassword": "",
        "brokerName": "a",
    }
    assert redacted_config(config).config == {
        "brokerName": "a",
        "initAuthenticationUser": "***",
        "innerClientAuthenticationCredentials": "***",
        "tls.server.keyPassword": "",
    }


async def test_a_change_of_settings_passes_the_brokers_own_checks(served: Served) -> None:
    changed = await served.ask(
        AdminOperation.CHANGE_CONFIG,
        results.EffectiveConfig,
        ChangeConfigArguments(changes={"fileReservedTime": "48"}),
    )
    assert changed.config["fileReservedTime"] == "48"
    assert served.broker.live.current.file_reserved_time == 48
    assert served.config.read_text() == "# mine\nfileReservedTime=48\n"
    assert (await served.ask(AdminOperation.CONFIG, results.EffectiveConfig)).config == changed.config
    for key, value, message in (
        ("fileReservedTime", "soon", "fileReservedTime=soon: expected a whole number"),
        ("adminSocketPath", "/x", "the key cannot change while the broker runs"),
        ("configBlackList", "x", "black list"),
    ):
        wanted = ChangeConfigArguments(changes={"fileReservedTime": "1", key: value})
        with pytest.raises(AdminError, match=message):
            await served.ask(AdminOperation.CHANGE_CONFIG, results.EffectiveConfig, wanted)
    assert served.broker.live.current.file_reserved_time == 48


async def test_a_reload_applies_a_file_and_shows_its_version(served: Served) -> None:
    live, text = served.broker.live, served.config.read_text()
    file = {key: live.as_properties()[key] for key in ("brokerName", "brokerConfigPath")}
    wanted = ReloadConfigArguments(config={**file, "fileReservedTime": "48"}, version="orders-1")
    changed = await served.ask(AdminOperation.RELOAD_CONFIG, results.EffectiveConfig, wanted)
    assert (changed.config["fileReservedTime"], live.current.file_reserved_time) == ("48", 48)
    assert served.config.read_text() == text
    assert (await served.ask(AdminOperation.STATE, results.BrokerState)).config_version == "orders-1"
    wrong = ReloadConfigArguments(config={**file, "fileReservedTime": "soon"}, version="orders-2")
    with pytest.raises(AdminError, match="fileReservedTime=soon") as caught:
        await served.ask(AdminOperation.RELOAD_CONFIG, results.EffectiveConfig, wrong)
    assert caught.value.kind is FaultKind.REFUSED
    assert (await served.ask(AdminOperation.STATE, results.BrokerState)).config_version == "orders-1"


@pytest.mark.usefixtures("levels")
async def test_setting_a_log_level_returns_the_previous_one(served: Served) -> None:
    wanted = LogLevelArguments(level="ERROR", logger="epochmq_broker.replication.ha")
    before = (await served.ask(AdminOperation.LOG_LEVEL, results.LogLevelResult, wanted)).before
    assert before != "ERROR"
    assert (await served.ask(AdminOperation.LOG_LEVEL, results.LogLevelResult, wanted)).before == "ERROR"


async def test_the_other_operations_return_results(served: Served) -> None:
    assert (await served.ask(AdminOperation.LAG, results.ReplicationLag)).replicas == []
    assert (await served.ask(AdminOperation.LEASE, results.LeaseState)).may_write
    assert (await served.ask(AdminOperation.SYNC_STATE_SET, results.SyncStateSetState)).members == []
    assert (await served.ask(AdminOperation.EPOCHS, results.EpochHistory)).epochs == []
    with pytest.raises(AdminError, match="the log has no epoch yet"):
        await served.ask(AdminOperation.EPOCH_FILE, results.EpochFileContent)
    metrics = await served.ask(AdminOperation.METRICS, results.MetricValues, ReadinessLimits())
    assert metrics.values["broker_messages_put_total"] == 0


async def test_every_path_of_the_log_has_its_used_share(tmp_path: Path) -> None:
    paths = [tmp_path / "disk1", tmp_path / "disk2"]
    made = Served(tmp_path, storePathCommitLog=",".join(map(str, paths)))
    await made.broker.start()
    try:
        made.broker.store.log_expiry.measure()
        metrics = await made.ask(AdminOperation.METRICS, results.MetricValues, ReadinessLimits())
        shares = [metrics.values[f"broker_log_path_used_ratio:{path}"] for path in paths]
        assert all(0 < share <= 1 for share in shares)
        assert metrics.values["broker_disk_used_ratio"] == min(shares)
        text = exposition(metrics)
        assert f'kind="{paths[1]}"' in text
        state = await made.ask(AdminOperation.STATE, results.BrokerState, ReadinessLimits())
        assert state.ready
    finally:
        await made.broker.stop()

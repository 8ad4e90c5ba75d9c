"""The order of steps by which an isolated broker goes online, as a pure state machine."""

from __future__ import annotations

import pytest

from epochmq_broker.membership.acting.pre_online import (
    CONNECT_TIMEOUT_MS,
    RETRY_MS,
    AnnounceMaster,
    AskMaster,
    AskMembers,
    AwaitMaster,
    AwaitRetry,
    AwaitSlave,
    GoOnline,
    HAObserved,
    LagMeasured,
    MasterAnnounced,
    MasterAnswered,
    MeasureLag,
    MembersReceived,
    PreOnline,
    PreOnlineEvent,
    PreOnlineStep,
    RetryDue,
    StepFailed,
    TablesTakenBack,
    TakeBackTables,
)

MASTER, SLAVE1, SLAVE2, HA = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911", "10.0.0.1:10912"
LIMIT = 1000


class Driver:
    """Plays the driver: each `report` is the outcome of the step under way."""

    def __init__(self, broker_id: int, address: str) -> None:
        self.core = PreOnline(broker_id, address, LIMIT)
        self.now_ms = 5_000

    def report(self, *events: PreOnlineEvent) -> PreOnlineStep:
        for event in events:
            step = self.core.handle(event, self.now_ms)
        return step

    def retry(self) -> None:
        step = self.core.step
        assert isinstance(step, AwaitRetry)
        self.now_ms = step.until_ms
        assert self.report(RetryDue()) == AskMembers()


def test_a_master_takes_the_tables_of_every_slave_and_those_of_the_acting_master_last() -> None:
    driver = Driver(0, MASTER)
    assert driver.core.step == AskMembers()
    assert driver.report(MembersReceived({2: SLAVE2, 1: SLAVE1})) == AnnounceMaster(SLAVE1)
    assert driver.report(MasterAnnounced()) == AwaitSlave(SLAVE1)
    assert driver.report(HAObserved(connected=False)) == AwaitSlave(SLAVE1)
    assert driver.report(HAObserved(connected=True)) == AnnounceMaster(SLAVE2)
    assert driver.report(MasterAnnounced(), HAObserved(connected=True)) == TakeBackTables(SLAVE2)
    assert driver.report(TablesTakenBack()) == TakeBackTables(SLAVE1)
    assert not driver.core.is_done
    assert driver.report(TablesTakenBack()) == GoOnline(0, MASTER)
    assert driver.core.is_done


@pytest.mark.parametrize(
    "members",
    [
        pytest.param({}, id="nobody"),
        pytest.param({0: MASTER}, id="its own entry from before the start"),
        pytest.param({0: "10.0.0.9:10911"}, id="its own entry at a former address"),
        pytest.param({3: MASTER}, id="its own address under another id"),
    ],
)
def test_a_master_that_is_alone_goes_online_at_once(members: dict[int, str]) -> None:
    assert Driver(0, MASTER).report(MembersReceived(members)) == GoOnline(0, MASTER)


def test_a_failed_attempt_is_repeated_after_a_second_and_asks_connected_slaves_no_more() -> None:
    driver = Driver(0, MASTER)
    members = MembersReceived({0: MASTER, 1: SLAVE1, 2: SLAVE2})
    driver.report(members, MasterAnnounced(), HAObserved(connected=True))
    assert driver.report(StepFailed("refused")) == AwaitRetry(driver.now_ms + RETRY_MS, "refused")
    assert driver.core.attempts == 1
    driver.retry()
    assert driver.core.attempts == 2
    assert driver.report(members) == AnnounceMaster(SLAVE2)
    driver.report(MasterAnnounced(), HAObserved(connected=True))
    # The tables of a failed attempt may have changed since: they are taken again.
    driver.report(TablesTakenBack(), StepFailed("time-out"))
    driver.retry()
    assert driver.report(members) == TakeBackTables(SLAVE2)


def test_a_slave_that_comes_while_the_master_waits_is_asked_too() -> None:
    driver = Driver(0, MASTER)
    driver.report(MembersReceived({1: SLAVE1}), MasterAnnounced(), HAObserved(connected=True))
    driver.report(StepFailed("time-out"))
    driver.retry()
    assert driver.report(MembersReceived({1: SLAVE1, 2: SLAVE2})) == AnnounceMaster(SLAVE2)


def test_a_slave_at_another_address_is_asked_again() -> None:
    driver = Driver(0, MASTER)
    driver.report(MembersReceived({1: SLAVE1}), MasterAnnounced(), HAObserved(connected=True))
    driver.report(StepFailed("time-out"))
    driver.retry()
    assert driver.report(MembersReceived({1: SLAVE2})) == AnnounceMaster(SLAVE2)


def test_a_dead_slave_holds_the_master_up_only_until_nameservers_have_dropped_it() -> None:
    driver = Driver(0, MASTER)
    driver.report(MembersReceived({1: SLAVE1}), StepFailed("refused"))
    driver.retry()
    assert driver.report(MembersReceived({})) == GoOnline(0, MASTER)


def test_an_attempt_waits_ten_seconds_for_an_ha_connection() -> None:
    driver = Driver(0, MASTER)
    driver.report(MembersReceived({1: SLAVE1}), MasterAnnounced())
    driver.now_ms += CONNECT_TIMEOUT_MS
    assert driver.report(HAObserved(connected=False)) == AwaitSlave(SLAVE1)
    driver.now_ms += 1
    step = driver.report(HAObserved(connected=False))
    assert isinstance(step, AwaitRetry)
    assert SLAVE1 in step.why


def test_a_slave_waits_until_its_log_has_caught_up() -> None:
    driver = Driver(2, SLAVE2)
    assert driver.report(MembersReceived({0: MASTER, 1: SLAVE1})) == AskMaster(MASTER)
    assert driver.report(MasterAnswered(HA)) == AwaitMaster(HA)
    assert driver.report(HAObserved(connected=False)) == AwaitMaster(HA)
    assert driver.report(HAObserved(connected=True)) == MeasureLag(MASTER)
    assert driver.report(LagMeasured(LIMIT)) == MeasureLag(MASTER)
    assert driver.report(LagMeasured(LIMIT - 1)) == GoOnline(0, MASTER)


@pytest.mark.parametrize("lag_bytes", [None, -1])
def test_a_slave_does_not_wait_for_a_log_that_it_cannot_measure_or_is_ahead_of(lag_bytes: int | None) -> None:
    driver = Driver(1, SLAVE1)
    driver.report(MembersReceived({0: MASTER}), MasterAnswered(HA), HAObserved(connected=True))
    assert driver.report(LagMeasured(lag_bytes)) == GoOnline(0, MASTER)


def test_a_slave_waits_ten_seconds_for_its_ha_connection() -> None:
    driver = Driver(1, SLAVE1)
    driver.report(MembersReceived({0: MASTER}), MasterAnswered(HA))
    driver.now_ms += CONNECT_TIMEOUT_MS + 1
    step = driver.report(HAObserved(connected=False))
    assert isinstance(step, AwaitRetry)
    assert HA in step.why


def test_a_slave_of_a_master_without_an_ha_address_goes_online_at_once() -> None:
    driver = Driver(1, SLAVE1)
    assert driver.report(MembersReceived({0: MASTER}), MasterAnswered(None)) == GoOnline(0, MASTER)


def test_a_slave_with_an_empty_log_lets_another_one_act() -> None:
    """Consumers of the acting master would find no message."""
    driver = Driver(1, SLAVE1)
    for _ in range(3):
        step = driver.report(MembersReceived({2: SLAVE2}, has_log=False))
        assert isinstance(step, AwaitRetry)
        assert SLAVE2 in step.why
        driver.retry()
    assert driver.report(MembersReceived({0: MASTER, 2: SLAVE2}, has_log=False)) == AskMaster(MASTER)


def test_a_slave_with_an_empty_log_goes_online_if_it_is_alone() -> None:
    assert Driver(1, SLAVE1).report(MembersReceived({}, has_log=False)) == GoOnline(1, SLAVE1)


def test_a_slave_goes_online_at_once_without_a_master() -> None:
    """The smallest id is that of the others, so that two brokers never act at a time."""
    assert Driver(1, SLAVE1).report(MembersReceived({2: SLAVE2})) == GoOnline(2, SLAVE2)
    assert Driver(1, SLAVE1).report(MembersReceived({1: SLAVE1, 2: SLAVE2})) == GoOnline(2, SLAVE2)
    assert Driver(1, SLAVE1).report(MembersReceived({})) == GoOnline(1, SLAVE1)
    assert Driver(1, SLAVE1).report(MembersReceived({1: SLAVE1})) == GoOnline(1, SLAVE1)


def test_a_slave_whose_master_dies_during_pre_online_goes_online_without_it() -> None:
    driver = Driver(1, SLAVE1)
    driver.report(MembersReceived({0: MASTER}), StepFailed("refused"))
    driver.retry()
    assert driver.report(MembersReceived({})) == GoOnline(1, SLAVE1)


def test_an_event_of_another_step_is_an_error_of_the_driver() -> None:
    with pytest.raises(AssertionError, match="no outcome"):
        Driver(0, MASTER).report(TablesTakenBack())

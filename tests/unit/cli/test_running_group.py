"""Tests how `epochmq audit GROUP` makes a cut from the status of a group of `epochmq up`."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from epochmq.verbs import running_group
from epochmq_operator.audits.cut import GroupCut, cut_of
from epochmq_operator.resources import GroupMode
from epochmq_operator.status_model import (
    BrokerGroupStatus,
    GroupPhase,
    ListedReplica,
    ListedReplicaGroup,
    PodPhase,
    ReplicaStatus,
)
from epochmq_protocol.epoch_entries import EpochEntry, format_epoch_file

EPOCHS = format_epoch_file([EpochEntry(1, 0), EpochEntry(2, 500)]).encode()


@dataclass
class Seen:
    """What `reported_states` needs of an observation."""

    replica_groups: dict[str, list[ListedReplicaGroup]]
    pods: list[Any]


def replica(number: int, end: int | None, confirmed: int | None) -> ReplicaStatus:
    return ReplicaStatus(
        pod=f"orders-broker-{number}", address=f"127.9.0.{number}:10911", pid=number, admin_address=None,
        data_dir=f"/volumes/orders-broker-{number}/store", ready=True, phase=PodPhase.READY, reason="",
        restarts=0, broker_id=number, role="master" if number == 1 else "slave", in_sync=True, epoch=2,
        max_offset=end, confirm_offset=confirmed, fenced=False, drained=False, ha_address="",
    )  # fmt: skip


def seen_group(*, all_ack: bool) -> tuple[BrokerGroupStatus, Seen]:
    """A master that has confirmed 900, a member of the SyncStateSet, and a replica that responds no more."""
    replicas = [replica(1, 1000, 900), replica(2, 950, 700), replica(3, None, None)]
    listed = ListedReplicaGroup(
        broker_name="orders-a", master_id=1, master_address=replicas[0].address, master_epoch=2,
        sync_state_set_epoch=4, sync_state_set=[1, 2],
        replicas=[
            ListedReplica(address=one.address, broker_id=number, in_sync=number < 3, alive=number < 3)
            for number, one in enumerate(replicas, 1)
        ],
    )  # fmt: skip
    group = BrokerGroupStatus(
        name="orders", broker_name="orders-a", cluster="c", controller_group="orders", phase=GroupPhase.READY,
        nameservers=[], master_epoch=2, sync_state_set=[1, 2], replicas=replicas,
    )  # fmt: skip
    text = f"brokerName=orders-a\nallAckInSyncStateSet={str(all_ack).lower()}\n"
    file = SimpleNamespace(text=text)
    pods = [SimpleNamespace(pod=SimpleNamespace(name=one.pod, config_files=(file,))) for one in replicas]
    return group, Seen({"orders": [listed]}, pods)


@pytest.mark.parametrize(("all_ack", "end"), [(True, 900), (False, 600)])
def test_the_cut_is_at_the_master_s_confirm_offset(all_ack: bool, end: int) -> None:
    group, seen = seen_group(all_ack=all_ack)
    states = running_group.reported_states(group, seen)  # type: ignore[arg-type]
    assert sorted(states) == ["controllers", "orders-broker-1", "orders-broker-2"]
    later = replica(2, 600, 600)
    group.replicas[1] = later
    again = running_group.reported_states(group, seen)  # type: ignore[arg-type]
    pods = tuple(one.pod for one in group.replicas)
    cut = cut_of(pods, states, dict.fromkeys(pods[:2], EPOCHS), again, "orders-a")
    assert isinstance(cut, GroupCut)
    assert (cut.master, cut.epoch, cut.confirmed) == ("orders-broker-1", 2, 900)
    assert [one.end for one in cut.replicas] == [900, end, 900]
    assert cut.view == {
        "brokerName": "orders-a",
        "masterEpoch": 2,
        "syncStateSet": [1, 2],
        "replicas": [{"brokerId": 1}, {"brokerId": 2}, {"brokerId": 3}],
    }


def ledger_group(*replicas: ReplicaStatus) -> BrokerGroupStatus:
    return BrokerGroupStatus(
        name="ledger", broker_name="ledger-a", cluster="c", controller_group=None, phase=GroupPhase.READY,
        nameservers=[], mode=GroupMode.DLEDGER, master_epoch=2, replicas=list(replicas),
    )  # fmt: skip


def test_the_cut_of_a_dledger_group_is_at_what_each_replica_has_committed() -> None:
    """The third replica is behind, and its log ends beyond what it has committed."""
    group = ledger_group(replica(1, 1000, 900), replica(2, 950, 700), replica(3, 990, 500))
    later = ledger_group(replica(1, 1300, 1200), replica(2, 1300, 1100), replica(3, 990, 600))
    cut = running_group.dledger_cut(group, later)
    assert isinstance(cut, GroupCut)
    assert (cut.master, cut.epoch, cut.confirmed, cut.view) == ("orders-broker-1", 2, 900, None)
    assert [one.end for one in cut.replicas] == [900, 900, 600]


def test_a_dledger_group_has_no_cut_without_a_master_or_a_response() -> None:
    whole = ledger_group(replica(1, 1000, 900), replica(2, 950, 700))
    led_by_none = ledger_group(replica(2, 950, 700), replica(3, 950, 700))
    assert running_group.dledger_cut(led_by_none, whole) == "no replica reports that it is the master"
    silent = ledger_group(replica(1, 1000, 900), replica(2, None, None))
    expected = "orders-broker-2 does not report what it has committed"
    assert running_group.dledger_cut(whole, silent) == expected
    dead = replica(2, None, None)
    dead.pid = None
    cut = running_group.dledger_cut(whole, ledger_group(replica(1, 1000, 900), dead))
    assert isinstance(cut, GroupCut)
    assert [one.end for one in cut.replicas] == [900, 900]


def test_a_directory_in_which_nothing_ran_has_no_groups(tmp_path: Any) -> None:
    assert running_group.group_names(tmp_path / "nowhere") == []

"""The controllers of a replica group of real processes are cut off from all others, and from each other, one
after another. The group goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.chaos import disks, network
from tests.integration.chaos.group import ChaosGroup
from tests.integration.test_controllers_away import Sends, check_group, check_sends, master_of
from tests.support.group_processes import Member
from tests.support.stalls import unless_stalled

AWAY_S = 8.0
BETWEEN_S = 0.3
"""From one controller to the next."""
ALL_S = 20.0
"""For how long messages are sent: some seconds after all links are mended, too."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosGroup]:
    if (lacks := network.missing() or disks.missing()) is not None:
        pytest.skip(f"missing: {lacks}")
    with ChaosGroup(tmp_path_factory.mktemp("cut"), {}, java=False) as made:
        yield made


def links(group: ChaosGroup, controller: Member) -> Iterable[tuple[str, str]]:
    """The links from and to a controller."""
    for other in group.places:
        if other != controller.name:
            yield controller.name, other
            yield other, controller.name


@pytest.mark.parametrize("is_leader_first", [True, False], ids=["the leader first", "the leader last"])
def test_messages_are_sent_while_all_controllers_are_cut_off(
    group: ChaosGroup, tmp_path: Path, *, is_leader_first: bool
) -> None:
    def attempt(_: int) -> None:
        group.wait_in_sync(3)
        master, epoch = master_of(group), group.epoch()
        leads = group.leader()
        sends = Sends(master)
        thread = threading.Thread(target=sends.run, args=(ALL_S,))
        thread.start()
        with ExitStack() as mended:
            for controller in sorted(group.controllers, key=lambda one: (one is leads) != is_leader_first):
                for link in links(group, controller):
                    group.network.cut(*link)
                    mended.callback(group.network.mend, *link)
                time.sleep(BETWEEN_S)
            time.sleep(AWAY_S)
        thread.join()
        check_sends(sends)
        check_group(group, master, epoch, sends)

    unless_stalled(tmp_path, attempt)

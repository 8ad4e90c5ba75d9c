"""Tests that fence and drain take effect, also after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.membership.controlled.replica_control import FILE
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import Command, request
from epochmq_protocol.replica_control import (
    ReplicaControlCode,
    ReplicaControlStateHeader,
    SwitchoverRequestHeader,
)
from epochmq_store.state_files.state_file_io import StateFileDamagedError
from epochmq_store.statuses import RunningFlags
from tests.unit.broker.kit import Bench, running, send_command


async def change_state(bench: Bench, **fields: bool) -> Command:
    peer = bench.peer()
    return await peer.answer(
        peer.send(request(ReplicaControlCode.SET_CONTROL_STATE, ReplicaControlStateHeader(**fields)))
    )


def sent(bench: Bench) -> int:
    return bench.peer().call(send_command("orders")).code


async def test_a_fenced_broker_takes_no_message_until_it_is_unfenced(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        assert sent(bench) == 0
        response = await change_state(bench, fenced=True)
        expected = {"fenced": "true", "drained": "false", "takes": "false", "undispatched": "0"}
        assert (response.code, response.ext) == (0, expected)
        assert sent(bench) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert bench.broker.store.state.flags & RunningFlags.FENCED
    async with running(tmp_path) as bench:
        assert sent(bench) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await change_state(bench)).ext == expected
        assert ((await change_state(bench, fenced=False)).ext or {})["takes"] == "true"
        assert sent(bench) == 0
    async with running(tmp_path) as bench:
        assert sent(bench) == 0


async def test_a_control_state_that_cannot_be_saved_is_not_applied(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        (tmp_path / "config" / f"{FILE}.tmp").mkdir()
        response = await change_state(bench, fenced=True)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "the new state could not be written to the disk" in (response.remark or "")
        assert sent(bench) == 0


async def test_without_controllers_there_is_no_switchover(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        response = await change_state(bench, drained=True)
        assert (response.code, response.remark) == (
            1,
            "this broker cannot be drained: it has no controllers that could elect another master",
        )
        peer = bench.peer()
        opaque = peer.send(request(ReplicaControlCode.SWITCHOVER, SwitchoverRequestHeader(broker_id=2)))
        response = await peer.answer(opaque)
        assert (response.code, response.remark) == (
            1,
            "there are no controllers that could elect another master",
        )
        response = await peer.answer(peer.send(request(ReplicaControlCode.COPY_TABLES)))
        assert (response.code, response.remark) == (
            1,
            "this broker follows no master whose tables it could copy",
        )


async def test_a_drained_replica_reports_it_in_its_handshake(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE).write_text('{"fenced":false,"drained":true}')
    async with running(tmp_path) as bench:
        assert bench.broker.live.current.async_learner
        assert (await change_state(bench, drained=False)).code == 0
        assert not bench.broker.live.current.async_learner


async def test_a_damaged_control_state_prevents_the_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE).write_text('{"fenced":')
    with pytest.raises(StateFileDamagedError, match="truncated"):
        async with running(tmp_path):
            pass

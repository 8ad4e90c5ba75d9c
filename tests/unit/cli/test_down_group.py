"""`epochmq down GROUP` ends one group of a run, if no other group needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq.app import run
from epochmq.exits import ExitCode
from epochmq_operator.local import runtime
from epochmq_operator.local.errors import StateError
from epochmq_operator.local.process import current
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.resources import load_resources

HEAD = "apiVersion: epochmq.io/v1alpha1\n"
QUORUM = HEAD + "kind: ControllerGroup\nmetadata: {name: quorum}\nspec: {replicas: 1}\n"
ORDERS = HEAD + "kind: BrokerGroup\nmetadata: {name: orders}\nspec: {replicas: 2, controllerGroup: quorum}\n"
BILLS = HEAD + "kind: BrokerGroup\nmetadata: {name: bills}\nspec: {replicas: 1}\n"


def directory(tmp_path: Path, *texts: str) -> StateDirectory:
    state = StateDirectory(tmp_path / "run")
    state.create()
    state.write_resources(load_resources([(f"file{n}", text) for n, text in enumerate(texts)]))
    return state


@pytest.mark.parametrize(
    ("texts", "name", "message"),
    [
        ((ORDERS, QUORUM, BILLS), "nothing", "group nothing does not run; running groups: "),
        (
            (ORDERS, QUORUM, BILLS),
            "quorum",
            "quorum are the controllers of orders; end these first: epochmq down",
        ),
        ((BILLS,), "bills", "bills is the only group of this run; to end the run: epochmq down"),
        ((), "bills", "group bills does not run; running groups: none"),
    ],
)
def test_a_group_that_cannot_be_ended_alone_is_left_as_it_is(
    tmp_path: Path, texts: tuple[str, ...], name: str, message: str
) -> None:
    state = directory(tmp_path, *texts)
    before = state.resources()
    with pytest.raises(StateError) as caught:
        runtime.down_group(state, name)
    assert message in str(caught.value)
    assert state.resources() == before


def test_the_other_groups_stay_in_the_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = directory(tmp_path, ORDERS, QUORUM, BILLS)
    monkeypatch.setattr(runtime, "reload", lambda _: None)
    assert runtime.down_group(state, "orders") == []
    assert sorted(group.name for group in state.resources().documents) == ["bills", "quorum"]


def test_a_supervisor_that_does_not_react_keeps_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = directory(tmp_path, ORDERS, QUORUM, BILLS)
    state.write_supervisor(current())

    def fail(_: StateDirectory) -> None:
        raise StateError("the supervisor did not react within 90 s")

    monkeypatch.setattr(runtime, "reload", fail)
    with pytest.raises(StateError):
        runtime.down_group(state, "orders")
    assert "orders" in [group.name for group in state.resources().documents]


def test_where_nothing_runs_no_group_can_be_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["down", "orders", "--state", str(tmp_path / "none")]) == ExitCode.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert "nothing runs in" in output.err
    assert not (tmp_path / "none").exists()

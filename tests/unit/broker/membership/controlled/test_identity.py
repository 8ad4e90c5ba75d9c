"""Tests the identity files: RocketMQ's names and content, complete after any kill, of this broker only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epochmq_broker.membership.controlled.identity import (
    BrokerIdApplication,
    BrokerIdentity,
    parse_application,
    parse_identity,
)
from epochmq_broker.membership.controlled.identity_files import IdentityFiles
from epochmq_protocol.errors import ConfigError

ME = BrokerIdentity("DefaultCluster", "broker-a", 2)
APPLIED = BrokerIdApplication(ME, "127.0.0.1:10911;1700000000000")


@pytest.fixture
def files(tmp_path: Path) -> IdentityFiles:
    return IdentityFiles(tmp_path / "store" / "brokerIdentity")


def test_names_and_content_are_rocketmqs(files: IdentityFiles, tmp_path: Path) -> None:
    """BrokerMetadata and TempBrokerMetadata of 5.3.3."""
    files.save_application(APPLIED)
    temporary = tmp_path / "store" / "brokerIdentity-temp"
    assert temporary.read_text() == "DefaultCluster#broker-a#2#127.0.0.1:10911;1700000000000"
    assert files.load(ME.cluster, ME.name) == (None, APPLIED)
    files.save(ME)
    assert (tmp_path / "store" / "brokerIdentity").read_text() == "DefaultCluster#broker-a#2"
    assert not temporary.exists()
    assert files.load(ME.cluster, ME.name) == (ME, None)


def test_a_new_store_has_no_identity(files: IdentityFiles) -> None:
    assert files.load("c", "g") == (None, None)


def test_a_kill_between_the_two_files_leaves_the_identity(files: IdentityFiles) -> None:
    files.save_application(APPLIED)
    files.path.write_text(ME.encode())
    assert files.load(ME.cluster, ME.name) == (ME, None)


@pytest.mark.parametrize("cut", range(len(APPLIED.encode())))
def test_a_half_written_application_of_rocketmq_is_ignored_or_usable(files: IdentityFiles, cut: int) -> None:
    """RocketMQ writes it in place, so that only the code may be too short. The broker then applies with
    another code, and the controller rejects it as another broker."""
    files.path.parent.mkdir()
    files.temp_path.write_text(APPLIED.encode()[:cut])
    identity, application = files.load(ME.cluster, ME.name)
    assert identity is None
    assert application is None or application.identity == ME


def test_a_failure_to_write_leaves_what_was_there(
    files: IdentityFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save(ME)

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        files.save(BrokerIdentity(ME.cluster, ME.name, 3))
    assert files.load(ME.cluster, ME.name) == (ME, None)


@pytest.mark.parametrize(
    ("cluster", "name", "key"),
    [("Other", "broker-a", "brokerClusterName"), ("DefaultCluster", "broker-b", "brokerName")],
)
@pytest.mark.parametrize("applied", [False, True])
def test_the_store_of_another_broker_is_rejected(
    files: IdentityFiles, cluster: str, name: str, key: str, applied: bool
) -> None:
    if applied:
        files.save_application(APPLIED)
    else:
        files.save(ME)
    with pytest.raises(ConfigError) as caught:
        files.load(cluster, name)
    assert caught.value.key == key
    assert str(files.path.parent) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["x", "a#b", "a#b#c", "a##1", "#b#1", "a#b#-1", "a#b#1#c", "a#b#9223372036854775808"]
)
def test_a_broken_identity_is_not_guessed(files: IdentityFiles, text: str) -> None:
    files.path.parent.mkdir()
    files.path.write_text(text)
    with pytest.raises(ConfigError, match="storePathBrokerIdentity"):
        files.load("a", "b")
    with pytest.raises(ValueError, match="is not"):
        parse_identity(text)


def test_identities_and_applications_round_trip() -> None:
    assert parse_identity(ME.encode()) == ME
    assert parse_application(APPLIED.encode()) == APPLIED

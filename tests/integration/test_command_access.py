"""`epochmq user` and `epochmq acl`, as people type them, at a broker that checks every request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import OurCluster
from tests.support.command import EpochmqCommand
from tests.support.signing import CHECKED, ROOT

OCTET = 99
SHOP = ("shop", "secret-of-the-shop")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    with OurCluster(tmp_path_factory.mktemp("cluster"), octet=OCTET, broker=CHECKED) as started:
        yield started


def command(cluster: OurCluster, home: Path, user: tuple[str, str]) -> EpochmqCommand:
    """The command of one user."""
    name, password = user
    signing = {"EPOCHMQ_ACCESS_KEY": name, "EPOCHMQ_SECRET_KEY": password}
    return EpochmqCommand(cluster.nameserver_address, home, **signing)


def test_a_user_may_do_what_its_acl_allows_until_it_is_deleted(cluster: OurCluster, tmp_path: Path) -> None:
    root, shop = (command(cluster, tmp_path, user) for user in (ROOT, SHOP))
    file = tmp_path / "password"
    file.write_text(SHOP[1])
    file.chmod(0o600)
    root.run("topic", "create", "orders")
    assert "not found" in shop.failure("produce", "orders", "early")
    root.run("user", "create", "shop", "--password-file", str(file))
    listed = root.run("user", "list", "-o", "json")
    assert b'"shop"' in listed.stdout
    assert not any(secret.encode() in listed.stdout for _, secret in (ROOT, SHOP))
    assert "no permission" in shop.failure("produce", "orders", "without a permission")
    root.run("acl", "create", "shop", "--resource", "Topic:orders", "--action", "Pub")
    assert "SEND_OK" in shop.text("produce", "orders", "hello")
    assert "no permission" in shop.failure("user", "list")
    root.run("user", "update", "shop", "--new-password", stdin=b"another one\n")
    assert "check signature failed" in shop.failure("produce", "orders", "with the former password")
    root.run("user", "delete", "shop", "--yes")
    assert [row["user"] for row in root.json("user", "list")] == ["inner", "root"]
    assert root.json("acl", "list") == []

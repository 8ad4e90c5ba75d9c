"""Which cluster a verb administers: options, environment, profiles, in this order."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq.exits import UsageError
from epochmq.verbs.target import NameserverTarget
from tests.support.certificates import Authority

PROFILES = """\
current: prod
profiles:
  prod: {nameserver: "p1:1;p2:2", accessKey: admin, secretKey: s3cret}
  test: {nameserver: "t:3"}
  half: {nameserver: "h:4", accessKey: alone}
  filed: {nameserver: "f:5", accessKey: admin, secretKeyFile: FILE}
  secure: {nameserver: "s:6", tls: true, caFile: AUTHORITY}
"""


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PROFILE", "NAMESERVER", "ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.delenv(f"EPOCHMQ_{name}", raising=False)
    secret = tmp_path / "secret"
    secret.write_text("from-file\n")
    path = tmp_path / "config.yaml"
    authority = tmp_path / "authority.pem"
    authority.write_bytes(Authority("tests").pem)
    path.write_text(PROFILES.replace("AUTHORITY", str(authority)).replace("FILE", str(secret)))
    path.chmod(0o600)
    monkeypatch.setenv("EPOCHMQ_CONFIG", str(path))
    return path


def target(nameserver: str | None = None, profile: str | None = None) -> NameserverTarget:
    return NameserverTarget(None, nameserver, None, profile)


def test_the_options_come_first_then_the_environment_then_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert target().nameservers() == ["p1:1", "p2:2"]
    assert target(profile="test").nameservers() == ["t:3"]
    monkeypatch.setenv("EPOCHMQ_PROFILE", "test")
    assert target().nameservers() == ["t:3"]
    monkeypatch.setenv("EPOCHMQ_NAMESERVER", "e:9")
    assert target().nameservers() == ["e:9"]
    assert target(profile="prod").nameservers() == ["p1:1", "p2:2"]
    assert target("o:8").nameservers() == ["o:8"]


def test_the_user_of_a_profile_signs_only_for_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    user = target().credentials()
    assert user is not None
    assert (user.access_key, user.secret_key) == ("admin", "s3cret")
    assert target("o:8").credentials() is None, "another cluster must not see the secret"
    monkeypatch.setenv("EPOCHMQ_ACCESS_KEY", "me")
    monkeypatch.setenv("EPOCHMQ_SECRET_KEY", "mine")
    user = target().credentials()
    assert user is not None
    assert user.access_key == "me"


def test_a_secret_may_be_in_a_file_of_its_own() -> None:
    user = target(profile="filed").credentials()
    assert user is not None
    assert user.secret_key == "from-file"


def test_half_a_user_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="profile half: give accessKey and secretKey"):
        target(profile="half").credentials()
    monkeypatch.setenv("EPOCHMQ_ACCESS_KEY", "me")
    with pytest.raises(UsageError, match="EPOCHMQ_ACCESS_KEY is set, but not EPOCHMQ_SECRET_KEY"):
        target().credentials()


def test_a_profile_may_use_tls(profiles: Path) -> None:
    assert target().tls() is None
    tls = target(profile="secure").tls()
    assert tls is not None
    assert (tls.trust_path, tls.auth_server) == (str(profiles.with_name("authority.pem")), True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("profiles: [1]", "profiles: a list, expected a mapping of names to profiles"),
        ("profiles: {a: {nameservers: x}}", "profiles.a.nameservers: unknown field, expected nameserver"),
        ("profiles: {a: ", "line 1: not valid YAML"),
        ("\x00", "not valid YAML"),
        ("current: gone\nprofiles: {a: {}}", "profile gone: not in"),
    ],
)
def test_a_wrong_file_is_one_message_that_names_it(profiles: Path, text: str, problem: str) -> None:
    profiles.write_text(text)
    with pytest.raises(UsageError, match=problem):
        target().nameservers()


def test_a_file_with_secrets_that_others_may_read_is_not_used(profiles: Path) -> None:
    profiles.chmod(0o644)
    with pytest.raises(UsageError, match=f"chmod 600 {profiles}"):
        target().nameservers()


def test_an_unknown_profile_is_an_error_even_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="it has: filed, half, prod, secure, test"):
        target(profile="nix").nameservers()
    monkeypatch.setenv("EPOCHMQ_CONFIG", "/nowhere/config.yaml")
    with pytest.raises(UsageError, match=r"there is no file /nowhere/config\.yaml"):
        target(profile="nix").nameservers()


def test_an_address_of_the_environment_is_named_in_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHMQ_NAMESERVER", "nonsense")
    with pytest.raises(UsageError, match="EPOCHMQ_NAMESERVER nonsense: expected HOST:PORT"):
        target().nameservers()

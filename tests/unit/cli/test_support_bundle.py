"""Tests `epochmq support-bundle`: what is in it, and above all what is not."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from epochmq.app import run
from epochmq.verbs.secret_removal import SecretRemoval

SECRETS = {
    "member-secret": "0f" * 32,
    "admin-token": "tok-en_of-the-sidecar",
    "user in the broker's settings": 'root "secret" \\1',
    "the broker's own user": "inner-secret",
    "user in a file of secrets": "secret-in-a-file",
    "user of the broker's tables": "shop-secret",
    "password of a key": "keystore-password",
    "token in the resources": "token-of-the-resource",
    "password in a log": "typed-by-a-person",
    "bearer in a log": "eyJhbGciOiJI.abc-_",
    "private key": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
}


def text_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory as `up` leaves it, with a secret of each kind, and each of them in a log."""
    state = tmp_path / "state"
    for name in ("lock", "supervisor.log"):
        text_file(state / name, "")
    for name in ("member-secret", "admin-token"):
        text_file(state / name, SECRETS[name] + "\n")
    text_file(tmp_path / "secrets.conf", f"accessPassword={SECRETS['user in a file of secrets']}\n")
    user = json.dumps({"username": "root", "password": SECRETS["user in the broker's settings"]})
    inner = json.dumps({"accessKey": "inner", "secretKey": SECRETS["the broker's own user"]})
    settings = [
        "brokerName=orders-a",
        f"initAuthenticationUser={user}",
        f"innerClientAuthenticationCredentials={inner}",
        f"tls.server.keyPassword={SECRETS['password of a key']}",
        f"authSecretsPath={tmp_path / 'secrets.conf'}",
        f"memberSecretPath={state / 'member-secret'}",
    ]
    text_file(state / "config" / "orders-broker-0" / "broker.conf", "\n".join(settings) + "\n")
    key = f"-----BEGIN PRIVATE KEY-----\n{SECRETS['private key']}\n-----END PRIVATE KEY-----\n"
    text_file(state / "config" / "orders-broker-0" / "tls.pem", key)
    token = SECRETS["token in the resources"]
    text_file(state / "options.json", json.dumps({"admin": False, "accessToken": token}))
    users = [{"username": "shop", "password": SECRETS["user of the broker's tables"]}]
    volume = state / "volumes" / "orders-broker-0" / "store"
    text_file(volume / "config" / "auth.json", json.dumps({"users": users, "acls": []}))
    lines = [f"line {number}" for number in range(50)]
    lines += [f"{what}: seen {secret}" for what, secret in SECRETS.items() if not what.endswith("in a log")]
    lines.append(f"request rejected: {json.dumps({'password': SECRETS['password in a log']})}")
    lines.append(f"password={SECRETS['password in a log']}, user=shop")
    lines.append(f"Authorization: Bearer {SECRETS['bearer in a log']}")
    lines = [line for line in lines if SECRETS["private key"] not in line]
    text_file(state / "logs" / "orders-broker-0.log", "\n".join(lines) + "\n")
    return state


def bundle(state: Path, file: Path, *options: str) -> dict[str, str]:
    """The texts of a new bundle by their names."""
    assert run(["support-bundle", str(file), "--state", str(state), *options]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        texts = {}
        for member in archive.getmembers():
            folder, _, name = member.name.partition("/")
            content = archive.extractfile(member)
            assert folder == "help"
            assert content is not None
            texts[name] = content.read().decode()
        return texts


@pytest.mark.parametrize("what", SECRETS)
def test_a_secret_is_in_no_file(what: str, state: Path, tmp_path: Path) -> None:
    secret = SECRETS[what]
    forms = {secret, json.dumps(secret)[1:-1]}
    for name, text in bundle(state, tmp_path / "help.tar.gz").items():
        assert not [form for form in forms if form in text], (name, text)


def test_what_helps_is_kept(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bundle(state, tmp_path / "help.tgz")
    assert json.loads(found["versions.json"])["epochmq"]
    settings = found["config/orders-broker-0/broker.conf"].splitlines()
    assert "brokerName=orders-a" in settings
    assert "initAuthenticationUser=***" in settings
    log = found["logs/orders-broker-0.log"]
    assert "line 0\n" in log
    assert "the broker's own user: seen ***\n" in log
    assert "password=***, user=shop\n" in log
    assert "tls.pem: it has a private key" in found["omitted.txt"]
    assert {"status.json", "options.json", "supervisor.log"} <= set(found)
    assert not {"member-secret", "admin-token"} & set(found)
    assert not any(name.startswith("volumes") for name in found)
    output = capsys.readouterr()
    assert output.out.splitlines() == list(found)
    assert "look through them before you send it" in output.err


def test_only_the_last_lines_of_a_log_are_taken(state: Path, tmp_path: Path) -> None:
    found = bundle(state, tmp_path / "help.tar.gz", "--lines", "1")
    assert found["logs/orders-broker-0.log"] == "Authorization: Bearer ***\n"


def test_a_damaged_state_file_does_not_prevent_the_bundle(state: Path, tmp_path: Path) -> None:
    (state / "network.json").write_text("{damaged")
    (state / "resources.json").write_bytes(b"\xff\xfe")
    found = bundle(state, tmp_path / "help.tar.gz")
    assert found["network.json"] == "{damaged"
    assert "resources.json: " in found["omitted.txt"]
    assert "status.json: " in found["omitted.txt"]


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("help.zip", "expected a name that ends with .tar.gz or .tgz"),
        ("there.tar.gz", "there.tar.gz exists"),
        ("nowhere/help.tar.gz", "cannot be written: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_named(
    file: str, problem: str, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there.tar.gz").write_text("mine")
    assert run(["support-bundle", str(tmp_path / file), "--state", str(state)]) == 2
    assert problem in capsys.readouterr().err
    assert (tmp_path / "there.tar.gz").read_text() == "mine"


def test_a_directory_without_a_run_has_nothing_to_pack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["support-bundle", str(tmp_path / "a.tgz"), "--state", str(tmp_path / "nowhere")]) == 3
    assert "--state DIR" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('{"secretKey": "a\\"b"}', '{"secretKey": ***}'),
        ("--password-file x", "--password-file x"),
        ("adminToken = abc; next", "adminToken = ***; next"),
        ("authorization: bearer a.b-c", "authorization: bearer ***"),
        ("the token expired", "the token expired"),
        ("Signature=aGVsbG8=", "Signature=***"),
        ("known-one and known", "*** and ***"),
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str, clean: str) -> None:
    assert SecretRemoval(["known", "known-one", "", "true", "a"]).clean(text) == clean

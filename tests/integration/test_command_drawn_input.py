"""Inputs that a reader of the pages about the command and the resources drew, who did not know the code: each
gets one message that names what is wrong, and an exit code.

The command runs in this process, so that the many lines take seconds. `test_command_bad_input.py` has those
that need a shell and a process of their own."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from epochmq.app import run
from epochmq.main import is_process
from tests.support.cluster import OurCluster
from tests.support.command import EpochmqCommand

OCTET = 98
Result = tuple[int, str]
Type = Callable[[str], Result]
LONG = "x" * 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    with OurCluster(tmp_path_factory.mktemp("cluster"), octet=OCTET) as started:
        made = EpochmqCommand(started.nameserver_address, tmp_path_factory.mktemp("home"))
        made.run("topic", "create", "orders", "--queues", "1")
        made.run("produce", "orders", "hello")
        yield started


@pytest.fixture
def type_line(
    cluster: OurCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Type]:
    """Runs a line after `epochmq`, with an empty input and an empty home; returns the exit code and what it
    prints to the standard error."""
    for name in [name for name in os.environ if name.startswith(("EPOCHMQ_", "XDG_CONFIG"))]:
        if name not in ("EPOCHMQ_CACHE", "EPOCHMQ_SEED"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EPOCHMQ_NAMESERVER", cluster.nameserver_address)
    monkeypatch.chdir(tmp_path)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)

        def type_(line: str) -> Result:
            arguments = shlex.split(line)
            assert not is_process(arguments)
            code = run(arguments)
            error = capsys.readouterr().err
            assert "Traceback" not in error
            assert "internal error" not in error
            return code, error

        yield type_


TARGETS = [
    ("--nameserver h:1 topic list", 2, "No such option: --nameserver"),
    ("topic list --nameserver nowhere", 2, "--nameserver nowhere: expected HOST:PORT"),
    ("topic list --nameserver 127.0.0.1:99999", 2, "--nameserver 127.0.0.1:99999: expected HOST:PORT"),
    ("topic list --nameserver 127.0.0.1:0", 2, "--nameserver 127.0.0.1:0: expected HOST:PORT"),
    ("topic list --nameserver :9876", 2, "--nameserver :9876: expected HOST:PORT"),
    ("topic list --nameserver ''", 2, "--nameserver: expected HOST:PORT"),
    ("topic list --nameserver ';'", 2, "--nameserver: expected HOST:PORT"),
    ("topic list --nameserver 127.0.0.1:1", 1, "no connection to 127.0.0.1:1"),
    ("topic list --profile nowhere", 2, "profile nowhere: there is no file"),
    ("topic list --state /nowhere", 2, "nothing runs in /nowhere; start something with"),
    ("topic list --state /nowhere --nameserver h:1", 2, "give --state or --nameserver, not both"),
    ("topic list -o xml", 2, "'--output' / '-o': 'xml', expected table, wide, json, yaml or name"),
    ("topic list -o", 2, "Option '-o' requires an argument"),
    ("produce orders hello -o wide", 2, "'wide', expected text, table or json"),
    ("completion tcl", 2, "'tcl', expected bash, zsh or fish"),
    ("cluster list --timeout nan", 2, "'--timeout': 'nan', expected at least 0.1"),
    ("cluster list --timeout x", 2, "'--timeout': 'x', expected a number"),
]
VERBS = [
    ("frobnicate", 2, "No such command 'frobnicate'"),
    ("tpoic list", 2, "Did you mean 'topic'?"),
    ("topic", 2, "Create, show, change and delete topics."),
    ("topic lst", 2, "Did you mean 'list'?"),
    ("topic list extra", 2, "Got unexpected extra argument(s) (extra)"),
    ("produce", 2, "Missing argument 'TOPIC'"),
    ("completion", 2, "Missing argument 'bash|zsh|fish'"),
]
TOPICS = [
    ("topic create", 2, "Missing argument 'TOPIC'"),
    ("topic create 'a b'", 2, "TOPIC 'a b': expected 1 to 127 letters, digits"),
    ("topic create ''", 2, "TOPIC '': expected 1 to 127 letters, digits"),
    ("topic create größe", 2, "TOPIC 'größe': expected 1 to 127 letters, digits"),
    (f"topic create {LONG}", 2, "expected 1 to 127 letters, digits"),
    ("topic create orders", 1, "topic orders exists; change it with `epochmq topic alter orders`"),
    ("topic create new --queues 0", 2, "'--queues': '0', expected at least 1"),
    ("topic create new --queues -1", 2, "'--queues': '-1', expected at least 1"),
    ("topic create new --queues many", 2, "'--queues': 'many', expected a whole number"),
    ("topic create new --queues 1.5", 2, "'--queues': '1.5', expected a whole number"),
    ("topic create new --queues 99999999", 2, "'--queues': '99999999', expected at most 65535"),
    ("topic create new --type KING", 1, "NORMAL, FIFO, DELAY"),
    ("topic create new --type KING", 1, "in +message.type=KING"),
    ("topic create new --attribute cleanup.policy", 2, "--attribute cleanup.policy: expected KEY=VALUE"),
    ("topic create new --attribute cleanup.policy=NEVER", 1, "in +cleanup.policy=NEVER"),
    ("topic create new --attribute no.such=1", 1, "unsupported key: no.such"),
    ("topic create new --attribute a=1 --attribute a=2", 2, "--attribute a=2: a is given twice"),
    ("topic create new --read-queues 1 --write-queues 5", 2, "expected --read-queues of at least 5"),
    ("topic create new --broker nowhere", 1, "broker nowhere is unknown; there is: "),
    ("topic create new --cluster nowhere", 1, "cluster nowhere is unknown; there is: "),
    ("topic create new --perm x", 2, "--perm x: expected r, w or rw"),
    ("topic describe nowhere", 1, "topic nowhere does not exist; `epochmq topic list` shows those that do"),
    ("topic alter nowhere --perm r", 1, "topic nowhere does not exist"),
    ("topic alter orders", 2, "nothing to change: give --queues, --perm"),
    ("topic alter orders --write-queues 0", 2, "'--write-queues': '0', expected at least 1"),
    ("topic alter orders --write-queues 5", 2, "expected --read-queues of at least 5"),
    ("topic delete nowhere --yes", 1, "topic nowhere does not exist"),
    ("topic delete orders", 2, "The input is no terminal: repeat the command with --yes"),
]
GROUPS = [
    ("group list extra", 2, "Got unexpected extra argument(s) (extra)"),
    ("group describe nowhere", 1, "consumer group nowhere does not exist; `epochmq group list` shows"),
    ("group lag nowhere --watch", 1, "consumer group nowhere does not exist"),
    ("group delete nowhere --yes", 1, "consumer group nowhere does not exist"),
    ("group reset billing", 2, "Missing option '--topic'"),
    (
        "group reset billing --topic orders",
        2,
        "give one of --to earliest|latest, --time, --offset and --delta",
    ),
    ("group reset billing --topic orders --to middle", 2, "--to middle: expected earliest or latest"),
    ("group reset billing --topic orders --to latest --offset 3", 2, "give one of --to earliest|latest"),
    ("group reset billing --topic nowhere --to latest --yes", 1, "topic nowhere does not exist"),
    ("group reset billing --topic orders --time yesterday", 2, "--time yesterday: expected a time such as"),
    ("group reset billing --topic orders --time 2030-13-45", 2, "--time 2030-13-45: expected a time such as"),
    ("group reset billing --topic orders --offset -3", 2, "'--offset': '-3', expected at least 0"),
    ("group reset billing --topic orders --delta x", 2, "'--delta': 'x', expected a whole number"),
    (
        "group reset billing --topic orders --queue orders --to latest",
        2,
        "--queue orders: expected BROKER:NUMBER",
    ),
    (
        "dlq resend billing --id nonsense --yes",
        1,
        "group billing has no dead letter nonsense; see `epochmq dlq list",
    ),
    ("dlq resend billing --count -1 --yes", 2, "'-1', expected at least 1"),
]
BROKERS = [
    ("controller list 127.0.0.1:1", 1, "no controller leads: no connection to 127.0.0.1:1"),
    ("controller list nonsense", 2, "ADDRESS nonsense: expected HOST:PORT of a controller"),
    ("broker describe nowhere", 1, "broker nowhere is unknown; there is: "),
    ("config get noSuchKey", 2, "KEY noSuchKey: no broker has such a setting"),
    ("config set", 2, "Missing argument 'KEY=VALUE...'"),
    ("config set flushDiskType", 2, "KEY=VALUE flushDiskType: expected KEY=VALUE"),
    ("config set =1", 2, "KEY=VALUE =1: expected KEY=VALUE"),
    ("config set noSuchKey=1 --yes", 2, "KEY noSuchKey: no broker has such a setting"),
    ("config set maxMessageSize=1 maxMessageSize=2", 2, "maxMessageSize is given twice, expected one value"),
    ("config set flushDiskType=SYNC_FLUSH", 2, "Change flushDiskType of 1 broker? The input is no terminal"),
    (
        "config set flushDiskType=NEVER --yes",
        1,
        "flushDiskType=NEVER: expected one of ASYNC_FLUSH, SYNC_FLUSH",
    ),
    ("config set brokerName=x --yes", 1, "the key cannot change while the broker runs"),
    ("config set brokerPermission=rw --yes", 1, "brokerPermission=rw: expected a whole number from 0 to 7"),
    ("config set flushDiskType=SYNC_FLUSH --broker nowhere", 1, "broker nowhere is unknown"),
    ("top --interval 0 --once", 2, "'--interval': '0', expected at least 0.5"),
    ("top --interval nan", 2, "'--interval': 'nan', expected at least 0.5"),
    ("bench produce measured --duration 0", 2, "'--duration': '0', expected at least 0.1"),
    ("bench produce measured --size -1", 2, "--size -1: expected 1 to 4194304 bytes"),
    ("bench produce measured --rate 0", 2, "--rate 0.0: expected a number of messages a second above 0"),
    ("bench produce measured --in-flight 0", 2, "--in-flight 0: expected 1 to 1024"),
    ("bench consume measured --count 0", 2, "'0', expected at least 1"),
    ("bench consume measured --count 5 --group 'a b'", 2, "GROUP 'a b': expected letters, digits"),
]
ACCESS = [
    ("user create", 2, "Missing argument 'USER'"),
    ("user create 'a b'", 2, "USER 'a b': expected a name without spaces"),
    ("user list", 1, "Does it keep users and ACLs? They need authenticationMetadataProvider"),
    ("user update shop", 2, "nothing to change: give --type, --status"),
    ("user update shop --status maybe", 2, "--status maybe: expected enable or disable"),
    ("acl create shop", 2, "Missing option '--resource'"),
    ("acl create shop --resource orders --action Pub", 2, "--resource orders: expected Topic:NAME"),
    ("acl create shop --resource Topic: --action Pub", 2, "--resource Topic:: expected Topic:NAME"),
    ("acl create shop --resource Topic:orders --action Fly", 2, "--action Fly: expected Pub or Sub"),
    (
        "acl create shop --resource Topic:orders --action Pub --source-ip 10.0.0.0/99",
        2,
        "--source-ip 10.0.0.0/99: expected an address such as",
    ),
]
SENDING = [
    ("produce 'a b' hello", 2, "TOPIC 'a b': expected 1 to 127 letters"),
    ("produce orders ''", 2, "the message is empty"),
    ("produce orders hello --tag 'red || blue'", 2, "--tag red || blue: expected one tag"),
    ("produce orders hello --tag ''", 2, "expected one tag"),
    ("produce orders hello --tag 'a\x02b'", 2, "--tag 'a\\x02b': expected no characters U+0001 and U+0002"),
    ("produce orders hello --key 'a\x01b'", 2, "--key 'a\\x01b': expected no characters U+0001 and U+0002"),
    ("produce orders hello --property 'a=\x01b'", 2, "--property 'a=\\x01b': expected no characters"),
    ("produce orders hello --property =x", 2, "--property =x: expected KEY=VALUE"),
    ("produce orders hello --property a=1 --property a=2", 2, "--property a=2: a is given twice"),
    ("produce orders hello --delay -5m", 2, "--delay -5m: expected a span such as"),
    ("produce orders hello --delay 99999d", 1, "should not be bigger than the max delay"),
    ("produce orders hello --at 15m", 2, "--at 15m: expected a time such as 2030-01-31T14:00"),
    ("produce orders hello --at nonsense", 2, "--at nonsense: expected a time such as 2030-01-31T14:00"),
    ("produce orders hello --priority x", 2, "'--priority': 'x', expected a whole number"),
    ("produce orders hello --priority 99999999999", 2, "expected at most 2147483647"),
    ("produce orders hello --timeout 0", 2, "'--timeout': '0', expected at least 0.1"),
    ("produce orders --file /", 2, "--file / cannot be read: Is a directory"),
    ("consume orders --count 0", 2, "'0', expected at least 1"),
    ("consume orders --timeout -1", 2, "'--timeout': '-1', expected at least 0.1"),
    ("consume orders --group 'a b'", 2, "--group a b: expected at most 255 letters"),
    ("consume orders --tags ''", 2, "expected '*', or tags separated by '||'"),
    ("consume nowhere --timeout 0.1", 1, "no message arrived for 0.1 s; 0 printed so far"),
]
MESSAGES = [
    ("message peek nowhere", 1, "topic nowhere does not exist"),
    ("message peek orders --queue orders:3", 1, "topic orders has no readable queue orders:3"),
    ("message peek orders --queue 3", 2, "--queue 3: expected BROKER:NUMBER, for example broker-a:0"),
    ("message peek orders --offset -1", 2, "'--offset': '-1', expected at least 0"),
    ("message peek orders --time nonsense", 2, "--time nonsense: expected a time such as"),
    ("message peek orders --time 1h --until 2h", 2, "--until is not after --time"),
    ("message peek orders --tag '|| ||'", 2, "--tag || ||: expected '*', or tags separated by '||'"),
    ("message peek orders --tag a --sql 'a > 1'", 2, "give --tag or --sql, not both"),
    ("message peek orders --sql 'a > 1'", 1, "does not support consumer to filter message by SQL92"),
    ("message peek orders --key a --offset 3", 2, "give --key, or --queue and --offset, not both"),
    ("message peek orders -c 0", 2, "'0', expected at least 1"),
    ("message peek orders -c 99999999999", 2, "'99999999999', expected at most 10000"),
    ("message get ''", 2, "ID: the id is empty"),
    ("message get nonsense", 1, "message id 'nonsense': expected 32 or 56 hexadecimal digits"),
    (
        "message get 7F0000010B6C0F2A7E3D5C1B9A870001",
        1,
        "give --topic TOPIC if it is the unique key of a producer",
    ),
    ("message get 7F0000010B6C0F2A7E3D5C1B9A870001 --topic orders", 1, "it names no port of a broker"),
    ("message export nowhere --file x.jsonl", 1, "topic nowhere does not exist"),
    (
        "message export orders --file /nowhere/x.jsonl",
        2,
        "--file /nowhere/x.jsonl cannot be written: No such",
    ),
    ("message export orders --file /dev/full", 2, "--file /dev/full: it exists; give another name"),
    ("message export orders --time 1h --until 2h", 2, "--until is not after --time"),
]
RUNS = [
    ("up", 2, "Missing option '--file' / '-f'"),
    ("up -f /nowhere", 2, "/nowhere cannot be read: No such file or directory"),
    ("down nowhere", 2, "nothing runs in .epochmq; start something with: epochmq up -f FILE"),
    ("restart nowhere", 1, "nothing runs in .epochmq"),
    ("logs orders/x", 3, "no pod has run in .epochmq"),
    ("status --state /etc", 3, "nothing runs in /etc"),
    ("promote orders/99", 1, "nothing runs in .epochmq"),
    ("backup orders", 2, "Missing option '--to'"),
    ("backup list /nowhere", 3, "/nowhere has no backup; take one with: epochmq backup GROUP --to URL"),
    ("backup prune /nowhere --keep 0 --yes", 2, "'--keep': '0', expected at least 1"),
    ("restore /nowhere --to new", 1, "/nowhere has no backup"),
    ("upgrade-log /nowhere", 2, "/nowhere is no file, expected the configuration of a broker"),
    ("validate", 2, "Missing argument 'FILE...'"),
    ("validate /", 2, "/ cannot be read: Is a directory"),
    ("validate /dev/null", 2, "no documents, expected at least one BrokerGroup or ControllerGroup"),
    ("audit /nowhere", 2, "/nowhere: no such directory"),
    ("audit /etc", 2, "/etc: no broker's store, expected a directory with commitlog"),
    ("audit h=/etc /usr", 2, "/etc, /usr: no broker's store, expected a directory with commitlog"),
]
LINES = [*TARGETS, *VERBS, *TOPICS, *GROUPS, *BROKERS, *ACCESS, *SENDING, *MESSAGES, *RUNS]


@pytest.mark.parametrize(("line", "code", "message"), LINES, ids=lambda value: str(value)[:40])
def test_a_line_gets_one_message_and_an_exit_code(
    type_line: Type, line: str, code: int, message: str
) -> None:
    if line.startswith("audit"):
        pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
    found, error = type_line(line)
    assert message in error
    assert found == code


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("current: [", "not valid YAML"),
        ("- a", "the file: a list, expected a mapping with profiles and current"),
        ("profiles: 7", "profiles: 7, expected a mapping of names to profiles"),
        ("profiles: {a: 7}", "profiles.a: 7, expected a mapping with nameserver, state"),
        ("profiles: {7: {nameserver: 'h:1'}}", "the name 7, expected text; put it in quotes"),
        ("profiles: {a: {nameserver: 7}}", "profiles.a.nameserver: 7, expected text"),
        ("profiles: {a: {nameservers: 'h:1'}}", "profiles.a.nameservers: unknown field, expected nameserver"),
        ("profiles: {a: {nameserver: 'h:1', tls: maybe}}", "profiles.a.tls: a text, expected true or false"),
        (
            "profiles: {a: {nameserver: 'h:1', secretKey: [s3cret]}}",
            "profiles.a.secretKey: a list, expected text",
        ),
        ("current: 7", "current: 7, expected text"),
        ("profile: {}", "profile: unknown field, expected profiles and current"),
        ("", "profile a: not in"),
        ("profiles: {b: {nameserver: 'h:1'}}", "it has: b"),
        ("profiles: {a: {nameserver: nowhere}}", "profile a: nameserver nowhere: expected HOST:PORT"),
        (
            "profiles: {a: {nameserver: 'h:1', accessKey: u, secretKeyFile: /nowhere}}",
            "profile a: secretKeyFile /nowhere cannot be read",
        ),
        ("profiles: {a: {nameserver: 'h:1', accessKey: u}}", "give accessKey and secretKey"),
        (
            "profiles: {a: {nameserver: 'h:1', tls: true, caFile: /nowhere}}",
            "profile a: caFile /nowhere: expected PEM certificates (No such file or directory)",
        ),
        (
            "profiles: {a: {nameserver: 'h:1', tls: true, caFile: /dev/null}}",
            "profile a: caFile /dev/null: expected PEM certificates (it has none)",
        ),
        ("#" * 1_048_577, "more than 1048576 bytes, expected a file with profiles"),
    ],
    ids=lambda value: value[:40],
)
def test_a_fault_of_the_profiles_is_named(
    type_line: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(text)
    monkeypatch.setenv("EPOCHMQ_CONFIG", str(path))
    code, error = type_line("topic list --profile a")
    assert message in error
    assert "s3cret" not in error
    assert code == 2


GROUP = "apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroup\nmetadata: {name: a}\nspec: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\t", "x.yaml:1: not YAML"),
        ("[" * 100_000, "x.yaml:1: not YAML: nested too deeply"),
        ("7", "7, expected a resource: a mapping with apiVersion, kind, …"),
        ("kind: BrokerGroup", "apiVersion: missing, expected epochmq.io/v1alpha1"),
        ("kind: Broker", 'kind: "Broker", expected BrokerGroup or ControllerGroup'),
        (
            GROUP + "{replicas: 0}",
            "x.yaml:4: document 1 (BrokerGroup a): spec.replicas: 0, expected a whole number",
        ),
        (GROUP + "{replicas: '1'}", 'spec.replicas: "1", expected a whole number from 1 to 9'),
        (GROUP + "{replicas: 2, mode: DLedger}", "spec.replicas: 2, expected 1, 3 or 5 in the mode DLedger"),
        (
            GROUP + "{replicas: 1, minInSyncReplicas: 3}",
            "spec.minInSyncReplicas: 3, expected at most spec.replicas",
        ),
        (GROUP + "{replicas: 1, replica: 2}", "spec.replica"),
        (
            GROUP + "{replicas: 1, storage: {size: 10}}",
            "spec.storage.size: 10, expected a quantity with a unit",
        ),
        (
            GROUP + "{replicas: 3, controllers: {replicas: 2}}",
            "spec.controllers.replicas: 2, expected 1, 3 or 5",
        ),
        (GROUP + "{replicas: 1, config: {listenPort: 1}}", "spec.config.listenPort: 1, expected no such key"),
        (
            GROUP + "\n  replicas: 1\n  config:\n    deleteWhen: 99\n",
            "x.yaml:7: document 1 (BrokerGroup a): spec.config.deleteWhen: 99, expected hours 00 to 23",
        ),
        (
            GROUP.replace("BrokerGroup", "Topic") + "{brokerGroups: [x]}",
            "Topic is not supported: it is for Kubernetes; create topics with: epochmq topic create",
        ),
        (
            GROUP.replace("BrokerGroup", "User") + "{brokerGroups: [x]}",
            "User is not supported: it is for Kubernetes; create users with: epochmq user create",
        ),
    ],
    ids=lambda value: value[-40:],
)
def test_a_fault_of_a_resource_is_named_with_file_and_line(
    type_line: Type, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "x.yaml").write_text(text)
    code, error = type_line("validate x.yaml")
    assert message in error
    assert code == 2


def test_there_are_more_than_a_hundred_lines() -> None:
    assert len({line for line, _, _ in LINES}) > 140

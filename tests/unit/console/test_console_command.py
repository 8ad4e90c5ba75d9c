"""`epochmq console`: which addresses and tokens it accepts, what it reads, and who imports it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from epochmq.app import run
from epochmq.client.admin import AdminClient
from epochmq.client.stored_message_reader import StoredMessageReader
from epochmq.console import web_app
from epochmq.console.cluster_facts import LiveClusterFacts
from epochmq.console.listener import ListenAddress, parse_listen
from epochmq.exits import UsageError
from epochmq.verbs.target import NameserverTarget
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from tests.support.net import free_port, loopback
from tests.unit.cli.fake_brokers import FakeBrokers
from tests.unit.cli.test_overviews import runtime

PATIENT_S = 60.0


def facts_at(nameserver: str) -> LiveClusterFacts:
    return LiveClusterFacts(NameserverTarget(None, nameserver, None), PATIENT_S)


@pytest.mark.parametrize("listen", ["0.0.0.0:9888", "[::]:0", "10.1.2.3:80", "console.example:9888"])
def test_another_address_than_loopback_needs_a_token(capsys: pytest.CaptureFixture[str], listen: str) -> None:
    assert run(["console", "--listen", listen, "--nameserver", "127.0.0.1:9876"]) == 2
    assert "--token-file" in capsys.readouterr().err


def test_changes_need_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", "--allow-changes", "--nameserver", "127.0.0.1:9876"]) == 2
    assert "--allow-changes needs --token-file FILE" in capsys.readouterr().err


def test_a_token_must_be_long_enough(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("short\n")
    assert run(["console", "--token-file", str(file), "--nameserver", "127.0.0.1:9876"]) == 2
    error = capsys.readouterr().err
    assert f"--token-file {file}: expected tokens of at least" in error


@pytest.mark.parametrize("listen", ["9888", ":9888", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"])
def test_a_wrong_address_is_named(listen: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        parse_listen(listen)


def test_an_address_of_ipv6_has_brackets() -> None:
    assert parse_listen("[::1]:0") == ListenAddress("::1", 0)
    assert parse_listen("[::1]:0").url(7) == "http://[::1]:7/"


def test_a_wrong_nameserver_is_rejected_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", "--nameserver", "nothing"]) == 2
    assert "expected HOST:PORT" in capsys.readouterr().err


@pytest.mark.long
def test_no_process_of_a_pod_imports_the_console() -> None:
    code = (
        "import sys, epochmq.main, epochmq.processes, epochmq_broker.main, epochmq_sidecar.main\n"
        "import epochmq_controller.controller.main, epochmq_controller.nameserver.main\n"
        "found = [name for name in sys.modules if name.startswith(('epochmq.console', 'jinja2'))]\n"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_file_of_the_pages_is_in_the_package() -> None:
    """The wheel holds what stands in the package; nothing of the console may be outside."""
    assert (web_app.FILES / "static" / "console.css").is_file()
    assert (web_app.FILES / "templates" / "base.html").is_file()
    assert web_app.FILES.name == "console"
    assert web_app.FILES.parent.name == "epochmq"


async def test_the_overview_of_a_cluster_names_the_broker_that_is_away() -> None:
    host = loopback(55)
    absent = f"{host}:{free_port(host)}"
    with FakeBrokers({("b", 0): runtime("4.5")}, {("d", 1): absent}) as fake:
        view = await facts_at(fake.options[1]).overview()
    (card,) = view.cards
    assert (card.name, card.state) == ("c", "no master in d")
    texts = [cell.text for row in view.tables[0].rows for cell in row]
    assert "serves" in texts
    assert any(absent in text for text in texts)


async def test_the_state_directory_may_be_empty(tmp_path: Path) -> None:
    facts = LiveClusterFacts(NameserverTarget(tmp_path, None, None), PATIENT_S)
    with pytest.raises(UsageError, match="nothing runs in"):
        await facts.overview()
    with pytest.raises(UsageError, match="nothing runs in"):
        await facts.topics(everything=False, find="", page=1)


READS: dict[str, Callable[[LiveClusterFacts], Awaitable[object]]] = {
    "overview": lambda facts: facts.overview(),
    "topics": lambda facts: facts.topics(everything=True, find="", page=1),
    "groups": lambda facts: facts.groups(everything=True),
}


@pytest.mark.parametrize("read", READS)
async def test_a_cluster_without_brokers_is_named(read: str) -> None:
    with FakeBrokers({}) as fake, pytest.raises(RequestError, match="no broker is registered") as caught:
        await READS[read](facts_at(fake.options[1]))
    assert caught.value.code == ResponseCode.BROKER_NOT_EXIST


@pytest.mark.parametrize("read", READS)
async def test_a_nameserver_that_is_away_is_named(read: str) -> None:
    host = loopback(55)
    absent = f"{host}:{free_port(host)}"
    with pytest.raises(EpochMQError, match=absent):
        await READS[read](facts_at(absent))


async def test_an_id_does_not_lead_to_an_address_outside_the_cluster() -> None:
    async with AdminClient(["127.0.0.1:9876"]) as client:
        with pytest.raises(RequestError, match=r"10\.0\.0\.1:80, which is no broker of this cluster"):
            await StoredMessageReader(client).by_offset_id(
                "0A000001" + "00000050" + "0" * 16, brokers={"127.0.0.1:10911"}
            )


@pytest.mark.parametrize("name", ["", "a b", "<b>", "../x", "x" * 300])
async def test_a_name_that_no_broker_accepts_is_not_asked_for(name: str) -> None:
    facts = facts_at("127.0.0.1:1")
    with pytest.raises(UsageError):
        await facts.topic(name)
    with pytest.raises(UsageError):
        await facts.group(name)

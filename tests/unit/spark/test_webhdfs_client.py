"""Tests the client of WebHDFS against a server that answers as a NameNode and a DataNode do, and as broken
ones do. `tests/spark/test_hdfs.py` has a real cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import files, webhdfs_client

Answer = tuple[int, dict[str, str], bytes]
Start = Callable[[Callable[[str], Answer | None]], str]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server that answers by a function of the path; None closes the connection."""
    servers: list[ThreadingHTTPServer] = []

    def begin(answer: Callable[[str], Answer | None]) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                """Does not log."""

            def do_GET(self) -> None:
                """Answers."""
                given = answer(self.path)
                if given is None:
                    self.close_connection = True
                    return
                status, headers, body = given
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = False  # so that `server_close` waits for them
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_address[1]}"

    yield begin
    webhdfs_client.close_connections()  # which ends the server's threads
    for server in servers:
        server.shutdown()
        server.server_close()


def remote_error(status: int, name: str, message: str) -> Answer:
    return status, {}, json.dumps({"RemoteException": {"exception": name, "message": message}}).encode()


def test_a_range_is_read_from_the_data_node_that_the_name_node_names(start: Start) -> None:
    asked: list[str] = []

    def data_node(path: str) -> Answer:
        asked.append(path)
        return 200, {}, b"bytes"

    node = start(data_node)
    name_node = start(lambda path: (307, {"Location": f"http://{node}{path}&token=1"}, b""))
    location = files.join(f"webhdfs://{name_node}/stores?user.name=me", "%RETRY%a", "0")
    assert bytes(files.read_range(location, 7, 12)) == b"bytes"
    assert asked == ["/webhdfs/v1/stores/%25RETRY%25a/0?op=OPEN&offset=7&length=5&user.name=me&token=1"]


def test_a_connection_that_breaks_is_tried_again(start: Start) -> None:
    left = [None, None]

    def name_node(path: str) -> Answer | None:
        if left:
            return left.pop()
        listed = [
            {"pathSuffix": "50% b", "type": "FILE", "length": 9},
            {"pathSuffix": "a", "type": "DIRECTORY", "length": 0},
        ]
        return 200, {}, json.dumps({"FileStatuses": {"FileStatus": listed}}).encode()

    found = files.entries(f"webhdfs://{start(name_node)}/")
    assert [(one.name, one.is_file, one.size) for one in found] == [("50% b", True, 9), ("a", False, 0)]


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (remote_error(404, "FileNotFoundException", "File /a does not exist."), FileNotFoundError, "/a does"),
        (
            remote_error(403, "AccessControlException", "Permission denied: user=dr.who"),
            PermissionError,
            r"user=dr\.who; name a user with \?user\.name=NAME",
        ),
        (
            remote_error(403, "StandbyException", "not active\n\tat org.a"),
            OSError,
            "StandbyException: not active",
        ),
        ((401, {}, b"Authentication required"), OSError, "401: Unauthorized: Authentication required"),
        (None, OSError, "RemoteDisconnected"),
    ],
    ids=["missing", "no permission", "standby", "kerberos", "broken"],
)
def test_an_error_names_the_location_and_the_reason(
    answer: Answer | None, kind: type[OSError], text: str, start: Start
) -> None:
    location = f"webhdfs://{start(lambda _: answer)}/a"
    with pytest.raises(kind, match=text) as caught:
        files.read(location)
    assert location in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_range_behind_the_end_of_a_file_is_empty(start: Start) -> None:
    answer = remote_error(403, "IOException", "Offset=9 out of the range [0, 9); OPEN, path=/a")
    assert len(files.read_range(f"webhdfs://{start(lambda _: answer)}/a", 9, 20)) == 0


def test_a_file_is_no_directory(start: Start) -> None:
    listed = [{"pathSuffix": "", "type": "FILE", "length": 9}]
    body = json.dumps({"FileStatuses": {"FileStatus": listed}}).encode()
    with pytest.raises(NotADirectoryError):
        files.entries(f"webhdfs://{start(lambda _: (200, {}, body))}/a")

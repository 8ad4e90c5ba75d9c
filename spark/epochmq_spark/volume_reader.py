"""Freezes a volume at a cut, and serves it over HTTP to Spark executors on other nodes. It never writes.

It is started as `python -m epochmq_spark.volume_reader --root DIR`.

- `POST /cut`, `{"end": offset, "epochs": base64 or null}`: freezes the volume at this cut; 409 if it is
  frozen at another one.
- `GET /files/PATH`: the bytes of a file, or of a `Range` of it. `X-Size` is the file's size; bytes that are
  not sent are zeros.
- `GET /list/PATH`: a JSON list of [name, is a file, size].
- `GET /live`: 200.

Before the cut all requests for files get 503. It serves 16 requests at a time; further ones wait."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from epochmq_spark.files_at_cut import VolumeCut
from epochmq_spark.frozen_volume import FrozenVolume

PORT = 9885
BODY_BYTES_MAX = 4 * 1024 * 1024
CONCURRENT_MAX = 16
IDLE_S = 120
_RANGE = re.compile(r"bytes=(\d+)-(\d+)\Z")


class VolumeReader(ThreadingHTTPServer):
    """The HTTP server of one directory. `volume` is None before the cut."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], root: Path) -> None:
        super().__init__(address, _VolumeRequestHandler)
        self.root = root
        self.volume: FrozenVolume | None = None
        self.slots = threading.BoundedSemaphore(CONCURRENT_MAX)
        self._lock = threading.Lock()

    def server_close(self) -> None:
        """Stops listening, and closes the files of the frozen volume. Responses under way may break off."""
        super().server_close()
        if self.volume is not None:
            self.volume.close()

    def freeze(self, cut: VolumeCut) -> bool:
        """Freezes the volume at this cut; False if it is frozen at another one. Raises OSError."""
        with self._lock:
            if self.volume is None:
                self.volume = FrozenVolume(self.root, cut)
            return self.volume.cut == cut


class _VolumeRequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    disable_nagle_algorithm = True
    server: VolumeReader

    def log_message(self, format: str, *args: Any) -> None:
        """Does not log requests."""

    def do_POST(self) -> None:
        """Serves POST /cut."""
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/cut" or not 0 < length <= BODY_BYTES_MAX:
            self.close_connection = True
            return self._respond_text(HTTPStatus.BAD_REQUEST, "expected POST /cut with a JSON object")
        try:
            cut = VolumeCut.of(json.loads(self.rfile.read(length)))
            frozen = self.server.freeze(cut)
        except ValueError as error:
            return self._respond_text(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            return self._respond_text(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        if not frozen:
            return self._respond_text(HTTPStatus.CONFLICT, "the volume is already frozen at another cut")
        return self._respond_text(HTTPStatus.OK, "frozen")

    def do_GET(self) -> None:
        """Serves files, directory lists and the liveness probe."""
        path = unquote(urlsplit(self.path).path)
        if path == "/live":
            return self._respond_text(HTTPStatus.OK, "alive")
        volume = self.server.volume
        if volume is None:
            return self._respond_text(HTTPStatus.SERVICE_UNAVAILABLE, "the volume has no cut yet: POST /cut")
        kind, _, name = path.lstrip("/").partition("/")
        name = name.strip("/")
        with self.server.slots:
            try:
                if kind == "list":
                    listed = [[one.name, one.is_file, one.size] for one in volume.entries(name)]
                    return self._respond(HTTPStatus.OK, json.dumps(listed).encode())
                if kind == "files":
                    return self._respond_file(volume, name)
            except FileNotFoundError as error:
                return self._respond_text(HTTPStatus.NOT_FOUND, str(error))
            except (BrokenPipeError, ConnectionError):
                self.close_connection = True
                return None
            except OSError as error:
                return self._respond_text(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return self._respond_text(HTTPStatus.NOT_FOUND, f"no such path: {path}")

    def _respond_file(self, volume: FrozenVolume, name: str) -> None:
        content = volume.content(name)
        wanted = _RANGE.match(self.headers.get("Range") or "")
        start, stop = (int(wanted[1]), int(wanted[2]) + 1) if wanted else (0, content.size)
        stop = max(min(stop, content.length), start)
        file = None if stop <= len(content.head) else os.fdopen(volume.open(name), "rb")
        with file or contextlib.nullcontext():
            self.send_response(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("X-Size", str(content.size))
            self.end_headers()
            try:
                self._send_file(content.head[start:stop], file, max(start, len(content.head)), stop)
            except OSError:  # the client has a part of the body: only closing the connection tells it
                self.close_connection = True

    def _send_file(self, head: bytes, file: BinaryIO | None, start: int, stop: int) -> None:
        self.wfile.write(head)
        self.wfile.flush()
        wanted = stop - start
        if file is not None and wanted > 0 and self.connection.sendfile(file, start, wanted) < wanted:
            self.close_connection = True  # the file has become shorter

    def _respond_text(self, status: HTTPStatus, text: str) -> None:
        self._respond(status, (text + "\n").encode())

    def _respond(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def raise_descriptor_limit() -> None:
    """Allows this process as many descriptors as it may have: a reader keeps the files of its volume open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="epochmq_spark.volume_reader")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=PORT)
    chosen = parser.parse_args(arguments)
    raise_descriptor_limit()
    server = VolumeReader((chosen.host, chosen.port), chosen.root)
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: threading.Thread(target=server.shutdown).start())
    with contextlib.closing(server.socket):
        port = server.server_address[1]
        print(f"volume reader serves {chosen.root} on port {port}", file=sys.stderr, flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

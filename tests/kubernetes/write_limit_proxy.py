"""A proxy to the API server that stops forwarding after a number of writes, so that a test knows exactly what
an operator that is killed then has written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
from aiohttp import web

from epochmq_operator.kube.connection import ClusterConnection, from_kubeconfig

READS = ("GET", "HEAD")
HOPS = {"host", "connection", "transfer-encoding", "content-length"}
BODY_BYTES_MAX = 8 * 1024 * 1024
TIMEOUT_S = 60
"""For its start and its end."""
GONE_WITHIN_S = 30
"""A TLS connection exists until the server has acknowledged its end."""


class WriteLimitProxy:
    """Forwards requests as a cluster's administrator, one write at a time. After `writes` writes, leases not
    counted, it calls `on_limit` before it responds to the last one, and forwards no further write. Requests
    to sidecars that `repeatable` has are not counted; it adds each one. An operator may repeat such a request
    until it has written that the request succeeded."""

    def __init__(
        self, connection: ClusterConnection, writes: float, repeatable: set[tuple[str, bytes]] | None = None
    ) -> None:
        self._connection = connection
        self._repeatable = set() if repeatable is None else repeatable
        self._left = writes
        self.on_limit: Callable[[], None] = lambda: None
        self._session: aiohttp.ClientSession
        self._one = asyncio.Lock()
        self.last = ""
        """The last forwarded write."""
        self.requests: Counter[str] = Counter()
        """The number of requests, by method; a watch counts as one."""

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[int]:
        """Listens on a port of 127.0.0.1 for the length of a block."""
        connector = aiohttp.TCPConnector(ssl=self._connection.ssl_context(), limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            app = web.Application(client_max_size=BODY_BYTES_MAX)
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                yield int(runner.addresses[0][1])
            finally:
                await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests[request.method] += 1
        if request.method in READS or "/leases" in request.path:
            return await self._pass(request)
        async with self._one:
            if self._left > 0:
                return await self._write(request)
        return await asyncio.get_running_loop().create_future()  # until the client has gone

    async def _write(self, request: web.Request) -> web.StreamResponse:
        async with await self._ask(request) as answer:
            body = await answer.read()
        if answer.status < 300 and not await self._is_repeated(request):
            self._left -= 1
            if self._left == 0:
                self.last = f"{request.method} {request.path}"
                self.on_limit()
        return web.Response(body=body, status=answer.status, headers=_kept(answer))

    async def _is_repeated(self, request: web.Request) -> bool:
        if "/proxy/" not in request.path:
            return False
        asked = request.path, await request.read()
        known = asked in self._repeatable
        self._repeatable.add(asked)
        return known

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        async with await self._ask(request) as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer))
            with contextlib.suppress(ConnectionError):  # the client has gone
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        return response

    async def _ask(self, request: web.Request) -> aiohttp.ClientResponse:
        return await self._session.request(
            request.method,
            self._connection.server + request.path_qs,
            headers={key: value for key, value in request.headers.items() if key.lower() not in HOPS},
            data=await request.read()
            or None,  # aiohttp would give an empty body a type, which the API server rejects for lists
            timeout=aiohttp.ClientTimeout(total=None),
        )


def _kept(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {key: value for key, value in answer.headers.items() if key.lower() not in HOPS}


@contextlib.contextmanager
def write_limit_proxy(
    kubeconfig: Path, folder: Path, writes: float, repeatable: set[tuple[str, bytes]] | None = None
) -> Iterator[tuple[WriteLimitProxy, Path]]:
    """A proxy for the length of a block, and a kubeconfig that leads through it. `writes` may be infinite."""
    made = WriteLimitProxy(from_kubeconfig(str(kubeconfig)), writes, repeatable)
    path = folder / "gate.kubeconfig"
    selector = selectors.DefaultSelector()
    loop, ready, stop = asyncio.SelectorEventLoop(selector), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with made.served() as port:
            path.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{port}")))
            ready.set()
            await stop.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_WITHIN_S):
                while len(selector.get_map()) > 1:  # noqa: ASYNC110 -- the loop's own; others are being closed
                    await asyncio.sleep(0.01)

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="gate", daemon=True)
    thread.start()
    try:
        assert ready.wait(TIMEOUT_S)
        yield made, path
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def _kubeconfig(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "gate", "cluster": {"server": server}}],
        "users": [{"name": "gate", "user": {}}],
        "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "gate"}}],
        "current-context": "gate",
    }

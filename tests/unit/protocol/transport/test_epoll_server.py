"""The transports of an epoll server keep the contract of asyncio transports."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from epochmq_protocol.transport import epoll_server
from epochmq_protocol.transport.epoll_server import EpollServer, EpollTransport, listen
from tests.support.net import loopback

HOST = loopback(91)
BLOCK = bytes(range(256)) * 1024  # 256 KiB


class Recorder(asyncio.Protocol):
    """Records the callbacks of its transport."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.data = bytearray()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.on_data: Callable[[bytes], None] = self.data.extend
        self.keep_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, EpollTransport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.on_data(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Recorder, socket.socket, EpollServer]]:
    """A connection: its protocol here, the other side's plain socket, and the server."""
    made: asyncio.Queue[Recorder] = asyncio.Queue()

    def factory() -> Recorder:
        recorder = Recorder()
        made.put_nowait(recorder)
        return recorder

    listening = await listen(factory, HOST, 0, 5)
    assert isinstance(listening, EpollServer)
    with socket.create_connection((HOST, listening.port), timeout=60) as peer:
        peer.setblocking(False)
        try:
            yield await asyncio.wait_for(made.get(), 60), peer, listening
        finally:
            listening.close()
            await asyncio.sleep(0)


async def received(peer: socket.socket, size: int) -> bytes:
    """Receives `size` bytes on the other side."""
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < size:
        part = await asyncio.wait_for(loop.sock_recv(peer, size - len(found)), 60)
        assert part, f"closed after {len(found)} of {size} bytes"
        found += part
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds, a minute at most."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the kernel sets no event
            await asyncio.sleep(0.001)


async def test_pieces_that_a_handler_writes_arrive_in_order() -> None:
    async with connected() as (recorder, peer, _):
        recorder.on_data = lambda data: recorder.transport.writelines([data, b"-", memoryview(data)])
        await asyncio.get_running_loop().sock_sendall(peer, b"hello")
        assert await received(peer, 11) == b"hello-hello"
        recorder.transport.write(bytearray(b"unasked"))
        assert await received(peer, 7) == b"unasked"
        assert recorder.transport.get_extra_info("peername") == peer.getsockname()
        assert recorder.transport.get_extra_info("sockname") == peer.getpeername()


async def test_a_peer_that_does_not_read_pauses_its_writer_and_later_gets_every_byte() -> None:
    async with connected() as (recorder, peer, _):
        recorder.transport.set_write_buffer_limits(64 * 1024)
        parts = 0
        while "pause" not in recorder.events:
            recorder.transport.write(BLOCK)
            parts += 1
            assert parts < 1000, "the kernel cannot buffer all this"
            await asyncio.sleep(0)
        assert recorder.transport.get_write_buffer_size() > 64 * 1024
        assert await received(peer, parts * len(BLOCK)) == BLOCK * parts
        await until(lambda: recorder.events[-1] == "resume")
        assert recorder.transport.get_write_buffer_size() == 0


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "does not read"])
async def test_views_may_change_after_the_turn(reads: bool) -> None:
    async with connected() as (recorder, peer, _):
        loop, transport = asyncio.get_running_loop(), recorder.transport
        source, parts = bytearray(BLOCK), 1 if reads else 40
        view = memoryview(source)
        turns: list[str] = []

        def respond(_: bytes) -> None:
            for _ in range(parts):
                transport.write_views([b"head", view[:1000], view[1000:]], 4 + len(BLOCK))
            transport.write(b"last")
            turns.append("over")

        recorder.on_data = respond
        await loop.sock_sendall(peer, b"x")
        await until(lambda: bool(turns))
        unsent = transport.get_write_buffer_size()
        assert reads or unsent > len(BLOCK)
        source[:] = bytes(len(BLOCK))
        assert await received(peer, parts * (4 + len(BLOCK)) + 4) == (b"head" + BLOCK) * parts + b"last"
        view.release()  # raises BufferError if the transport still has a view
        assert transport.get_write_buffer_size() == 0


async def test_a_closed_transport_drops_views() -> None:
    async with connected() as (recorder, _, _):
        recorder.transport.abort()
        recorder.transport.write_views([b"head", memoryview(b"body")], 8)
        assert recorder.transport.get_write_buffer_size() == 0


async def test_paused_reading_leaves_bytes_in_the_kernel() -> None:
    async with connected() as (recorder, peer, _):
        loop = asyncio.get_running_loop()
        recorder.transport.pause_reading()
        await loop.sock_sendall(peer, b"later")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not recorder.data
        recorder.transport.resume_reading()
        await until(lambda: recorder.data == b"later")


async def test_close_sends_unsent_bytes_first() -> None:
    async with connected() as (recorder, peer, _):
        for _ in range(40):
            recorder.transport.write(BLOCK)
        recorder.transport.close()
        recorder.transport.write(b"dropped: it is closing")
        assert await received(peer, 40 * len(BLOCK)) == BLOCK * 40
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 1), 60) == b""
        assert await recorder.lost is None


async def test_abort_drops_unsent_bytes_and_reports_the_loss_once() -> None:
    async with connected() as (recorder, _, _):
        for _ in range(40):
            recorder.transport.write(BLOCK)
        recorder.transport.abort()
        recorder.transport.abort()
        recorder.transport.close()
        assert await recorder.lost is None
        await asyncio.sleep(0)
        assert recorder.events.count("lost") == 1


async def test_a_peer_that_closes_ends_the_transport() -> None:
    async with connected() as (recorder, peer, _):
        peer.close()
        assert await asyncio.wait_for(recorder.lost, 60) is None
        assert recorder.events == ["made", "eof", "lost"]


async def test_a_protocol_may_keep_a_half_closed_transport_to_respond() -> None:
    async with connected() as (recorder, peer, _):
        recorder.keep_open = True
        peer.shutdown(socket.SHUT_WR)
        await until(lambda: "eof" in recorder.events)
        recorder.transport.write(b"a response")
        assert await received(peer, 10) == b"a response"
        assert "lost" not in recorder.events


@pytest.mark.parametrize("reads", [True, False])
async def test_a_reset_by_the_peer_is_reported_also_while_reading_is_paused(reads: bool) -> None:
    async with connected() as (recorder, peer, _):
        if not reads:
            recorder.transport.pause_reading()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        assert isinstance(await asyncio.wait_for(recorder.lost, 60), ConnectionResetError)


async def test_a_protocol_that_raises_loses_only_its_own_transport() -> None:
    async with connected() as (recorder, peer, listening):
        fault = ZeroDivisionError("a fault")

        def fail(data: bytes) -> None:
            raise fault

        recorder.on_data = fail
        await asyncio.get_running_loop().sock_sendall(peer, b"x")
        assert await asyncio.wait_for(recorder.lost, 60) is fault
        with socket.create_connection((HOST, listening.port), timeout=60):
            pass


class ExhaustedListener:
    """A listening socket in a process without free descriptors."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.rejected = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.rejected += 1
        raise OSError(errno.EMFILE, "too many open files")

    def fileno(self) -> int:
        return self.listener.fileno()

    def close(self) -> None:
        self.listener.close()


async def test_accepting_pauses_without_descriptors_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoll_server, "ACCEPT_PAUSE_S", 0.01)
    async with connected() as (_, _, listening):
        ((handle, listener),) = listening._listeners.items()
        full = ExhaustedListener(listener)
        listening._listeners[handle] = full  # type: ignore[assignment]
        with socket.create_connection((HOST, listening.port), timeout=60) as waiting:
            waiting.setblocking(False)
            await until(lambda: full.rejected > 1)
            before = len(listening._transports)
            listening._listeners[handle] = listener
            await until(lambda: len(listening._transports) == before + 1)


async def test_a_port_in_use_is_named() -> None:
    async with connected() as (_, _, listening):
        with pytest.raises(
            OSError, match=rf"cannot listen on {HOST}:{listening.port}: Address already in use"
        ):
            await listen(Recorder, HOST, listening.port, 5)


async def test_open_connections_survive_the_end_of_accepting() -> None:
    async with connected() as (recorder, peer, listening):
        listening.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, listening.port), timeout=60)
        await asyncio.get_running_loop().sock_sendall(peer, b"still here")
        await until(lambda: recorder.data == b"still here")


async def test_delayed_reads_wait_and_then_read_everything() -> None:
    async with connected() as (recorder, peer, server):
        loop = asyncio.get_running_loop()
        read_s: list[float] = []
        recorder.on_data = lambda data: (recorder.data.extend(data), read_s.append(loop.time()))[0]
        began_s = loop.time()
        server.delay_reads(began_s + epoll_server.READ_DELAY_MAX_S)
        server.delay_reads(began_s + 3600)
        peer.send(b"one")
        peer.send(b"two")
        await until(lambda: recorder.data == b"onetwo")
        assert read_s[0] - began_s >= epoll_server.READ_DELAY_MAX_S * 0.9
        peer.send(b"three")
        await until(lambda: recorder.data == b"onetwothree")


async def test_reads_are_delayed_for_a_short_time_only() -> None:
    async with connected() as (recorder, peer, server):
        server.delay_reads(asyncio.get_running_loop().time() + 3600)
        server.delay_reads(0)
        peer.send(b"now")
        await until(lambda: recorder.data == b"now")


async def test_a_server_may_close_while_reads_are_delayed() -> None:
    async with connected() as (recorder, _, server):
        server.delay_reads(asyncio.get_running_loop().time() + 3600)
        server.close()
        await recorder.lost
        server.delay_reads(asyncio.get_running_loop().time() + 3600)
        await asyncio.sleep(2 * epoll_server.READ_DELAY_MAX_S)

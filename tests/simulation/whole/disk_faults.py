"""What happens to the disks of brokers: emptied, restored from an older image, cloned, damaged.

A run has one of them at most, because the other replicas must have every acknowledged message.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.message_const import BLANK_MAGIC
from epochmq_protocol.replica_control import ReplicaControlCode, SettleStoreHeader
from epochmq_protocol.transport import RemotingClient
from tests.simulation.whole import members
from tests.simulation.whole.group import Group
from tests.simulation.whole.members import BROKER_PORT

PHYSICAL_OFFSET_AT, BODY_AT = 28, 88
"""Where these fields are in a record whose hosts have IPv4 addresses."""
PERSON_EVERY_S = 4.0
SETTLE_TIMEOUT_MS = 3000


async def replace_disk(group: Group, name: str, lasts_s: float) -> None:
    """The process ends, its disk is replaced by an empty one, and it starts again."""
    with group.kept_down([name]):
        group.site.kill(name)
        await asyncio.sleep(lasts_s)
        group.site.hosts[name].disk.empty()


async def replace_disks_in_turn(group: Group, names: list[str], lasts_s: float) -> None:
    """One disk after the other is replaced, each when the replica before has its log again."""
    for name in names:
        await replace_disk(group, name, lasts_s)
        await wait_copied(group, name)


async def wait_copied(group: Group, name: str, within_s: float = 20.0) -> None:
    """Waits until a broker is as far as the longest log of the others, at most so long."""
    end_s = group.site.loop.time() + within_s
    while group.site.loop.time() < end_s:
        await asyncio.sleep(0.5)
        service = group.service(name)
        others = [other.store.max_phy_offset for one in group.brokers if (other := group.service(one))]
        if service is not None and service.store.max_phy_offset >= max(others) - 5000:
            return


async def restore_volume(group: Group, name: str, lasts_s: float, *, alone: bool) -> None:
    """A volume is copied after an orderly stop, and restored later. `alone`: all brokers are down meanwhile,
    and the restored one starts first."""
    site, image = group.site, group.site.directory / f"{name}-image"
    process = site.processes[name]
    if not process.alive or process.on_stop is None or process.task is None:
        return
    with group.kept_down([name]):
        site.stop(name)
        await asyncio.wait([process.task], timeout=30)
        site.kill(name)
        site.hosts[name].disk.image(image)
    await asyncio.sleep(2.0 + lasts_s)
    others = [other for other in group.brokers if other != name] if alone else []
    with group.kept_down(others):
        with group.kept_down([name]):
            for other in [*others, name]:
                site.kill(other)
            site.hosts[name].disk.restore_image(image)
        await asyncio.sleep(3.0 if alone else 0.0)


async def clone_volume(group: Group, name: str, lasts_s: float) -> None:
    """A second process runs on a copy of a broker's volume, on another host, beside the first."""
    site, twin = group.site, f"{name}-twin"
    image = site.directory / f"{name}-image"
    site.hosts[name].disk.image(image)
    site.host(twin).disk.restore_image(image)
    members.start_broker(site, twin, group.settings)
    group.brokers.append(twin)
    group.down[twin] += 1
    await asyncio.sleep(1.0 + lasts_s)
    site.kill(twin)
    group.brokers.remove(twin)


async def lose_files(group: Group, name: str, lasts_s: float, which: int) -> None:
    """The process ends, a file of the log or the checkpoint or both are gone, and it starts again."""
    with group.kept_down([name]):
        group.site.kill(name)
        await asyncio.sleep(lasts_s)
        store = group.site.hosts[name].root / "store"
        files = _log_files(store)
        group.site.may_exit.add(name)
        if files and which % 3 != 1:
            files[which % len(files)].unlink()
        if which % 3 != 0:
            (store / "checkpoint").unlink(missing_ok=True)


async def flip_bit(group: Group, name: str, place: int) -> None:
    """A bit of an old record changes: of its body, or of its size, magic, checksum or physical offset.
    RocketMQ's records have no checksum of their other fields."""
    files = _log_files(group.site.hosts[name].root / "store")[:-1]
    if not files:
        return
    path = files[place % len(files)]
    records = list(_records(path.read_bytes()))
    start, body = records[place * 7 % len(records)]
    fields = [start + 3, start + 4, start + 8, start + PHYSICAL_OFFSET_AT + 6]
    places = [*fields, *range(start + BODY_AT, start + BODY_AT + body, 97)]
    at = places[place * 5 % len(places)]
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << place % 8)]))
    group.site.trace.tell(
        f"bit {place % 8} at {at} of {path.name} of {name} changed, in the record at {start}"
    )


def _records(data: bytes) -> Iterator[tuple[int, int]]:
    """The records of a file: where each starts, and the size of its body."""
    at = 0
    while at + BODY_AT < len(data):
        size, magic = struct.unpack_from(">ii", data, at)
        if magic == BLANK_MAGIC or size <= 0:
            return
        yield at, struct.unpack_from(">i", data, at + BODY_AT - 4)[0]
        at += size


async def person(group: Group) -> None:
    """Decides about refused stores, and replaces a disk on which no broker starts, or whose broker says that
    only this helps, until cancelled."""
    client = RemotingClient()
    while True:
        await asyncio.sleep(PERSON_EVERY_S)
        for name in group.brokers:
            service = group.service(name)
            if service is None:
                if name in group.site.may_exit and not group.site.processes[name].alive:
                    group.site.trace.tell(f"a person replaces the disk of {name}")
                    group.site.hosts[name].disk.empty()
                continue
            if service.ha.client is not None and "empty its store" in service.ha.client.divergence:
                group.site.trace.tell(f"a person empties the store of {name}: {service.ha.client.divergence}")
                with group.kept_down([name]):
                    group.site.kill(name)
                    group.site.hosts[name].disk.empty()
                continue
            header = SettleStoreHeader(adopt=False, timeout_ms=SETTLE_TIMEOUT_MS)
            address = f"{group.site.hosts[name].address}:{BROKER_PORT}"
            with contextlib.suppress(EpochMQError):
                found = await client.call(
                    address, request(ReplicaControlCode.SETTLE_STORE, header), SETTLE_TIMEOUT_MS + 1000
                )
                if found.code == 0:
                    group.site.trace.tell(f"a person discards the store of {name}")


def _log_files(store: Path) -> list[Path]:
    folder = store / "commitlog"
    used = [path for path in folder.iterdir() if path.read_bytes().rstrip(b"\0")] if folder.is_dir() else []
    return sorted(used)

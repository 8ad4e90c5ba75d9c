"""The processes of a site: controllers, nameservers and brokers with their configuration files' texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmq_broker import main as broker_main
from epochmq_broker.broker import Broker
from epochmq_broker.config.broker_config import LoadedBrokerConfig, load_broker_config
from epochmq_controller.controller import main as controller_main
from epochmq_controller.controller.server import ControllerServer
from epochmq_controller.nameserver import main as nameserver_main
from tests.simulation.whole.hosts import Host, Process, Site
from tests.simulation.whole.loop import PROCESS

NAMESERVER_PORT, CONTROLLER_PORT, BROKER_PORT = 9876, 9878, 10911
Settings = Mapping[str, str | int | bool]

SMALL_FILES: Settings = {
    "mappedFileSizeCommitLog": 80 * 1024,
    "maxMessageSize": 8 * 1024,
    "scrubFirstDelayMs": 500,
    "scrubPassIntervalMs": 2000,
    "mappedFileSizeConsumeQueue": 20 * 200,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "timerWheelEnable": False,
    "defaultTopicQueueNums": 2,
}
"""Files so small that a log of some hundred messages has several of them."""


def _text(settings: Settings) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()
    }


def record_services() -> None:
    """Makes every process of a broker show its `Broker`, and that of a controller its `ControllerServer`, for
    checks."""

    def make(loaded: LoadedBrokerConfig) -> Broker:
        broker = Broker(loaded)
        process: Process = PROCESS.get()
        process.service = broker
        return broker

    def make_controller(*args: Any, **options: Any) -> ControllerServer:
        server = ControllerServer(*args, **options)
        process: Process = PROCESS.get()
        process.service = server
        return server

    broker_main.Broker = make  # type: ignore[attr-defined,assignment]
    controller_main.ControllerServer = make_controller  # type: ignore[attr-defined,assignment]


def start_nameserver(site: Site, name: str, settings: Settings | None = None) -> Process:
    """Starts a nameserver."""
    host = site.host(name)
    given: dict[str, Any] = {
        "listenPort": NAMESERVER_PORT,
        "bindAddress": host.address,
        "kvConfigPath": host.root / "kvConfig.json",
        "configStorePath": host.root / "namesrv.properties",
        **(settings or {}),
    }

    async def main() -> int:
        return await nameserver_main.serve(nameserver_main.load(None, _text(given)))

    return site.start(name, main)


def start_controller(site: Site, name: str, peers: list[str], settings: Settings | None = None) -> Process:
    """Starts one of the controllers `peers`."""
    host = site.host(name)
    addresses = [f"{peer}-{site.host(peer).address}:{CONTROLLER_PORT}" for peer in peers]
    given: dict[str, Any] = {
        "controllerDLegerGroup": "controllers",
        "controllerDLegerPeers": ";".join(addresses),
        "controllerDLegerSelfId": name,
        "controllerStorePath": host.root / "controller",
        "configStorePath": host.root / "controller.properties",
        "mappedFileSize": 1 << 20,
        **(settings or {}),
    }

    async def main() -> int:
        return await controller_main.serve(controller_main.load(None, _text(given)))

    return site.start(name, main)


def start_broker(site: Site, name: str, settings: Settings) -> Process:
    """Starts a broker on a host of the same name."""
    host = site.host(name)
    loaded = load_broker_config(None, _text(broker_settings(host) | dict(settings)))

    async def main() -> int:
        return await broker_main._serve(loaded)

    return site.start(name, main)


def broker_settings(host: Host) -> dict[str, Any]:
    """The settings that every broker of a site needs."""
    return {
        **SMALL_FILES,
        "brokerIP1": host.address,
        "brokerIP2": host.address,
        "listenPort": BROKER_PORT,
        "haListenPort": BROKER_PORT + 1,
        "storePathRootDir": host.root / "store",
        "storePathCommitLog": host.root / "store" / "commitlog",
        "brokerClusterName": "cluster",
    }

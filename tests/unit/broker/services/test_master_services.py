"""Services of the master run while the broker is the master, and only once."""

from epochmq_broker.services.master_services import MasterServices


class _Service:
    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log

    def start(self) -> None:
        self._log.append(f"{self._name} starts")

    def stop(self) -> None:
        self._log.append(f"{self._name} stops")


def test_services_start_in_order_and_stop_in_reverse() -> None:
    log: list[str] = []
    services = MasterServices(_Service("delays", log), _Service("checks", log))
    services.start()
    services.stop()
    assert log == ["delays starts", "checks starts", "checks stops", "delays stops"]


def test_a_repeated_start_or_stop_changes_nothing() -> None:
    log: list[str] = []
    services = MasterServices(_Service("delays", log))
    services.stop()
    services.start()
    services.start()
    services.stop()
    services.stop()
    assert log == ["delays starts", "delays stops"]


def test_services_start_again_after_a_stop() -> None:
    log: list[str] = []
    services = MasterServices(_Service("delays", log))
    for _ in range(2):
        services.start()
        services.stop()
    assert log == ["delays starts", "delays stops"] * 2

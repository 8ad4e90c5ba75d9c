"""Ids for messages that arrive without one."""

from __future__ import annotations

import calendar
import time

from epochmq_broker.requests.uniq_key import UniqKeyGenerator


def test_an_id_is_32_upper_case_hex_digits_and_begins_with_the_address() -> None:
    key = UniqKeyGenerator("127.53.0.9").next(1_700_000_000_000)
    assert len(key) == 32
    assert key == key.upper()
    assert bytes.fromhex(key)[:4] == bytes([127, 53, 0, 9])


def test_ids_of_one_millisecond_differ() -> None:
    keys = UniqKeyGenerator("127.53.0.9")
    made = {keys.next(1_700_000_000_000) for _ in range(60_000)}
    assert len(made) == 60_000


def test_an_id_holds_the_time_since_the_month_began() -> None:
    keys = UniqKeyGenerator("127.53.0.9")
    for day in ("2026-01-01", "2026-12-31"):
        now = time.strptime(f"{day} 12:34:56", "%Y-%m-%d %H:%M:%S")
        now_ms = int(time.mktime(now)) * 1000
        since_ms = int.from_bytes(bytes.fromhex(keys.next(now_ms))[10:14], "big")
        month_ms = int(time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
        assert since_ms == now_ms - month_ms
        assert 0 <= since_ms < calendar.monthrange(now.tm_year, now.tm_mon)[1] * 86_400_000 + 3_600_000


def test_a_host_name_instead_of_an_address_still_gives_ids() -> None:
    assert len(UniqKeyGenerator("broker-0.example").next(1)) == 32

"""The samples that the console keeps, the lines drawn from them, and the task that takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from epochmq.console.rate_samples import HEIGHT, MARGIN, SampleRing, SeriesName
from epochmq.console.sampler import sample_forever
from epochmq.console.web_app import make_console
from epochmq_protocol.errors import ConnectError
from tests.unit.console.fake_facts import ODD, FakeFacts
from tests.unit.console.test_pages import Browser, Markup

LAG = SeriesName("lag", "g")


def test_a_line_runs_from_the_oldest_to_the_newest_sample() -> None:
    ring = SampleRing()
    for at, value in ((100.0, 0.0), (110.0, 5.0), (120.0, 10.0)):
        ring.add(at, {LAG: value})
    found = ring.drawing(LAG)
    assert found is not None
    assert found.lines == [f"0.0,{HEIGHT - MARGIN} 50.0,12.0 100.0,{MARGIN}"]
    assert (found.newest, found.highest) == (10.0, 10.0)
    assert found.text == "now 10, at most 10 in the last 20 s"


def test_a_sample_without_values_is_a_gap() -> None:
    ring = SampleRing()
    for at in range(7):
        ring.add(at, {} if at == 3 else {LAG: 1.5})
    found = ring.drawing(LAG)
    assert found is not None
    assert len(found.lines) == 2
    assert "now 1.5" in found.text


def test_nothing_is_drawn_of_one_value() -> None:
    ring = SampleRing()
    assert ring.drawing(LAG) is None
    ring.add(0, {LAG: 1})
    ring.add(1, {})
    assert ring.drawing(LAG) is None


def test_the_ring_forgets_the_oldest_samples_and_leaves_further_series_out() -> None:
    ring = SampleRing(samples_max=3, series_max=2)
    for at in range(10):
        ring.add(at, {SeriesName("lag", name): at for name in "cab"})
    assert ring.drawing(SeriesName("lag", "c")) is None, "a and b come first"
    found = ring.drawing(SeriesName("lag", "a"))
    assert found is not None
    assert len(found.lines[0].split()) == 3
    assert found.text.endswith("in the last 2 s")


def test_a_series_of_zeros_is_a_line_at_the_bottom() -> None:
    ring = SampleRing()
    ring.add(0, {LAG: 0})
    ring.add(1, {LAG: 0})
    found = ring.drawing(LAG)
    assert found is not None
    assert found.lines == [f"0.0,{HEIGHT - MARGIN} 100.0,{HEIGHT - MARGIN}"]


def test_the_sampler_continues_after_a_failure() -> None:
    ring = SampleRing()
    outcomes: list[float | None] = [1.0, None, 3.0, 4.0]

    async def read() -> Mapping[SeriesName, float]:
        if not outcomes:
            raise asyncio.CancelledError
        value = outcomes.pop(0)
        if value is None:
            raise ConnectError("no nameserver responds")
        return {LAG: value}

    async def main() -> None:
        task = asyncio.create_task(sample_forever(read, ring, 0))
        await asyncio.wait([task])

    asyncio.run(main())
    found = ring.drawing(LAG)
    assert found is not None
    assert (found.newest, found.highest) == (4.0, 4.0)
    assert len(found.lines) == 1, "a single value beside a gap is no line"


def test_pages_draw_the_samples() -> None:
    ring = SampleRing()
    for at in range(3):
        ring.add(at, {SeriesName("lag", ODD): at, SeriesName("in", f"{ODD}:0"): 2 * at})
    client = Browser(make_console(FakeFacts(), None, ring=ring))
    for path, name in (("/groups", None), ("/group", ODD), ("/brokers", None), ("/broker", ODD)):
        page = Markup(client.get(path, params={"name": name} if name else None).text)
        lines = [values for tag, values in page.elements if tag == "polyline"]
        assert len(lines) == 1, path

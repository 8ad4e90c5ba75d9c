"""Settings in RocketMQ's keys are loaded, and errors name the key, its value and the expected one."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import Meta

from epochmq_protocol import properties, typed_config
from epochmq_protocol.errors import ConfigError


class FlushDiskType(enum.Enum):
    SYNC_FLUSH = 1
    ASYNC_FLUSH = 2


class Example(msgspec.Struct, frozen=True, rename="camel"):
    listen_port: Annotated[int, Meta(ge=0, le=65535)] = 9876
    broker_name: Annotated[str, Meta(min_length=1)] = "broker-a"
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    broker_role: Literal["ASYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    order_message_enable: bool = False
    ratio: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.5
    size_max: Annotated[int, Meta(ge=1)] | None = None
    delay: Annotated[str, Meta(pattern=r"^\d+s$", description="seconds as in 10s")] = "1s"
    offset: int = 0


class Strict(msgspec.Struct, frozen=True, rename="camel"):
    must_be_there: int


def test_a_properties_text_becomes_settings() -> None:
    text = """
    # a comment
    listenPort = 10911
    brokerName=b
    flushDiskType=SYNC_FLUSH
    brokerRole=slave
    orderMessageEnable: TRUE
    ratio 0.25
    sizeMax=1073741824
    """
    loaded, warnings = typed_config.load(Example, text)
    assert warnings == []
    assert loaded == Example(10911, "b", FlushDiskType.SYNC_FLUSH, "SLAVE", True, 0.25, 1 << 30)


def test_plain_values_are_accepted_as_well_as_texts() -> None:
    loaded, _ = typed_config.load(
        Example, {"listenPort": 1, "orderMessageEnable": True, "ratio": 1, "brokerName": 5}
    )
    assert loaded == Example(1, "5", order_message_enable=True, ratio=1.0)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("listenPort", "abc", "listenPort=abc: expected a whole number from 0 to 65535"),
        ("listenPort", " 70000 ", "listenPort=70000: expected a whole number from 0 to 65535"),
        ("listenPort", "", "listenPort=: expected a whole number from 0 to 65535"),
        ("listenPort", "1.5", "listenPort=1.5: expected a whole number from 0 to 65535"),
        ("listenPort", True, "listenPort=true: expected a whole number from 0 to 65535"),
        ("orderMessageEnable", "yes", "orderMessageEnable=yes: expected true or false"),
        ("flushDiskType", "FLUSH", "flushDiskType=FLUSH: expected one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("brokerRole", "MASTER", "brokerRole=MASTER: expected one of ASYNC_MASTER, SLAVE"),
        ("ratio", "2", "ratio=2: expected a number from 0.0 to 1.0"),
        ("ratio", "nan", "ratio=nan: expected a number from 0.0 to 1.0"),
        ("sizeMax", "0", "sizeMax=0: expected a whole number of at least 1"),
        ("brokerName", " ", "brokerName=: expected a text, not empty"),
        ("delay", "1h", "delay=1h: expected seconds as in 10s"),
        ("offset", "x", "offset=x: expected a whole number"),
    ],
)
def test_an_error_names_the_key_the_value_and_the_expected_one(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        typed_config.load(Example, {key: value})
    assert str(caught.value) == message
    assert caught.value.key == key


def test_an_unknown_key_gives_a_warning_with_a_guess() -> None:
    loaded, warnings = typed_config.load(Example, {"listenProt": "1", "somethingElse": "2"})
    assert loaded == Example()
    assert warnings == [
        "listenProt: unknown key, ignored (did you mean listenPort?)",
        "somethingElse: unknown key, ignored",
    ]


def test_no_guess_is_looked_for_among_many_unknown_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long, and an event loop waits."""
    looked_up: list[str] = []
    monkeypatch.setattr(typed_config, "get_close_matches", lambda key, *_, **__: looked_up.append(key) or [])
    count = typed_config.SUGGESTIONS_MAX + 1
    _, warnings = typed_config.load(Example, {f"listenPort{n}": "1" for n in range(count)})
    assert warnings == [f"listenPort{n}: unknown key, ignored" for n in range(count)]
    assert looked_up == []


def test_aliases_are_other_spellings_of_a_key_and_errors_name_the_given_one() -> None:
    loaded, _ = typed_config.load(Example, {"port": "7"}, {"port": "listenPort"})
    assert loaded.listen_port == 7
    with pytest.raises(ConfigError, match="port=x"):
        typed_config.load(Example, {"port": "x"}, {"port": "listenPort"})


def test_a_required_key_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"mustBeThere=: expected a whole number \(the key is required\)"):
        typed_config.load(Strict, "")
    assert typed_config.load(Strict, "mustBeThere=5")[0] == Strict(5)


def test_an_update_changes_all_or_nothing() -> None:
    before = Example()
    after, warnings = typed_config.update(before, "listenPort=1\nunknown=2\n")
    assert (after.listen_port, before.listen_port, len(warnings)) == (1, 9876, 1)
    with pytest.raises(ConfigError):
        typed_config.update(before, {"listenPort": "1", "ratio": "x"})
    with pytest.raises(ConfigError):
        typed_config.update(before, {"listenPort": None})


def test_an_optional_setting_may_be_unset() -> None:
    assert typed_config.update(Example(size_max=5), {"sizeMax": ""})[0].size_max is None
    assert typed_config.update(Example(size_max=5), {"sizeMax": None})[0].size_max is None


def test_settings_round_trip_through_properties() -> None:
    example = Example(1, "b c", FlushDiskType.SYNC_FLUSH, "SLAVE", True, 0.25, 5, "7s", -3)
    text = properties.format(typed_config.to_properties(example))
    assert typed_config.load(Example, text) == (example, [])
    assert typed_config.keys(Example) == typed_config.to_properties(example).keys()
    assert "sizeMax" not in typed_config.to_properties(Example())


@hypothesis_settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(typed_config.keys(Example))), st.text(max_size=10), max_size=4))
def test_any_values_give_settings_or_a_config_error(values: dict[str, str]) -> None:
    try:
        loaded, _ = typed_config.load(Example, values)
    except ConfigError:
        return
    assert typed_config.load(Example, typed_config.to_properties(loaded))[0] == loaded


@hypothesis_settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_parses_as_properties(text: str) -> None:
    found = properties.parse(text)
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in found.items())


@hypothesis_settings(deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z.]{1,10}", fullmatch=True),
        st.from_regex(r"[a-z0-9:;=/.]{0,10}", fullmatch=True),
    )
)
def test_properties_round_trip(values: dict[str, str]) -> None:
    kept = {key: value for key, value in values.items() if not value.startswith(("=", ":"))}
    assert properties.parse(properties.format(kept, is_sorted=True)) == kept

"""Each integer of a body that is decoded is Java's `int` or `long`: a plain `int` has no decoder for the
lenient JSON that RocketMQ writes."""

from __future__ import annotations

import importlib
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import epochmq_broker
import epochmq_controller
import epochmq_dledger
import epochmq_protocol
import epochmq_store

PACKAGES = (epochmq_protocol, epochmq_store, epochmq_dledger, epochmq_controller, epochmq_broker)
DECODED = re.compile(r"(?:from_json|convert)\(\s*(\w+),")


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                yield importlib.import_module(module.name)


def decoded_bodies() -> Iterator[type[msgspec.Struct]]:
    """The structs whose names stand as the first argument of `from_json` or `convert`."""
    names: set[str] = set()
    for package in PACKAGES:
        for file in Path(package.__path__[0]).rglob("*.py"):
            names |= set(DECODED.findall(file.read_text()))
    for module in modules():
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__name__ in names:
                yield value


def plain_integers(hint: Any, field: str, seen: set[type]) -> Iterator[str]:
    """The fields of a type that are declared as `int`."""
    if hint is int:
        yield field
    if typing.get_origin(hint) is typing.Annotated:
        return
    for argument in typing.get_args(hint):
        yield from plain_integers(argument, field, seen)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in seen:
        seen.add(hint)
        for name, inner in typing.get_type_hints(hint, include_extras=True).items():
            if typing.get_origin(inner) is not typing.ClassVar:
                yield from plain_integers(inner, f"{hint.__name__}.{name}", seen)


@pytest.mark.long
def test_integers_of_decoded_bodies_have_a_range() -> None:
    bodies, seen = list(decoded_bodies()), set[type]()
    assert len(bodies) > 30
    assert [field for body in bodies for field in plain_integers(body, body.__name__, seen)] == []

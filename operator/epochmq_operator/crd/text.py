"""Writes YAML for readers: keys in their given order, multi-line texts as blocks, no aliases."""

# pure: data in, text out.

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import yaml

WIDTH = 110
_NUMBER: Final = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")
"""Texts to quote. PyYAML does not take `12e3`, as a digest may be, for a number; Kubernetes does."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _NUMBER.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Iterable[Any]) -> str:
    """The documents as one text, separated by `---`."""
    return yaml.dump_all(list(documents), Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)

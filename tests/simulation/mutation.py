"""A programming mistake, as a small change of the source of one function."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Mutation:
    """`before` occurs once in the source of `owner.function`, and is replaced by `after`."""

    mistake: str
    kind: str
    owner: Any
    function: str
    before: str
    after: str
    rare: bool = False
    """Found by at most one seed in a hundred: only the soak searches for it."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of a scenario that has some."""

    @contextmanager
    def made(self) -> Iterator[None]:
        """Makes the mistake until the block ends."""
        original = self.owner.__dict__[self.function]
        plain: Any = original.fget if isinstance(original, property) else original
        source = textwrap.dedent(inspect.getsource(plain))
        if source.count(self.before) != 1:
            raise ValueError(
                f"the mistake {self.mistake!r} can no longer be made: {self.before!r} occurs "
                f"{source.count(self.before)} times in {self.function}, expected once; adapt the mutation"
            )
        made: dict[str, Any] = {}
        code = "from __future__ import annotations\n" + source.replace(self.before, self.after)
        exec(compile(code, f"<{self.mistake}>", "exec"), sys.modules[plain.__module__].__dict__, made)
        changed = made[self.function]
        users = [self.owner]
        if inspect.ismodule(self.owner):  # also where it was imported by name
            users = [m for m in list(sys.modules.values()) if vars(m).get(self.function) is original]
        for user in users:
            setattr(user, self.function, changed)
        try:
            yield
        finally:
            for user in users:
                setattr(user, self.function, original)

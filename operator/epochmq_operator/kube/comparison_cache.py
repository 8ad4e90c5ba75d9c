"""Remembers comparisons of objects, which would be nearly all the work of an idle operator."""

# pure: data in, data out.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from epochmq_operator.plans.objects import APPLIED, Manifest, Ref, annotation, metadata, ref_of

KEPT_MAX = 20_000


class ComparisonCache:
    """Compares objects, and remembers the versions of those without differences. The version of a manifest is
    the digest that is applied with it; that of an observed object is its resourceVersion."""

    def __init__(self, differences: Callable[[Manifest, Manifest], Sequence[str]]) -> None:
        self._differences = differences
        self._same: OrderedDict[Ref, tuple[str, str, str]] = OrderedDict()

    def __call__(self, wanted: Manifest, observed: Manifest) -> Sequence[str]:
        """The differences, one line each."""
        digest, meta = annotation(wanted, APPLIED), metadata(observed)
        version, uid = meta.get("resourceVersion"), meta.get("uid")
        if not digest or not isinstance(version, str) or not isinstance(uid, str):
            return self._differences(wanted, observed)
        ref, versions = ref_of(wanted), (digest, uid, version)
        if self._same.get(ref) == versions:
            return ()
        lines = self._differences(wanted, observed)
        if not lines:
            self._same[ref] = versions
            self._same.move_to_end(ref)
            while len(self._same) > KEPT_MAX:
                self._same.popitem(last=False)
        return lines

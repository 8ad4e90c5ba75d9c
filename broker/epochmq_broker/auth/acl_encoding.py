# pure: values
"""Encodes ACLs in steps, entry by entry: an ACL may have thousands of entries, and a request or a change must
not keep the event loop for all of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator
from typing import Final

from epochmq_broker.auth.acls import Acl, PolicyEntry
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import AclInfo, PolicyInfo, to_json
from epochmq_protocol.bodies_in_turns import with_items

ENTRIES_AT_A_TIME: Final = 8
"""Entries that are encoded in one step: about 0.1 ms."""
_LEVELS: Final = 2
"""Tabs before an ACL in the file."""
_ENTRY_LEVELS: Final = 6
"""Tabs before an entry in the file: in the list of an object in the list of an ACL."""


def json_steps(acl: Acl) -> Generator[None, None, bytes]:
    """The ACL as responses carry it."""
    body = to_json(_outline(acl))
    for policy in acl.policies:
        encoded = yield from _entries(policy.entries, _for_response)
        body = with_items(body, "entries", b"[%b]" % b",".join(encoded))
        yield
    return body


class AclFileEntries:
    """Encodes the ACLs of the file. Keeps the encoded entries of one user for the next change: they are most
    of a large ACL."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[int, tuple[PolicyEntry, bytes]]] = {}

    def steps(self, acl: Acl) -> Generator[None, None, bytes]:
        """The ACL as an item of the file's list, without the line break before it."""
        known = self._kept.get(acl.username, {})
        kept: dict[int, tuple[PolicyEntry, bytes]] = {}

        def encode(entry: PolicyEntry) -> bytes:
            found = known.get(id(entry))
            piece = _for_file(entry) if found is None else found[1]
            kept[id(entry)] = entry, piece  # with the entry, so that its id stays its own
            return piece

        body = _indented(fastjson.dumps(_outline(acl), pretty=True), _LEVELS)
        for policy in acl.policies:
            encoded = yield from _entries(policy.entries, encode)
            items = b",".join(encoded)
            body = with_items(body, "entries", b"[%b\n%b]" % (items, b"\t" * (_ENTRY_LEVELS - 1)))
            yield
        self._kept[acl.username] = kept
        return body

    def keep_only(self, usernames: Container[str]) -> None:
        """Forgets the entries of all users but these."""
        for username in [one for one in self._kept if one not in usernames]:
            del self._kept[username]


def _outline(acl: Acl) -> AclInfo:
    """The ACL without the entries of its policies."""
    policies = [PolicyInfo(policy_type=policy.type.value, entries=[]) for policy in acl.policies]
    return AclInfo(subject=acl.subject, policies=policies or None)


def _entries(
    entries: tuple[PolicyEntry, ...], encode: Callable[[PolicyEntry], bytes]
) -> Generator[None, None, list[bytes]]:
    encoded = []
    for number, entry in enumerate(entries, 1):
        encoded.append(encode(entry))
        if number % ENTRIES_AT_A_TIME == 0:
            yield
    return encoded


def _for_response(entry: PolicyEntry) -> bytes:
    return to_json(entry.info())


def _for_file(entry: PolicyEntry) -> bytes:
    start = b"\n" + b"\t" * _ENTRY_LEVELS
    return start + _indented(fastjson.dumps(entry.info(), pretty=True), _ENTRY_LEVELS)


def _indented(text: bytes, levels: int) -> bytes:
    return text.replace(b"\n", b"\n" + b"\t" * levels)

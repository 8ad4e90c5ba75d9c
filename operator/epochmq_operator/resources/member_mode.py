"""Defines how the members of a cluster authenticate each other: `spec.memberAuthentication`."""

from __future__ import annotations

from enum import StrEnum


class MemberMode(StrEnum):
    """Whether brokers, controllers and nameservers prove that they are members. With `ACCEPT` they prove it,
    and accept members without a proof. The last member is not `Off`, which YAML reads as false."""

    REQUIRE = "Require"
    ACCEPT = "Accept"
    DISABLED = "Disabled"

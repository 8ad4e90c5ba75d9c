# pure: values
"""Declares the users of the access control, and their conversion to RocketMQ's UserInfo."""

from __future__ import annotations

from enum import Enum

import msgspec

from epochmq_protocol.bodies import UserInfo


class UserType(Enum):
    """A super user may do everything; a normal user what its ACL allows."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    """A disabled user cannot authenticate itself."""

    ENABLE = "enable"
    DISABLE = "disable"


class User(msgspec.Struct, frozen=True):
    """One user. The password is the secret key of its signatures, so it is kept as it is."""

    username: str
    password: str
    user_type: UserType
    user_status: UserStatus

    def __repr__(self) -> str:
        """The user without the password, for logs."""
        return f"User({self.username!r}, {self.user_type.name}, {self.user_status.name})"

    @property
    def is_super(self) -> bool:
        """Whether the user may do everything."""
        return self.user_type is UserType.SUPER

    def info(self, *, with_password: bool = True) -> UserInfo:
        """The user as requests carry it."""
        return UserInfo(
            username=self.username,
            password=self.password if with_password else None,
            user_type=self.user_type.value,
            user_status=self.user_status.value,
        )


def parse_user_type(name: str | None) -> UserType | None:
    """The type of this name in any case; None for another name."""
    return next((one for one in UserType if one.value.lower() == (name or "").lower()), None)


def parse_user_status(name: str | None) -> UserStatus | None:
    """The status of this name in any case; None for another name."""
    return next((one for one in UserStatus if one.value == (name or "").lower()), None)


def is_blank(text: str | None) -> bool:
    """Whether a text is missing, empty or white space."""
    return not text or text.isspace()

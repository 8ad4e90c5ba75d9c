# pure: how a broker gets its id and registers
"""Gets a broker its id and registers it with the controllers: a part of the replica state machine.

Every phase survives a kill: the driver saves an application before it is sent, and the identity before it is
used. After a restart the broker continues from what is on disk.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from epochmq_broker.membership.controlled.identity import BrokerIdApplication, BrokerIdentity
from epochmq_broker.membership.controlled.state_machine_types import (
    ApplyBrokerIdQuestion,
    ControllerQuestion,
    DropApplication,
    FreeBrokerId,
    NextBrokerIdQuestion,
    QuestionRejected,
    RegisterQuestion,
    ReplicaEffect,
    SaveIdentity,
    WriteLogLine,
)
from epochmq_protocol.codes import ResponseCode as Code

UNREGISTERED_CODES = (
    Code.CONTROLLER_BROKER_METADATA_NOT_EXIST,
    Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
)


class RegistrationPhase(enum.Enum):
    """How far this broker has come on its way to being a registered member of its group."""

    NEEDS_ID = "asks for a free id"
    SAVING_APPLICATION = "the application for an id is being saved"
    APPLYING = "applies for the id of its application"
    SAVING_IDENTITY = "the id was granted, the identity is being saved"
    UNREGISTERED = "has an id and registers"
    REGISTERED = "is registered"
    REFUSED = "was refused, because its id belongs to another store, and registers again"
    FORGOTTEN = "the controllers know the group, but not this broker: asks for a free id"
    REAPPLYING = "forgotten, applies for its own id again"


class ControllerRegistration:
    """The registration of one broker. `emit` takes the effects in their order."""

    def __init__(
        self,
        cluster: str,
        name: str,
        identity: BrokerIdentity | None,
        application: BrokerIdApplication | None,
        emit: Callable[[ReplicaEffect], None],
    ) -> None:
        self.identity = identity
        self.application = application
        self.phase = RegistrationPhase.UNREGISTERED
        if identity is None:
            self.phase = RegistrationPhase.NEEDS_ID if application is None else RegistrationPhase.APPLYING
        self._cluster, self._name = cluster, name
        self._emit = emit
        self.refusal: str | None = None
        """Why the controllers refuse this store, until they accept it."""
        self.adopts = False
        """An administrator has accepted this store for its broker id, and the controllers have not
        responded."""
        self._asked_to_adopt = False
        """Whether the latest question said so."""

    @property
    def is_registered(self) -> bool:
        """Whether the controllers have registered this broker, as far as it knows."""
        return self.phase is RegistrationPhase.REGISTERED

    def next_question(self) -> ControllerQuestion | None:
        """The next question on the way to being registered; None if registered, and while the driver
        saves."""
        match self.phase:
            case RegistrationPhase.NEEDS_ID | RegistrationPhase.FORGOTTEN:
                return NextBrokerIdQuestion()
            case RegistrationPhase.APPLYING | RegistrationPhase.REAPPLYING:
                assert self.application is not None
                return ApplyBrokerIdQuestion(self.application)
            case RegistrationPhase.UNREGISTERED | RegistrationPhase.REFUSED:
                assert self.identity is not None
                self._asked_to_adopt = self.adopts
                return RegisterQuestion(self.identity.id, self.adopts)
            case _:
                return None

    def take_free_id(self, free: FreeBrokerId) -> str | None:
        """Applies for the free id, or again for the own id if the controllers have forgotten this broker.

        Returns an error if they have forgotten the whole group, which the free id 1 shows: its epochs would
        start at 1 again, and this log has newer ones."""
        identity = self.identity
        if identity is None:
            identity = BrokerIdentity(self._cluster, self._name, free.id)
            self.application = BrokerIdApplication(identity, free.check_code)
            self.phase = RegistrationPhase.SAVING_APPLICATION
            self._emit(SaveIdentity(self.application))
            return None
        if free.id > 1:
            self.application = BrokerIdApplication(identity, free.check_code)
            self.phase = RegistrationPhase.REAPPLYING
            return None
        self.phase = RegistrationPhase.UNREGISTERED
        return (
            f"the controllers do not know group {self._name}, but this store belongs to broker {identity.id} "
            "of it: they have lost their storage. Restore it, or rebuild the group: epochmq controllers adopt"
        )

    def id_granted(self) -> None:
        """The id of the application belongs to this broker now."""
        if self.identity is not None:
            self.phase, self.application = RegistrationPhase.UNREGISTERED, None
            return
        assert self.application is not None
        self._emit(SaveIdentity(self.application.identity))
        self.phase = RegistrationPhase.SAVING_IDENTITY

    def rejected(self, reply: QuestionRejected) -> bool:
        """The controller rejected a question. Returns whether the next question resolves that, so that no
        warning is needed."""
        if reply.code in UNREGISTERED_CODES and self.is_registered:
            self.phase = RegistrationPhase.UNREGISTERED
            return True
        if reply.code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED and self.identity is not None:
            if self.phase in (RegistrationPhase.UNREGISTERED, RegistrationPhase.REFUSED):
                self.phase, self.refusal = RegistrationPhase.FORGOTTEN, None
            return True
        if reply.code == Code.CONTROLLER_BROKER_ID_INVALID and self.phase in (
            RegistrationPhase.UNREGISTERED,
            RegistrationPhase.REFUSED,
        ):
            self.phase, self.refusal = RegistrationPhase.REFUSED, reply.remark
            if self._asked_to_adopt:
                self.adopts = False
            return False
        if self.phase in (RegistrationPhase.FORGOTTEN, RegistrationPhase.REAPPLYING):
            self.phase, self.application = RegistrationPhase.UNREGISTERED, None
        elif reply.code == Code.CONTROLLER_BROKER_ID_INVALID and self.application is not None:
            text = f"broker id {self.application.identity.id} belongs to another broker: {reply.remark}"
            self._emit(WriteLogLine(text))
            self.phase, self.application = RegistrationPhase.NEEDS_ID, None
            self._emit(DropApplication())
        return False

    def saved(self, what: BrokerIdApplication | BrokerIdentity) -> None:
        """The application or the identity is on disk."""
        if isinstance(what, BrokerIdApplication):
            self.phase = RegistrationPhase.APPLYING
        else:
            self.identity, self.application = what, None
            self.phase = RegistrationPhase.UNREGISTERED
            self._emit(WriteLogLine(f"this is broker {what.id} of {what.name}"))

    def save_failed(self, what: BrokerIdApplication | BrokerIdentity) -> None:
        """The application or the identity could not be saved: the step before is repeated."""
        if isinstance(what, BrokerIdApplication):
            self.phase, self.application = RegistrationPhase.NEEDS_ID, None
        else:
            self.phase = RegistrationPhase.APPLYING

    def registered(self) -> None:
        """The controllers have registered this broker."""
        self.phase, self.refusal, self.adopts = RegistrationPhase.REGISTERED, None, False

    def register_again(self) -> None:
        """A registered broker registers once more."""
        if self.is_registered:
            self.phase = RegistrationPhase.UNREGISTERED

    def discard_identity(self) -> None:
        """The store has no identity any more: asks for a free id."""
        self.identity = self.application = None
        self.phase, self.refusal, self.adopts = RegistrationPhase.NEEDS_ID, None, False

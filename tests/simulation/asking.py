"""What a broker asks a controller and what it hears, between the words of the two: as
`replicas.controllers` puts it on the wire and reads it there."""

from __future__ import annotations

from epochmq_broker.replicas import types as asks
from epochmq_controller.replica_groups import requests
from epochmq_controller.replica_groups.rules import ReplicaGroupView as ControllerView
from epochmq_controller.replica_groups.state_machine_types import RejectRequest, RespondToRequest
from epochmq_protocol.codes import ResponseCode
from tests.simulation.brokers import CLUSTER


def request_for(
    group: str, address: str, question: asks.Question, *, in_doubt: bool = False
) -> requests.ControllerRequest:
    """What the controller is asked. `in_doubt`: what the broker says of its log."""
    match question:
        case asks.NextId():
            return requests.GetNextBrokerIdRequest(group)
        case asks.ApplyId(application=application):
            return requests.ApplyBrokerIdRequest(
                group, CLUSTER, application.identity.id, application.check_code
            )
        case asks.Register(broker_id=broker_id):
            return requests.RegisterBrokerRequest(group, CLUSTER, broker_id, address)
        case asks.Elect(broker_id=broker_id):
            return requests.ElectMasterRequest(group, broker_id, in_doubt=in_doubt)
        case asks.Look():
            return requests.GetReplicaInfoRequest(group)
        case asks.Alter():
            return requests.AlterSyncStateSetRequest(
                group, question.broker_id, question.epoch, question.members, question.set_epoch
            )


def reply_to(
    question: asks.Question, answer: RespondToRequest | RejectRequest, number: int, check_code: str
) -> asks.Reply:
    """What the broker hears."""
    if isinstance(answer, RejectRequest):
        return asks.Refused(answer.code, answer.remark)
    decision = answer.decision
    elected = isinstance(question, asks.Elect) and decision.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    if decision.code != ResponseCode.SUCCESS and not elected:
        return asks.Refused(decision.code, decision.remark or "")
    match question:
        case asks.NextId():
            return asks.FreeId(number, check_code)
        case asks.ApplyId():
            return asks.Granted()
        case _:
            assert decision.view is not None
            return said(decision.view)


def said(view: ControllerView) -> asks.MasterView:
    """What a controller's answer says, as `replicas.controllers.view` reads it."""
    return asks.MasterView(
        master_id=view.master_id if view.master_address else None,
        address=view.master_address or None,
        epoch=view.master_epoch or 0,
        members=view.sync_state_set,
        set_epoch=view.sync_state_set_epoch if view.sync_state_set_epoch is not None else -1,
    )

"""Translates a broker's questions into the controllers' requests, and their results into replies, as
`replicas.controller_client` does on the wire.
"""

from __future__ import annotations

from epochmq_broker.membership.controlled import state_machine_types as messages
from epochmq_controller.replica_groups import requests
from epochmq_controller.replica_groups.rules import ReplicaGroupView as ControllerView
from epochmq_controller.replica_groups.state_machine_types import RejectRequest, RespondToRequest
from epochmq_protocol.codes import ResponseCode
from tests.simulation.brokers import CLUSTER


def request_for(
    group: str,
    address: str,
    question: messages.ControllerQuestion,
    *,
    in_doubt: bool = False,
    lineage: str = "",
) -> requests.ControllerRequest:
    """The controllers' request for a question. `in_doubt`: whether the broker's log is in doubt. `lineage`:
    the names of the process and of former ones."""
    match question:
        case messages.NextBrokerIdQuestion():
            return requests.GetNextBrokerIdRequest(group)
        case messages.ApplyBrokerIdQuestion(application=application):
            return requests.ApplyBrokerIdRequest(
                group, CLUSTER, application.identity.id, application.check_code
            )
        case messages.RegisterQuestion(broker_id=broker_id, adopts=adopts):
            return requests.RegisterBrokerRequest(group, CLUSTER, broker_id, address, lineage, adopts)
        case messages.ElectMasterQuestion(broker_id=broker_id):
            return requests.ElectMasterRequest(group, broker_id, in_doubt=in_doubt)
        case messages.ReplicaInfoQuestion():
            return requests.GetReplicaInfoRequest(group)
        case messages.AlterSyncStateSetQuestion():
            return requests.AlterSyncStateSetRequest(
                group,
                question.broker_id,
                question.epoch,
                question.members,
                question.set_epoch,
                question.least,
            )


def reply_to(
    question: messages.ControllerQuestion,
    response: RespondToRequest | RejectRequest,
    number: int,
    check_code: str,
) -> messages.ControllerReply:
    """The broker's reply for a controller's result."""
    if isinstance(response, RejectRequest):
        return messages.QuestionRejected(response.code, response.remark)
    decision = response.decision
    elected = (
        isinstance(question, messages.ElectMasterQuestion)
        and decision.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    )
    if decision.code != ResponseCode.SUCCESS and not elected:
        return messages.QuestionRejected(decision.code, decision.remark or "")
    match question:
        case messages.NextBrokerIdQuestion():
            return messages.FreeBrokerId(number, check_code)
        case messages.ApplyBrokerIdQuestion():
            return messages.BrokerIdGranted()
        case _:
            assert decision.view is not None
            return master_view_of(decision.view)


def master_view_of(view: ControllerView) -> messages.MasterView:
    """Decodes a view, as `replicas.controller_client.decode_master_view` reads it."""
    return messages.MasterView(
        master_id=view.master_id if view.master_address else None,
        address=view.master_address or None,
        epoch=view.master_epoch or 0,
        members=view.sync_state_set,
        set_epoch=view.sync_state_set_epoch if view.sync_state_set_epoch is not None else -1,
        least=view.least,
    )

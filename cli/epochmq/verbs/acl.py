"""Implements `epochmq acl`: creates, lists, changes and deletes the entries of users' ACLs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epochmq.client.admin import AdminClient, BrokerAddress
from epochmq.exits import UsageError
from epochmq.verbs import access_calls
from epochmq.verbs.access_calls import SUBJECT_PREFIX
from epochmq.verbs.cluster_calls import ClusterVerb, confirm
from epochmq.verbs.output import Column
from epochmq.verbs.user import Selection, one_of
from epochmq_protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.headers_admin import (
    CreateAclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    UpdateAclRequestHeader,
)

ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All")
DECISIONS = ("Allow", "Deny")
POLICIES = ("Custom", "Default")
RESOURCE_TYPES = ("Cluster", "Topic", "Group", "Namespace")
COLUMNS = (
    Column("USER", "user"),
    Column("RESOURCE", "resource"),
    Column("ACTIONS", "actions"),
    Column("DECISION", "decision"),
    Column("SOURCE IPS", "sourceIps"),
    Column("POLICY", "policy", is_wide=True),
)


def parse_resource(text: str) -> str:
    """`Topic:orders`, `Topic:orders*`, `Topic:*` or `*`. Raises UsageError."""
    kind, colon, name = text.partition(":")
    known = next((one for one in RESOURCE_TYPES if one.lower() == kind.lower()), None)
    if text == "*":
        return text
    if known is None or not colon or not name or any(char.isspace() for char in name):
        raise UsageError(
            f"--resource {text}: expected Topic:NAME, Topic:PREFIX*, Topic:*, or the same of Group, Cluster "
            "or Namespace, or '*' for everything"
        )
    return f"{known}:{name}"


def parse_entries(
    resources: Sequence[str], actions: Sequence[str], source_ips: Sequence[str], decision: str | None
) -> list[PolicyEntryInfo]:
    """The entries that the options describe. Raises UsageError."""
    from epochmq_broker.auth.address_ranges import is_address_or_range

    words = [word.strip() for text in actions for word in text.split(",")]
    wanted = [one_of("--action", word, ACTIONS) or "" for word in words]
    addresses = [word.strip() for text in source_ips for word in text.split(",")]
    for address in addresses:
        if not is_address_or_range(address):
            raise UsageError(f"--source-ip {address}: expected an address such as 10.0.0.7, or 10.0.0.0/8")
    return [
        PolicyEntryInfo(
            resource=resource,
            actions=list(dict.fromkeys(wanted)),
            source_ips=addresses or None,
            decision=one_of("--decision", decision, DECISIONS) or DECISIONS[0],
        )
        for resource in dict.fromkeys(map(parse_resource, resources))
    ]


def list_acls(verb: ClusterVerb, user: str | None, resource: str | None, selection: Selection) -> int:
    """Prints the entries of ACLs."""
    return access_calls.print_listed(
        verb, COLUMNS, lambda client, broker: entries_of(client, broker, user, resource), selection.brokers
    )


async def entries_of(
    client: AdminClient, broker: BrokerAddress, user: str | None = None, resource: str | None = None
) -> list[dict[str, Any]]:
    """The entries of the ACLs that a broker has."""
    header = ListAclsRequestHeader(subject_filter=user, resource_filter=resource)
    response = await access_calls.call(client, broker, RequestCode.AUTH_LIST_ACL, header)
    return [row for acl in access_calls.decode_list(AclInfo, response.body) for row in _rows(acl)]


def put(
    verb: ClusterVerb,
    user: str,
    policy: str | None,
    entries: list[PolicyEntryInfo],
    selection: Selection,
    *,
    is_new: bool,
) -> int:
    """Adds entries to the ACL of a user, or with `is_new=False` replaces those for the same resources."""
    name = access_calls.checked_user(user)
    kind = one_of("--policy", policy, POLICIES) or POLICIES[0]
    acl = AclInfo(subject=f"{SUBJECT_PREFIX}{name}", policies=[PolicyInfo(policy_type=kind, entries=entries)])
    header: Any = (CreateAclRequestHeader if is_new else UpdateAclRequestHeader)(subject=acl.subject)
    code = RequestCode.AUTH_CREATE_ACL if is_new else RequestCode.AUTH_UPDATE_ACL

    async def action(client: AdminClient) -> list[dict[str, Any]]:
        masters, brokers = await selection.with_masters(client)
        for broker in masters:
            await _require(client, broker, name, kind, [one.resource or "" for one in entries], is_new)

        async def write(broker: BrokerAddress) -> str:
            if not broker.is_master and await access_calls.find_user(client, broker, name) is None:
                return "no such user"
            await access_calls.call(client, broker, code, header, to_json(acl))
            return "created" if is_new else "changed"

        return await access_calls.in_order(client, write, brokers)

    rows = [shown | row for row in verb.run(action) for shown in _rows(acl)]
    return access_calls.print_change(verb, COLUMNS, rows, name)


def delete(
    verb: ClusterVerb, user: str, resource: str | None, policy: str | None, selection: Selection, *, yes: bool
) -> int:
    """Deletes the entry for a resource, or the whole ACL."""
    name = access_calls.checked_user(user)
    wanted = None if resource is None else parse_resource(resource)
    kind = one_of("--policy", policy, POLICIES) or POLICIES[0]
    if policy is not None and wanted is None:
        raise UsageError("--policy needs --resource: without it the whole ACL is deleted")
    what = "the whole ACL" if wanted is None else f"the entry for {wanted}"

    async def check(client: AdminClient) -> None:
        masters, _ = await selection.with_masters(client)
        for broker in masters:
            await _require(client, broker, name, kind, [wanted] if wanted else [], is_new=False)

    verb.run(check)
    confirm(f"Delete {what} of user {name}?", yes=yes)
    header = DeleteAclRequestHeader(
        subject=f"{SUBJECT_PREFIX}{name}", policy_type=kind if wanted else None, resource=wanted
    )

    async def action(client: AdminClient) -> list[dict[str, Any]]:
        _, brokers = await selection.with_masters(client)

        async def remove(broker: BrokerAddress) -> str:
            known = broker.is_master or await access_calls.find_user(client, broker, name) is not None
            if not known or not (await access_calls.find_acl(client, broker, name)).policies:
                return "no such entry"
            await access_calls.call(client, broker, RequestCode.AUTH_DELETE_ACL, header)
            return "deleted"

        return await access_calls.in_order(client, remove, brokers)

    columns = (Column("USER", "user"), Column("RESOURCE", "resource"))
    rows = [{"user": name, "resource": wanted} | row for row in verb.run(action)]
    return access_calls.print_change(verb, columns, rows, name)


async def _require(
    client: AdminClient, broker: BrokerAddress, name: str, policy: str, resources: Sequence[str], is_new: bool
) -> None:
    """Raises RequestError if the user is unknown, a new entry is there, or a former one is not."""
    if await access_calls.find_user(client, broker, name) is None:
        raise RequestError(
            ResponseCode.USER_NOT_EXIST,
            f"user {name} does not exist at {broker.broker_name}; create it: `epochmq user create {name}`",
        )
    rows = _rows(await access_calls.find_acl(client, broker, name))
    known = {str(row["resource"]) for row in rows if row["policy"] == policy}
    if not is_new and not resources and not rows:
        raise RequestError(ResponseCode.NO_PERMISSION, f"user {name} has no ACL at {broker.broker_name}")
    for resource in resources:
        if is_new and resource in known:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the ACL of user {name} has an entry for {resource}; change it with `epochmq acl update`",
            )
        if not is_new and resource not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"user {name} has no entry for {resource} at {broker.broker_name}; there is: {listed}",
            )


def _rows(acl: AclInfo) -> list[dict[str, Any]]:
    return [
        {
            "user": (acl.subject or "").removeprefix(SUBJECT_PREFIX),
            "policy": policy.policy_type or POLICIES[0],
            "resource": entry.resource,
            "actions": entry.actions or [],
            "sourceIps": entry.source_ips or [],
            "decision": entry.decision,
        }
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    ]

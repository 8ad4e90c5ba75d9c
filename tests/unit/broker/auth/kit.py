"""Runs a broker with access control, and sends signed requests to it."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo, to_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_admin import CreateAclRequestHeader, CreateUserRequestHeader
from epochmq_protocol.signatures import SessionCredentials, sign
from tests.unit.broker.kit import Peer, command

AUTH = "org.apache.rocketmq.auth"
PROVIDERS = {
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
ROOT = SessionCredentials("root", "root-secret")
INNER = SessionCredentials("inner", "inner-secret")
ENABLED = PROVIDERS | {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}
"""The settings of a broker that checks every request."""


def signed(request: Command, credentials: SessionCredentials = ROOT) -> Command:
    """The request with the signature of a user."""
    sign(request, credentials)
    return request


def create_user(name: str, password: str, user_type: str = "Normal") -> Command:
    """3001."""
    body = UserInfo(password=password, user_type=user_type)
    return command(RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(username=name), to_json(body))


def acl_body(
    name: str,
    resources: list[str],
    actions: list[str],
    decision: str = "Allow",
    source_ips: list[str] | None = None,
    policy_type: str | None = None,
) -> bytes:
    """An ACL as `mqadmin createAcl` sends it."""
    entries = [PolicyEntryInfo(resource, actions, source_ips, decision) for resource in resources]
    return to_json(AclInfo(subject=f"User:{name}", policies=[PolicyInfo(policy_type, entries)]))


def create_acl(
    name: str, resources: list[str], actions: list[str], decision: str = "Allow", *ips: str
) -> Command:
    """3006."""
    body = acl_body(name, resources, actions, decision, list(ips) or None)
    return command(RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader(subject=f"User:{name}"), body)


def allow(peer: Peer, name: str, permissions: Mapping[str, list[str]]) -> SessionCredentials:
    """Adds a user who may do these actions (resource → actions), and returns the user's credentials."""
    assert peer.call(signed(create_user(name, f"{name}-secret"))).code == 0
    for resource, actions in permissions.items():
        assert peer.call(signed(create_acl(name, [resource], actions))).code == 0
    return SessionCredentials(name, f"{name}-secret")

"""Provides the users that a broker starts with: those of its configuration, and the accounts of RocketMQ 4's
files."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from epochmq_broker.auth.access_settings import AccessKeys, parse_credentials, parse_init_user
from epochmq_broker.auth.metadata import AuthMetadata
from epochmq_broker.auth.metadata_files import take_over_plain_acl
from epochmq_broker.auth.users import User, UserStatus, UserType

log = logging.getLogger(__name__)


def provide_users(config: AccessKeys, metadata: AuthMetadata) -> None:
    """Adds the users of the configuration that do not exist yet, as super users, and the accounts of
    RocketMQ 4's files if the configuration says so. Raises ConfigError."""
    init_user = parse_init_user(config.init_authentication_user)
    if init_user is not None:
        metadata.add(init_user)
    own = parse_credentials(config.inner_client_authentication_credentials)
    if own is not None:
        metadata.add(User(own.access_key, own.secret_key, UserType.SUPER, UserStatus.ENABLE))
    elif config.authentication_enabled:
        log.warning(
            "innerClientAuthenticationCredentials is not set: requests of this broker to other brokers are "
            "not signed, and those with authentication reject them"
        )
    if config.authorization_enabled and not config.authentication_enabled:
        log.warning("authorizationEnabled without authenticationEnabled: signatures are not checked")
    home = os.environ.get("ROCKETMQ_HOME", "")
    if config.migrate_auth_from_v1_enabled and home:
        count = take_over_plain_acl(Path(home), metadata)
        log.info("took over %d accounts of the plain ACL files below %s", count, home)

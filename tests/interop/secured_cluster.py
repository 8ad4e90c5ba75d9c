"""EpochMQ's nameserver and broker as a hostile network needs them, with the interface of
`tests.support.cluster`. `MutualTlsCluster` has external ports that demand TLS with a certificate of the
client. The broker of `SecuredCluster` also demands, with `aclStrict`, that each request is signed by a user
who has the right for it. `JavaUsersCluster` has RocketMQ's broker with the same users.

The clients of the tests are three users. The application and the observer have the rights in `RIGHTS`, the
administrator is a super user. RocketMQ's Java clients use the external ports. `mqadmin` uses the main ports,
by TLS with a certificate, too: the nameserver's external port serves no administration. RocketMQ's clients
for Go and C++ have no certificate of their own. They sign, and use the main ports without TLS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.interop.java_cluster import JavaCluster
from tests.support.certificates import Authority
from tests.support.cluster import ClientAccess, Cluster, OurCluster, Settings, User, Value
from tests.support.net import free_port
from tests.support.process import PATIENCE_S
from tests.support.remoting import call, sign_requests_to
from tests.support.signing import CHECKED, ROOT, signed

AUTH_CREATE_USER, AUTH_CREATE_ACL = 3001, 3006

APPLICATION: User = ("application", "application-secret")
"""A program that creates topics, produces, consumes, and reads dead letters."""
OBSERVER: User = ("observer", "observer-secret")
"""The test itself, which looks at what the broker has stored."""
OWN_TOPICS = ("T_*", "ttt*", "unknown_topic*", "Go*", "Cpp*", "orders", "fixed")
OWN_GROUPS = ("G_*", "P_*", "g1", "g3", "round_trip_consumer")
RIGHTS: Mapping[User, Mapping[str, str]] = {
    APPLICATION: {
        **{f"Topic:{name}": "Pub,Sub,Get,Create" for name in OWN_TOPICS},
        **{f"Group:{name}": "Sub,Get" for name in OWN_GROUPS},
        "Topic:%DLQ%*": "Sub,Get",
        "Topic:TestCluster_REPLY_TOPIC": "Pub",
        "Topic:RMQ_SYS_TRACE_TOPIC": "Pub",
    },
    OBSERVER: {"Topic:*": "Sub,Get", "Group:*": "Sub,Get"},
}
"""What each user may do: resource → actions."""


class Certificates:
    """The files of the servers: `tls.crt`, `tls.key` and `ca.crt`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority("none")

    def issue(self, name: str) -> Authority:
        """Replaces the files; a new authority signs, and is the only one trusted."""
        self.authority = Authority(name)
        self.authority.issue(self.directory, "server")
        (self.directory / "ca.crt").write_bytes(self.authority.pem)
        return self.authority

    def settings(self) -> dict[str, Value]:
        return {
            "tls.server.certPath": str(self.directory / "tls.crt"),
            "tls.server.keyPath": str(self.directory / "tls.key"),
            "tls.server.trustCertPath": str(self.directory / "ca.crt"),
            "tls.server.need.client.auth": "require",
            "externalTlsMode": "enforcing",
        }


def client_properties(directory: Path) -> list[str]:
    """The properties of a Java client with the files of this directory."""
    return [
        "-Dtls.enable=true",
        # A handshake takes seconds on a busy machine.
        f"-Dcom.rocketmq.remoting.client.connect.timeout={PATIENCE_S * 1000}",
        "-Dtls.test.mode.enable=false",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.trustCertPath={directory / 'ca.crt'}",
        f"-Dtls.client.certPath={directory / 'tls.crt'}",
        f"-Dtls.client.keyPath={directory / 'tls.key'}",
    ]


class MutualTlsCluster(OurCluster):
    """EpochMQ's nameserver and broker, whose external ports demand certificates of clients."""

    def __init__(
        self,
        directory: Path,
        *,
        broker: Settings | None = None,
        nameserver: Settings | None = None,
        octet: int = 58,
    ) -> None:
        self.certificates = Certificates(directory / "certificates" / "server")
        self.certificates.issue("first")
        self.client_directory = directory / "certificates" / "client"
        self._jvm = client_properties(self.client_directory)
        self.replace_client_certificate()
        nameserver_port, broker_port = free_port("0.0.0.0"), free_port("0.0.0.0")
        tls = self.certificates.settings()
        super().__init__(
            directory,
            broker={**(broker or {}), **tls, "externalListenPort": broker_port},
            nameserver={**(nameserver or {}), **tls, "externalListenPort": nameserver_port},
            octet=octet,
        )
        self.external_nameserver = f"{self.nameserver_address.partition(':')[0]}:{nameserver_port}"
        self.external_broker = f"{self.broker_address.partition(':')[0]}:{broker_port}"

    def replace_client_certificate(self) -> None:
        """Gives clients a certificate of the authority that the servers trust now."""
        authority = self.certificates.authority
        authority.issue(self.client_directory, "client")
        (self.client_directory / "ca.crt").write_bytes(authority.pem)

    @property
    def access(self) -> ClientAccess:
        """That of clients outside."""
        return ClientAccess(self.external_nameserver, tuple(self._jvm))


class UsersCluster(Cluster):
    """A nameserver, and a broker that serves users only: each request needs a signature and a right."""

    MORE_RIGHTS: ClassVar[Mapping[str, str]] = {}
    """What the application may do beyond `RIGHTS`."""

    def __init__(
        self,
        directory: Path,
        *,
        broker: Settings | None = None,
        nameserver: Settings | None = None,
        octet: int = 58,
    ) -> None:
        super().__init__(directory, broker={**(broker or {}), **CHECKED}, nameserver=nameserver, octet=octet)
        sign_requests_to(self.broker_address, signed)

    @property
    def access(self) -> ClientAccess:
        """That of Java clients outside."""
        access = super().access
        users = {"application": APPLICATION, "observer": OBSERVER, "administrator": ROOT}
        signing = tuple(f"-Depochmq.interop.{role}={':'.join(user)}" for role, user in users.items())
        return access._replace(jvm=(*access.jvm, *signing), user=APPLICATION)

    @property
    def inner_access(self) -> ClientAccess:
        """That of `mqadmin`, and of clients that have no certificate."""
        return self.access._replace(nameserver=self.nameserver_address, administrator=ROOT)

    def start(self) -> None:
        """Starts both, and creates the users."""
        super().start()
        for user, rights in RIGHTS.items():
            self._create(user, {**rights, **self.MORE_RIGHTS} if user == APPLICATION else rights)

    def _create(self, user: User, rights: Mapping[str, str]) -> None:
        name, password = user
        entries = [
            {"resource": resource, "actions": actions.split(","), "decision": "Allow"}
            for resource, actions in rights.items()
        ]
        acl = {"subject": f"User:{name}", "policies": [{"policyType": "Custom", "entries": entries}]}
        for code, ext, body in (
            (AUTH_CREATE_USER, {"username": name}, {"password": password, "userType": "Normal"}),
            (AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl),
        ):
            answer = call(self.broker_address, code, ext, json.dumps(body).encode())
            assert answer.code == 0, answer.remark


class SecuredCluster(UsersCluster, MutualTlsCluster):
    """EpochMQ's nameserver and broker, which demand certificates of clients, and signatures of users with
    rights. `aclStrict` has its default: it is on."""


class JavaUsersCluster(UsersCluster, JavaCluster):
    """RocketMQ's nameserver and broker, with the same users: they prove that EpochMQ asks for no right that
    RocketMQ does not ask for. They have no certificates."""

    MORE_RIGHTS: ClassVar[Mapping[str, str]] = {"Topic:RMQ_SYS_TRANS_HALF_TOPIC": "Pub"}
    """RocketMQ asks for this right of producers that answer the check of a transaction."""

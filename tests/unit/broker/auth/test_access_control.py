"""What a broker with access control rejects, and with which words."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from epochmq_broker.requests.fast_handler import Port
from epochmq_protocol.bodies import HeartbeatData, LockBatchRequestBody, to_json
from epochmq_protocol.bodies_client import ConsumerData
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import FLAG_ONEWAY, Command
from epochmq_protocol.headers_client import (
    ConsumerSendMsgBackRequestHeader,
    GetMaxOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from epochmq_protocol.replica_control import ReplicaControlCode
from epochmq_protocol.signatures import SIGNATURE, SessionCredentials
from epochmq_protocol.topics import TopicConfig
from tests.unit.broker.auth.kit import AUTH, ENABLED, PROVIDERS, ROOT, allow, create_acl, create_user, signed
from tests.unit.broker.kit import Bench, command, pull_command, running, send_command

DENIED = ResponseCode.NO_PERMISSION
FAILED = "Authorization failed. Please verify your access rights and try again."


def add_topics(bench: Bench, *names: str) -> None:
    for name in names:
        bench.broker.topics.put(TopicConfig(topic_name=name))


async def test_a_request_is_served_only_with_the_signature_of_a_known_and_enabled_user(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        add_topics(bench, "orders")
        assert peer.call(signed(send_command("orders"))).code == ResponseCode.SUCCESS

        def remark(request: Command) -> tuple[int, str | None]:
            answer = peer.call(request)
            return answer.code, answer.remark

        assert remark(send_command("orders")) == (DENIED, "username cannot be null.")
        stranger = signed(send_command("orders"), SessionCredentials("eve", "secret"))
        assert remark(stranger) == (DENIED, "User:eve is not found.")
        forged = signed(send_command("orders"), SessionCredentials("root", "wrong"))
        assert remark(forged) == (DENIED, "check signature failed.")
        changed = signed(send_command("orders", b"ten apples"))
        changed.body = b"ten pears!"
        assert remark(changed) == (DENIED, "check signature failed.")
        unsigned = signed(send_command("orders"))
        assert unsigned.ext is not None
        del unsigned.ext[SIGNATURE]
        assert remark(unsigned) == (DENIED, "check signature failed.")
        assert bench.count("orders") == 1
        assert bench.broker.access.unauthenticated == 5


async def test_a_disabled_user_is_rejected_until_enabled_again(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        alice = allow(peer, "alice", {"Topic:orders": ["Get"]})
        add_topics(bench, "orders")

        def ask() -> str | None:
            header = GetMaxOffsetRequestHeader(topic="orders", queue_id=0)
            return peer.call(signed(command(RequestCode.GET_MAX_OFFSET, header), alice)).remark

        def set_status(status: str) -> None:
            body = f'{{"userStatus":"{status}"}}'.encode()
            update = command(RequestCode.AUTH_UPDATE_USER, None, body, username="alice")
            assert peer.call(signed(update)).code == ResponseCode.SUCCESS

        assert ask() is None
        set_status("disable")
        assert ask() == "User:alice is disabled."
        set_status("enable")
        assert ask() is None


async def test_a_user_may_do_what_the_acl_allows_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        add_topics(bench, "orders", "invoices", "%RETRY%readers")
        alice = allow(peer, "alice", {"Topic:orders": ["Pub", "Sub"], "Group:readers": ["Sub"]})
        host = peer.wire.peer[0]

        def denial(request: Command) -> str | None:
            answer = peer.call(signed(request, alice))
            assert answer.code in (ResponseCode.SUCCESS, DENIED)
            return answer.remark if answer.code == DENIED else None

        def remark(resource: str) -> str:
            return f"User:alice has no permission to access {resource} from {host}, no matched policies."

        assert denial(send_command("orders")) is None
        assert denial(send_command("invoices")) == remark("Topic:invoices")
        assert denial(send_command("%RETRY%writers")) == remark("Group:writers")
        assert denial(send_command("%RETRY%writers", producer_group="readers")) == remark("Group:writers")
        assert denial(send_command("%RETRY%readers")) is None
        assert denial(pull_command("orders", group="readers")) is None
        assert denial(pull_command("orders", group="others")) == remark("Group:others")
        assert denial(pull_command("invoices", group="readers")) == remark("Topic:invoices")
        lite = pull_command("invoices", group="readers", code=RequestCode.LITE_PULL_MESSAGE)
        assert denial(lite) == remark("Topic:invoices")
        back = ConsumerSendMsgBackRequestHeader(group="others", offset=0, delay_level=0)
        assert denial(command(RequestCode.CONSUMER_SEND_MSG_BACK, back)) == remark("Group:others")
        offset = UpdateConsumerOffsetRequestHeader(
            consumer_group="others", topic="orders", queue_id=0, commit_offset=1
        )
        assert denial(command(RequestCode.UPDATE_CONSUMER_OFFSET, offset)) == remark("Group:others")
        beat = HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name="others")])
        assert denial(command(RequestCode.HEART_BEAT, None, to_json(beat))) == remark("Group:others")
        lock = LockBatchRequestBody(consumer_group="others", client_id="c")
        assert denial(command(RequestCode.LOCK_BATCH_MQ, None, to_json(lock))) == remark("Group:others")
        assert denial(create_user("bob", "secret")) == remark("Cluster:TestCluster")
        own = command(ReplicaControlCode.SWITCHOVER, None, b"", brokerId="1")
        assert denial(own) == remark("Cluster:TestCluster")
        assert denial(command(RequestCode.HEART_BEAT, None, b"{")) == "parse authorization context error."


async def test_a_rejected_one_way_request_has_no_effect_and_no_response(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        add_topics(bench, "orders")
        request = send_command("orders")
        request.flag = FLAG_ONEWAY
        peer.send(request)
        peer.collect()
        assert peer.answers == {}
        assert bench.count("orders") == 0
        assert bench.broker.access.unauthenticated == 1


async def test_source_addresses_restrict_an_entry(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        add_topics(bench, "orders")
        alice = allow(peer, "alice", {})
        peer.call(signed(create_acl("alice", ["Topic:*"], ["All"], "Allow", "127.99.0.0/16", "10.1.2.3")))
        near = bench.peer(address=("127.99.3.4", 4000))
        assert near.call(signed(send_command("orders"), alice)).code == ResponseCode.SUCCESS
        assert peer.call(signed(send_command("orders"), alice)).code == DENIED


async def test_whitelisted_codes_need_no_check(tmp_path: Path) -> None:
    code = int(RequestCode.GET_MAX_OFFSET)
    settings = ENABLED | {"authenticationWhitelist": f"{code}, 11", "authorizationWhitelist": f" {code}"}
    async with running(tmp_path, settings) as bench:
        peer = bench.peer()
        add_topics(bench, "orders")
        header = GetMaxOffsetRequestHeader(topic="orders", queue_id=0)
        assert peer.call(command(code, header)).code == ResponseCode.SUCCESS
        assert peer.call(send_command("orders")).remark == "username cannot be null."
        assert peer.call(pull_command("orders")).remark == FAILED


async def test_authorization_alone_trusts_the_name_in_the_request(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED | {"authenticationEnabled": "false"}) as bench:
        peer = bench.peer()
        add_topics(bench, "orders")
        assert peer.call(send_command("orders")).remark == FAILED
        forged = signed(send_command("orders"), SessionCredentials("root", "wrong"))
        assert peer.call(forged).code == ResponseCode.SUCCESS
        unknown = signed(send_command("orders"), SessionCredentials("eve", "secret"))
        assert peer.call(unknown).remark == "User:eve not found."


async def test_a_stateful_strategy_remembers_results_for_a_connection(tmp_path: Path) -> None:
    settings = ENABLED | {
        "authenticationStrategy": f"{AUTH}.authentication.strategy.StatefulAuthenticationStrategy",
        "authorizationStrategy": f"{AUTH}.authorization.strategy.StatefulAuthorizationStrategy",
    }
    async with running(tmp_path, settings) as bench:
        peer, other = bench.peer(), bench.peer()
        add_topics(bench, "orders")
        forged = SessionCredentials("root", "wrong")
        assert peer.call(signed(send_command("orders"))).code == ResponseCode.SUCCESS
        assert peer.call(signed(send_command("orders"), forged)).code == ResponseCode.SUCCESS
        assert other.call(signed(send_command("orders"), forged)).code == DENIED
        assert other.call(signed(send_command("orders"))).code == DENIED, "the denial is remembered, too"


async def test_without_the_keys_nothing_is_checked_and_the_fast_paths_serve(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        assert len(bench.broker.pipeline.fast_handlers(Port.MAIN)) > 0
        add_topics(bench, "orders")
        assert bench.peer().call(send_command("orders")).code == ResponseCode.SUCCESS


async def test_with_the_keys_there_is_no_fast_path_on_either_port(tmp_path: Path) -> None:
    async with running(tmp_path, ENABLED) as bench:
        assert not bench.broker.pipeline.fast_handlers(Port.MAIN)
        assert not bench.broker.pipeline.fast_handlers(Port.VIP)
        vip = bench.broker.pipeline.handlers(Port.VIP)
        peer = bench.peer()
        assert set(vip) <= set(bench.broker.pipeline.handlers(Port.MAIN))
        default = bench.broker.pipeline.default
        assert default is not None
        with pytest.raises(Exception, match=r"username cannot be null\."):
            default(peer.connection, command(4711))
        assert default(peer.connection, signed(command(4711))).code == 3  # type: ignore[union-attr]


async def test_rejections_are_logged_a_bounded_number_of_times(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, ENABLED) as bench:
        peer = bench.peer()
        with caplog.at_level(logging.WARNING, "epochmq_broker.auth.access_control"):
            for _ in range(200):
                peer.call(send_command("orders"))
        lines = [one for one in caplog.records if "rejected request 310" in one.getMessage()]
        assert 0 < len(lines) <= 60, "20 lines a second at most"
        assert vars(lines[0])["reason"] == "username cannot be null."
        assert vars(lines[0])["audit"] == "authentication"
        assert bench.broker.access.unauthenticated == 200


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
async def test_users_need_a_provider(tmp_path: Path, provider: str) -> None:
    settings = {key: value for key, value in PROVIDERS.items() if key == provider}
    async with running(tmp_path, settings) as bench:
        peer = bench.peer()
        wanted = "An system error occurred, please try again later."
        assert peer.call(create_acl("alice", ["*"], ["All"])).remark == wanted
        has_users = provider == "authenticationMetadataProvider"
        assert (peer.call(create_user("alice", "secret")).remark is None) == has_users


def test_root_is_no_placeholder() -> None:
    """The credentials of these tests are complete."""
    assert ROOT.complete
    assert not SessionCredentials("", "secret").complete

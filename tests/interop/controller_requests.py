"""Invalid requests to a controller, with the response code of RocketMQ 5.3.3 and the remark that EpochMQ must
give. The requests depend on each other: later ones find the state that earlier ones left."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

ALTER, ELECT, REGISTER, INFO, METADATA, SYNC_STATE = 1001, 1002, 1003, 1004, 1005, 1006
UPDATE_CONFIG, GET_CONFIG, CLEAN, NEXT_ID, APPLY_ID, HEARTBEAT = 1009, 1010, 1011, 1012, 1013, 904

OK, ERROR, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 3, 16
FENCED_EPOCH, FENCED_SET_EPOCH, INVALID_MASTER, INVALID_REPLICAS, NOT_AVAILABLE = 2000, 2001, 2002, 2003, 2004
INVALID_REQUEST, NOT_ALIVE, NOT_LEADER, NO_METADATA, INVALID_CLEAN = 2005, 2006, 2007, 2008, 2009
UNREGISTERED, STILL_EXISTS, ELECT_FAILED, ALTER_FAILED, ID_INVALID = 2010, 2011, 2012, 2013, 2014

CLUSTER, NAME = "c", "b"
MEMBERS, DEAD = (1, 2), 3
"""Replicas that send heartbeats, and one that does not."""


@dataclass(frozen=True)
class Case:
    """One request. `code` is RocketMQ's response code; `remark` is part of EpochMQ's remark ("…" for anything
    in between); `ours` is EpochMQ's code where it differs on purpose (docs/controller.md says why)."""

    label: str
    request: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    code: int = OK
    remark: str = ""
    ours: int | None = None


def sync_set(epoch: int, *ids: int) -> bytes:
    """The body of ALTER_SYNC_STATE_SET."""
    return json.dumps({"syncStateSet": list(ids), "syncStateSetEpoch": epoch}).encode()


WHO = {"clusterName": CLUSTER, "brokerName": NAME}
ALTERED = {"brokerName": NAME, "masterBrokerId": "1", "masterEpoch": "1", "invokeTime": "0"}
ELECTED = {**WHO, "brokerId": "1", "designateElect": "false", "invokeTime": "0"}
REGISTERED = {**WHO, "brokerId": "2", "brokerAddress": "127.0.0.1:2", "invokeTime": "0"}
CLEANED = {**WHO, "brokerControllerIdsToClean": "3", "isCleanLivingBroker": "false", "invokeTime": "0"}
LIVING = {**CLEANED, "brokerControllerIdsToClean": "1"}
APPLIED = {**WHO, "appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;t1"}
BEAT = {
    **WHO,
    "brokerAddr": "127.0.0.1:1",
    "brokerId": "1",
    "epoch": "1",
    "maxOffset": "10",
    "confirmOffset": "10",
    "heartbeatTimeoutMills": "600000",
    "electionPriority": "1",
}

ELSE = {**BEAT, "brokerName": "somebody else"}


def without(fields: dict[str, str], *keys: str) -> dict[str, str]:
    """A header with fields left out."""
    return {key: value for key, value in fields.items() if key not in keys}


def applied(broker_id: int, name: str = NAME) -> dict[str, str]:
    """The header of a replica's application for its id."""
    return {
        **WHO,
        "brokerName": name,
        "appliedBrokerId": str(broker_id),
        "registerCheckCode": f"127.0.0.1:{broker_id};t{broker_id}",
    }


NOT_NUMBERS = ("x", "1.5", "0x1", "9" * 20)
NO_NAME = "brokerName: missing, expected a text"

UNKNOWN_CODES = [
    Case(f"request {code}", code, code=NOT_SUPPORTED, remark=f" request type {code} not supported")
    for code in (3, 999, 1014)
]

UNKNOWN_GROUP = [
    Case("alter", ALTER, ALTERED, sync_set(1, 1, 2), ALTER_FAILED, "Broker metadata is not existed"),
    Case("alter without a body", ALTER, ALTERED, b"", ALTER_FAILED, "Broker metadata is not existed"),
    Case("elect", ELECT, ELECTED, b"", UNREGISTERED, "Broker hasn't been registered"),
    Case("elect without any field", ELECT, {}, b"", UNREGISTERED, "Broker hasn't been registered"),
    Case("register", REGISTER, REGISTERED, b"", UNREGISTERED, "Broker-set: b hasn't been registered"),
    Case("register, no id", REGISTER, without(REGISTERED, "brokerId"), b"", UNREGISTERED, "Broker-set: b"),
    Case("replica info", INFO, WHO, b"", NO_METADATA, "Broker metadata is not existed"),
    Case("sync state", SYNC_STATE, {}, b'["b"]'),
    Case("clean", CLEAN, CLEANED, b"", INVALID_CLEAN, "Broker b is not existed"),
    Case(
        "clean all", CLEAN, without(CLEANED, "brokerControllerIdsToClean"), b"", INVALID_CLEAN, "Broker b is"
    ),
    Case("next id", NEXT_ID, WHO),
    Case("apply for 2", APPLY_ID, applied(2), b"", ID_INVALID, "b hasn't been registered … brokerId: 2"),
]

WITHOUT_NAME = [
    Case("alter", ALTER, without(ALTERED, "brokerName"), sync_set(1, 1), ERROR, NO_NAME),
    Case("register", REGISTER, without(REGISTERED, "brokerName"), b"", ERROR, NO_NAME),
    Case("replica info", INFO, {}, b"", ERROR, NO_NAME),
    Case("clean", CLEAN, without(CLEANED, "brokerName"), b"", ERROR, "brokerName: missing, expected a text"),
    Case("next id", NEXT_ID, without(WHO, "brokerName"), b"", ERROR, NO_NAME),
    Case("apply", APPLY_ID, without(APPLIED, "brokerName"), b"", ERROR, "brokerName, … are required"),
]

IDS = [
    Case("no id", APPLY_ID, without(APPLIED, "appliedBrokerId"), b"", ERROR, "appliedBrokerId"),
    *(
        Case(
            f"id {text}", APPLY_ID, {**APPLIED, "appliedBrokerId": text}, b"", ERROR, f"Id='{text}': expected"
        )
        for text in NOT_NUMBERS
    ),
    Case("no check code", APPLY_ID, without(APPLIED, "registerCheckCode"), b"", ERROR, "registerCheckCode"),
    Case("no cluster", APPLY_ID, without(applied(1, "z"), "clusterName"), b"", OK, "clusterName", ours=ERROR),
    Case("1", APPLY_ID, APPLIED),
    Case("1 again", APPLY_ID, APPLIED),
    Case(
        "1 by another",
        APPLY_ID,
        {**APPLIED, "registerCheckCode": "127.0.0.1:9;t"},
        b"",
        ID_INVALID,
        "Fail to apply brokerId: 1 in broker-set: b",
    ),
    Case("2", APPLY_ID, applied(2)),
    Case("3", APPLY_ID, applied(DEAD)),
    Case("next id", NEXT_ID, WHO),
    Case(
        "register an unknown id",
        REGISTER,
        {**REGISTERED, "brokerId": "77"},
        b"",
        UNREGISTERED,
        "BrokerId: 77",
    ),
    Case("register", REGISTER, REGISTERED),
    Case("register, no id", REGISTER, without(REGISTERED, "brokerId"), b"", ERROR, "brokerId: missing"),
    *(
        Case(
            f"register id {text}",
            REGISTER,
            {**REGISTERED, "brokerId": text},
            b"",
            ERROR,
            f"brokerId: missing, …; brokerId='{text}': expected a 64-bit integer",
        )
        for text in NOT_NUMBERS
    ),
    Case(
        "register, no address",
        REGISTER,
        without(REGISTERED, "brokerAddress"),
        b"",
        ERROR,
        "brokerAddress: missing, expected host:port",
    ),
    Case("register, no cluster", REGISTER, without(REGISTERED, "clusterName")),
    Case("register, no time", REGISTER, without(REGISTERED, "invokeTime")),
]

FIRST_ELECTION = [
    Case(
        "no master yet",
        ALTER,
        {**ALTERED, "masterEpoch": "0"},
        sync_set(0, 1, 2),
        INVALID_MASTER,
        "current leader is:{…}, not {1}",
    ),
    Case("elected", ELECT, ELECTED),
    Case("still there", ELECT, ELECTED, b"", STILL_EXISTS, "The old master 1 is still alive"),
    *(
        Case(f"no {key}", ELECT, without(ELECTED, key), b"", STILL_EXISTS, "The old master 1 is still alive")
        for key in ("clusterName", "brokerId", "designateElect", "invokeTime")
    ),
    *(
        Case(
            f"{key} {text}",
            ELECT,
            {**ELECTED, key: text},
            b"",
            STILL_EXISTS,
            f"still alive…; {key}='{text}': expected a 64-bit integer",
        )
        for key in ("brokerId", "invokeTime")
        for text in NOT_NUMBERS
    ),
    Case("designate x", ELECT, {**ELECTED, "designateElect": "x"}, b"", STILL_EXISTS, "still alive"),
    Case(
        "no name", ELECT, without(ELECTED, "brokerName"), b"", UNREGISTERED, "Broker hasn't been registered"
    ),
    Case(
        "not in sync",
        ELECT,
        {**ELECTED, "brokerId": "2", "designateElect": "true"},
        b"",
        ELECT_FAILED,
        "Failed to elect a new master",
    ),
]

SYNC_STATE_SETS = [
    Case("the same set", ALTER, ALTERED, sync_set(1, 1), ALTER_FAILED, "is equal with oldSyncStateSet"),
    Case(
        "the same set by nobody",
        ALTER,
        {**ALTERED, "masterBrokerId": "3", "masterEpoch": "9"},
        sync_set(9, 1),
        ALTER_FAILED,
        "is equal with oldSyncStateSet",
    ),
    Case(
        "not the master",
        ALTER,
        {**ALTERED, "masterBrokerId": "2"},
        sync_set(1, 1, 2),
        INVALID_MASTER,
        "current leader is:{1}, not {2}",
    ),
    Case(
        "no master's id",
        ALTER,
        without(ALTERED, "masterBrokerId"),
        sync_set(1, 1, 2),
        INVALID_MASTER,
        "current leader is:{1}, not {None}",
    ),
    *(
        Case(
            f"master's id {text}",
            ALTER,
            {**ALTERED, "masterBrokerId": text},
            sync_set(1, 1, 2),
            INVALID_MASTER,
            f"masterBrokerId='{text}': expected a 64-bit integer",
        )
        for text in NOT_NUMBERS
    ),
    *(
        Case(
            f"master epoch {epoch}",
            ALTER,
            {**ALTERED, "masterEpoch": epoch},
            sync_set(1, 1, 2),
            FENCED_EPOCH,
            f"current master epoch is:{{1}}, not {{{epoch}}}",
        )
        for epoch in ("0", "2", "-1")
    ),
    Case(
        "no master epoch",
        ALTER,
        without(ALTERED, "masterEpoch"),
        sync_set(1, 1, 2),
        ERROR,
        "masterEpoch: missing",
    ),
    *(
        Case(
            f"master epoch {text}",
            ALTER,
            {**ALTERED, "masterEpoch": text},
            sync_set(1, 1, 2),
            ERROR,
            f"masterEpoch='{text}': expected a 32-bit integer",
        )
        for text in (*NOT_NUMBERS, str(1 << 31))
    ),
    *(
        Case(
            f"set epoch {epoch}",
            ALTER,
            ALTERED,
            sync_set(epoch, 1, 2),
            FENCED_SET_EPOCH,
            f"current syncStateSet epoch is:{{1}}, not {{{epoch}}}",
        )
        for epoch in (0, 2)
    ),
    Case("not a member", ALTER, ALTERED, sync_set(1, 1, 8), INVALID_REPLICAS, "replicas {8} don't exist"),
    Case("not alive", ALTER, ALTERED, sync_set(1, 1, 3), NOT_ALIVE, "replicas {3} don't alive"),
    Case("not its master", ALTER, ALTERED, sync_set(1, 2), ALTER_FAILED, "don't contains origin leader {1}"),
    Case("nobody", ALTER, ALTERED, sync_set(1), ALTER_FAILED, "don't contains origin leader {1}"),
    *(
        Case(f"body {body!r}", ALTER, ALTERED, body, ERROR, remark)
        for body, remark in (
            (b"", "body: missing, expected {"),
            (b"{}", "body: missing, expected {"),
            (b"null", "SyncStateSet"),
            (b"[", "SyncStateSet"),
            (b"[]", "SyncStateSet"),
            (b"nonsense", "SyncStateSet"),
            (b'"b"', "SyncStateSet"),
            (b'{"syncStateSet":"x"}', "syncStateSet='x'"),
            (b'{"syncStateSet":["a"],"syncStateSetEpoch":1}', "syncStateSet…'a'"),
            (b'{"syncStateSet":[1],"syncStateSetEpoch":"x"}', "syncStateSetEpoch='x'"),
            (b'{"syncStateSet":null,"syncStateSetEpoch":1}', "body: missing, expected {"),
        )
    ),
    Case("taken, ids as texts too", ALTER, ALTERED, b'{"syncStateSet":[1,"2"],"syncStateSetEpoch":1}'),
    Case(
        "taken twice is stale, whatever the time",
        ALTER,
        {**ALTERED, "invokeTime": "x"},
        sync_set(1, 1),
        FENCED_SET_EPOCH,
        "epoch is:{2}, not {1}; invokeTime='x': expected a 64-bit integer",
    ),
]

LATER_ELECTIONS = [
    Case(
        "a dead one",
        ELECT,
        {**ELECTED, "brokerId": "3", "designateElect": "true"},
        b"",
        ELECT_FAILED,
        "Failed to elect a new master",
    ),
    Case(
        "an unknown one",
        ELECT,
        {**ELECTED, "brokerId": "99", "designateElect": "true"},
        b"",
        ELECT_FAILED,
        "Failed to elect a new master",
    ),
    Case("another", ELECT, {**ELECTED, "brokerId": "2", "designateElect": "true"}),
    Case(
        "the former master reports",
        ALTER,
        ALTERED,
        sync_set(3, 1, 2),
        INVALID_MASTER,
        "current leader is:{2}, not {1}",
    ),
    Case(
        "the new master with its predecessor's epoch",
        ALTER,
        {**ALTERED, "masterBrokerId": "2"},
        sync_set(3, 1, 2),
        FENCED_EPOCH,
        "current master epoch is:{2}, not {1}",
    ),
    Case("replica info", INFO, WHO),
]

OVERVIEWS = [
    *(
        Case(f"body {body!r}", SYNC_STATE, {}, body, ERROR, "body: …expected a JSON list of broker names")
        for body in (b"", b"[]", b"null", b"{}", b"[", b"nonsense", b"[1,2]", b'["b",3]', b'"b"', b"\xff\xfe")
    ),
    Case("some known", SYNC_STATE, {}, b'["b","b","nobody"]'),
]

CLEANING = [
    Case(
        "all of a living group",
        CLEAN,
        without(CLEANED, "brokerControllerIdsToClean"),
        b"",
        INVALID_CLEAN,
        "Broker b is still alive",
    ),
    *(
        Case(
            f"ids {ids!r}", CLEAN, {**CLEANED, "brokerControllerIdsToClean": ids}, b"", INVALID_CLEAN, remark
        )
        for ids, remark in (
            ("", "Broker b is still alive"),
            ("  ", "Broker b is still alive"),
            ("1", "Broker [b,  1] is still alive"),
            ("3;1", "Broker [b,  1] is still alive"),
            ("x", "according to the format…x"),
            ("1,2", "according to the format…1,2"),
            (";3", "according to the format"),
            ("9" * 20, "according to the format"),
        )
    ),
    Case(
        "living x",
        CLEAN,
        {**CLEANED, "isCleanLivingBroker": "x", "brokerControllerIdsToClean": "1"},
        b"",
        2009,
    ),
    Case("an unknown id", CLEAN, {**CLEANED, "brokerControllerIdsToClean": "55"}),
    Case("a dead one", CLEAN, {**CLEANED, "brokerControllerIdsToClean": "3;;"}),
    Case(
        "it is gone", REGISTER, {**REGISTERED, "brokerId": "3"}, b"", UNREGISTERED, "BrokerId: 3 hasn't been"
    ),
    Case("the living group, wanted", CLEAN, {**CLEANED, "isCleanLivingBroker": "TRUE"}),
    Case("it is gone too", INFO, WHO, b"", NO_METADATA, "Broker metadata is not existed"),
]

HEARTBEATS = [
    Case(
        "no id", HEARTBEAT, without(BEAT, "brokerId"), b"", INVALID_REQUEST, "Heart beat with empty brokerId"
    ),
    Case("no field", HEARTBEAT, {}, b"", INVALID_REQUEST, "missing", ours=ERROR),
    *(
        Case(
            f"id {text}",
            HEARTBEAT,
            {**BEAT, "brokerId": text},
            b"",
            INVALID_REQUEST,
            f"empty brokerId; brokerId='{text}': expected a 64-bit integer",
        )
        for text in NOT_NUMBERS
    ),
    *(
        Case(
            f"no {key}",
            HEARTBEAT,
            without({**BEAT, "brokerName": "x"}, key),
            b"",
            OK,
            f"{key}: missing",
            ours=1,
        )
        for key in ("clusterName", "brokerName", "brokerAddr")
    ),
    *(
        Case(
            f"{key} x",
            HEARTBEAT,
            {**ELSE, key: "x"},
            b"",
            OK,
            f"Heart beat success; {key}='x': expected a …-bit integer",
        )
        for key in ("epoch", "maxOffset", "confirmOffset", "heartbeatTimeoutMills", "electionPriority")
    ),
    *(
        Case(f"no {key}", HEARTBEAT, without(ELSE, key), b"", OK, "Heart beat success")
        for key in ("epoch", "maxOffset", "confirmOffset", "heartbeatTimeoutMills", "electionPriority")
    ),
]

CONFIGURATION = [
    Case("no body", UPDATE_CONFIG),
    *(
        Case(
            f"{key}",
            UPDATE_CONFIG,
            {},
            f"{key}=1\n".encode(),
            NO_PERMISSION,
            "Can not update config in black",
        )
        for key in ("configBlackList", "configStorePath", "rocketmqHome")
    ),
    Case("unknown", UPDATE_CONFIG, {}, b"nothing=1\n"),
    Case("no UTF-8", UPDATE_CONFIG, {}, b"\xff=1\n"),
    Case("a good one", UPDATE_CONFIG, {}, b"scanInactiveMasterInterval=4000\n"),
    Case(
        "not a number",
        UPDATE_CONFIG,
        {},
        b"scanInactiveMasterInterval=x\n",
        OK,
        "scanInactiveMasterInterval=x: expected a whole number of at least 1",
        ours=ERROR,
    ),
    Case(
        "fixed at the start",
        UPDATE_CONFIG,
        {},
        b"mappedFileSize=8192\n",
        OK,
        "mappedFileSize=8192: expected … fixed while the process runs",
        ours=ERROR,
    ),
]

ODDITIES = [
    Case("1 of another group", APPLY_ID, applied(1, "odd")),
    Case("an id below 1", APPLY_ID, applied(-5, "odd"), b"", OK, "ids begin with 1", ours=ID_INVALID),
    Case(
        "an empty check code",
        APPLY_ID,
        {**applied(7, "odd"), "registerCheckCode": ""},
        b"",
        OK,
        "registerCheckCode are required",
        ours=ERROR,
    ),
    Case(
        "no ids between semicolons",
        CLEAN,
        {**CLEANED, "brokerName": "odd", "brokerControllerIdsToClean": ";"},
        b"",
        OK,
        "according to the format",
        ours=INVALID_CLEAN,
    ),
    Case("1 of a third group", APPLY_ID, applied(1, "third")),
    Case(
        "a first master that nobody knows",
        ELECT,
        {**ELECTED, "brokerName": "third", "brokerId": "77"},
        b"",
        OK,
        "Failed to elect a new master",
        ours=ELECT_FAILED,
    ),
]

NOT_THE_LEADER = [
    Case(label, request, ext, body, NOT_LEADER, "The controller is not in leader state")
    for label, request, ext, body in (
        ("alter", ALTER, ALTERED, sync_set(1, 1, 2)),
        ("elect", ELECT, ELECTED, b""),
        ("register", REGISTER, REGISTERED, b""),
        ("replica info", INFO, WHO, b""),
        ("replica info, no name", INFO, {}, b""),
        ("sync state", SYNC_STATE, {}, b'["b"]'),
        ("clean", CLEAN, CLEANED, b""),
        ("next id", NEXT_ID, WHO, b""),
        ("apply", APPLY_ID, APPLIED, b""),
        ("apply, no field", APPLY_ID, {}, b""),
    )
]
ALSO_AT_FOLLOWERS = [
    Case("metadata", METADATA),
    Case("configuration", GET_CONFIG),
    Case("heartbeat", HEARTBEAT, ELSE, b"", OK, "Heart beat success"),
    Case("sync state of nobody", SYNC_STATE, {}, b"[]", ERROR, "body: empty, expected a JSON list"),
]

AT_THE_LEADER: dict[str, list[Case]] = {
    "unknown codes": UNKNOWN_CODES,
    "unknown group": UNKNOWN_GROUP,
    "without a name": WITHOUT_NAME,
    "ids": IDS,
    "first election": FIRST_ELECTION,
    "sync state sets": SYNC_STATE_SETS,
    "later elections": LATER_ELECTIONS,
    "overviews": OVERVIEWS,
    "cleaning": CLEANING,
    "heartbeats": HEARTBEATS,
    "configuration": CONFIGURATION,
    "oddities": ODDITIES,
}
AT_A_FOLLOWER: dict[str, list[Case]] = {
    "not the leader": NOT_THE_LEADER,
    "also at followers": ALSO_AT_FOLLOWERS,
}

"""Known values are encoded to the bytes of RocketMQ 5.3.3 and decoded from them."""

from __future__ import annotations

import json
import zlib
from typing import Any

import msgspec
import pytest

from epochmq_protocol import (
    bodies,
    codes,
    fastjson,
    javahash,
    message,
    properties,
    subscription_groups,
    topics,
)
from epochmq_protocol.bodies import MessageQueue, from_json, to_json
from epochmq_protocol.frame import Command, decode, encode
from epochmq_protocol.headers_base import Header, _plan
from epochmq_protocol.message import BatchElement, MessageExt, encode_host
from epochmq_protocol.message_const import MAGIC_V2
from tests.support.header_classes import HEADERS
from tests.unit.protocol.golden import golden

DERIVED = {"QueueTimeSpan": {"minTimeStampStr", "maxTimeStampStr", "consumeTimeStampStr"}}
"""Properties that Java writes from getters without a field; no peer reads them."""


BESIDE_JAVAS_CLASS = {"forbiddenTable"}
"""A field of the manager that Java writes together with the group table."""


def test_request_response_and_language_codes_have_javas_names_and_numbers() -> None:
    recorded = golden("codes")
    assert {code.name: code.value for code in codes.RequestCode} == recorded["RequestCode"]
    assert {code.name: code.value for code in codes.ResponseCode} == recorded["ResponseCode"]
    assert {code.name: code.value for code in codes.LanguageCode} == recorded["LanguageCode"]


def test_versions_are_javas_ordinals() -> None:
    recorded = golden("codes")
    ours = {
        name: value
        for name, value in vars(codes).items()
        if name.startswith("V") and "_" in name and isinstance(value, int)
    }
    assert len(ours) > 10
    assert ours == {name: recorded["Version"][name] for name in ours}
    assert recorded["CURRENT_VERSION"] == codes.CURRENT_VERSION


@pytest.mark.parametrize("recorded", golden("frames"))
def test_frames_are_javas_bytes_and_are_read_back(recorded: dict[str, Any]) -> None:
    command = Command(
        recorded["code"],
        recorded["opaque"],
        recorded["flag"],
        codes.LanguageCode[recorded["language"]],
        recorded["version"],
        recorded["remark"],
        recorded["ext"],
        bytes.fromhex(recorded["body"]),
        codes.SerializeType[recorded["serialize"]],
    )
    java = bytes.fromhex(recorded["frame"])
    read = decode(java[4:])
    assert int.from_bytes(java[:4], "big") == len(java) - 4
    if command.serialize is codes.SerializeType.ROCKETMQ:
        # A ROCKETMQ header cannot hold an empty text: it is decoded as null.
        command.remark = command.remark or None
        command.ext = {key: value for key, value in (command.ext or {}).items() if value} or None
    assert read == command
    if len(recorded["ext"] or {}) <= 1:  # more of them come in the order of a hash map
        assert encode(command) == java
    assert decode(encode(command)[4:]) == command


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_headers_declare_the_fields_of_javas_class(name: str) -> None:
    recorded = golden("headers")[name]
    wire = {entry[1]: entry for entry in _plan(HEADERS[name])}
    assert wire.keys() == {field["name"] for field in recorded["fields"]}
    for field in recorded["fields"]:
        is_required = wire[field["name"]][3]
        if not field["required"]:
            assert not is_required, field
        elif field["default"] is None:
            assert is_required, field
        # A required Java primitive starts as 0 or false, and a required field may have a default.


@pytest.mark.parametrize("name", sorted(HEADERS))
@pytest.mark.parametrize("kind", ["full", "bare"])
def test_headers_encode_to_javas_ext_fields(name: str, kind: str) -> None:
    recorded = golden("headers")[name][kind]
    header: Header = HEADERS[name].decode(recorded)
    assert header.encode() == recorded


@pytest.mark.parametrize("recorded", golden("records")["records"])
def test_records_are_javas_bytes_and_are_read_back(recorded: dict[str, Any]) -> None:
    java = bytes.fromhex(recorded["record"])
    made = MessageExt(
        recorded["topic"],
        bytes.fromhex(recorded["body"]),
        message.format_properties(recorded["properties"]),
        recorded["queueId"],
        recorded["flag"],
        recorded["queueOffset"],
        recorded["physicalOffset"],
        recorded["sysFlag"],
        recorded["bornTimestamp"],
        encode_host(recorded["bornHost"], recorded["bornPort"]),
        recorded["storeTimestamp"],
        encode_host(recorded["storeHost"], recorded["storePort"]),
        recorded["reconsumeTimes"],
        recorded["preparedTransactionOffset"],
    )
    read = message.decode_record(java)
    assert message.parse_properties(read.properties) == recorded["properties"]
    assert (read.magic == MAGIC_V2) == (len(recorded["topic"]) > 127)
    made.properties = read.properties  # their order is a hash map's
    made.body_crc, made.store_size, made.magic = recorded["bodyCrc"], len(java), read.magic
    assert read == made
    assert message.encode_record(made) == java
    assert message.record_size(len(made.body), len(made.topic), len(made.properties), made.sys_flag) == len(
        java
    )


def test_message_ids_crcs_and_sys_flags_are_javas() -> None:
    recorded = golden("records")
    for item in recorded["ids"]:
        host = encode_host(item["host"], item["port"])
        assert message.message_id(host, item["offset"]) == item["id"]
        assert message.parse_message_id(item["id"]) == (host, item["offset"])
    for item in recorded["crcs"]:
        assert message.body_crc(bytes.fromhex(item["bytes"])) == item["crc"]
        assert message.crc_property(item["crc"]).hex() == item["property"]
    for name, value in recorded["sysFlags"].items():
        assert getattr(message, name) == value


def test_batches_are_javas_bytes() -> None:
    recorded = golden("batch")
    java = bytes.fromhex(recorded["encoded"])
    elements = message.decode_batch(java)
    assert message.encode_batch(elements) == java
    for element, expected in zip(elements, recorded["elements"], strict=True):
        assert element.body.hex() == expected["body"]
        assert element.flag == expected["flag"]
        assert message.parse_properties(element.properties) == expected["properties"]
    single = recorded["elements"][0]
    made = BatchElement(
        bytes.fromhex(single["body"]), message.format_properties(single["properties"]), single["flag"]
    )
    assert java.startswith(message.encode_batch([made]))


def test_message_properties_are_read_and_written_as_java_does() -> None:
    recorded = golden("properties")
    for item in recorded["written"]:
        assert message.format_properties(item["map"]).decode() == item["text"]
    for item in recorded["read"]:
        assert message.parse_properties(item["text"]) == item["map"]
        assert message.parse_properties(item["text"].encode()) == item["map"]


@pytest.mark.parametrize("recorded", golden("properties")["files"])
def test_properties_files_are_read_as_java_does(recorded: dict[str, Any]) -> None:
    assert properties.parse(recorded["text"]) == recorded["map"]


def test_hashes_are_javas() -> None:
    for item in golden("hashes"):
        text = item["text"]
        assert javahash.java_hash(text) == item["hashCode"]
        assert javahash.java_hash(text.encode()) == item["hashCode"]
        assert javahash.tags_code(text) == item["tagsCode"]
        assert javahash.index_hash(item["hashCode"]) == item["indexHash"]
    java_min = next(item for item in golden("hashes") if item["text"] == "polygenelubricants")
    assert (java_min["hashCode"], java_min["indexHash"]) == (-(2**31), 0)


def _body_class(name: str) -> type[Any]:
    (found,) = {
        getattr(module, name) for module in (bodies, subscription_groups, topics) if hasattr(module, name)
    }
    return found


@pytest.mark.parametrize("name", sorted(golden("bodies")))
def test_bodies_are_read_and_written_as_fastjson_does(name: str) -> None:
    recorded = golden("bodies")[name]
    body = from_json(_body_class(name), recorded["full"])
    ours, java = fastjson.loads(to_json(body)), fastjson.loads(recorded["full"])
    if BESIDE_JAVAS_CLASS & ours.keys():
        ours.pop("forbiddenTable")
        assert ours == java
        return
    assert _without(ours, DERIVED) == _without(java, DERIVED)
    if not _derived_in(java):
        assert to_json(body).decode() == recorded["full"]


@pytest.mark.parametrize("name", sorted(golden("bodies")))
def test_bodies_have_no_field_that_java_does_not_write(name: str) -> None:
    body = from_json(_body_class(name), golden("bodies")[name]["full"])
    java = fastjson.loads(golden("bodies")[name]["full"])
    for field in msgspec.structs.fields(_body_class(name)):
        if field.encode_name not in BESIDE_JAVAS_CLASS:
            assert field.encode_name in java, f"{name}.{field.encode_name} is not Java's"
    assert to_json(body)


@pytest.mark.parametrize("name", sorted(golden("bodies")))
def test_new_bodies_have_javas_defaults(name: str) -> None:
    recorded = golden("bodies")[name]["bare"]
    if recorded is None:
        return
    ours, java = fastjson.loads(to_json(_body_class(name)())), fastjson.loads(recorded)
    for key, value in _without(java, DERIVED).items():
        assert ours.get(key) == value, f"{name}.{key}"
    # Where Java has null and writes nothing, our default may be an empty value.
    for key in ours.keys() - java.keys():
        assert ours[key] in ("", [], {}, 0, False, "TAG", "OTHER", "0", "AAAA"), f"{name}.{key}={ours[key]!r}"


@pytest.mark.parametrize("name", ["RegisterBrokerBody", "ConsumerOffsetSerializeWrapper", "ConsumeStats"])
def test_configuration_files_have_javas_layout(name: str) -> None:
    recorded = golden("bodies")[name]
    body = from_json(_body_class(name), recorded["full"])
    assert fastjson.dumps(body, pretty=True).decode() == recorded["pretty"]


def _derived_in(value: Any) -> bool:
    return bool(_without(value, DERIVED) != value)


def _without(value: Any, derived: dict[str, set[str]]) -> Any:
    dropped = set().union(*derived.values())
    if isinstance(value, dict):
        return {
            key: _without(item, derived)
            for key, item in value.items()
            if not (isinstance(key, str) and key in dropped)
        }
    if isinstance(value, list):
        return [_without(item, derived) for item in value]
    return value


def test_texts_are_escaped_as_fastjson_does() -> None:
    for item in golden("json")["strings"]:
        assert fastjson.dumps(item["text"]).decode() == item["plain"]
        assert fastjson.dumps_standard(item["text"]).decode() == item["browser"]
        assert fastjson.loads(item["plain"]) == item["text"]
        assert fastjson.loads(item["browser"]) == item["text"]


def test_doubles_are_printed_as_java_does() -> None:
    for item in golden("json")["doubles"]:
        value = float(item["text"])
        assert fastjson.dumps(value).decode() == item["json"]


@pytest.mark.parametrize("recorded", golden("json")["loose"])
def test_lenient_json_is_read_as_fastjson_does(recorded: dict[str, Any]) -> None:
    assert fastjson.loads(recorded["text"]) == json.loads(recorded["standard"])


def test_references_that_java_wrote_are_resolved() -> None:
    shared = fastjson.loads(golden("json")["shared"])
    stats = {
        "consumeTps": 0.0,
        "offsetTable": {
            (("brokerName", "b"), ("queueId", 1), ("topic", "T")): {
                "brokerOffset": 9,
                "consumerOffset": 0,
                "lastTimestamp": 0,
                "pullOffset": 0,
            }
        },
    }
    assert shared == {"first": [stats, stats], "se.c-o nd": stats, "third": [stats, stats]}
    read = bodies.convert(bodies.ConsumeStats, shared["se.c-o nd"])
    assert read.offset_table[MessageQueue("T", "b", 1)].broker_offset == 9


def test_maps_with_integer_keys_are_written_as_fastjson_does() -> None:
    recorded = golden("json")
    assert fastjson.dumps({"T@G": {0: "a", 1: 12}}).decode() == recorded["integerKeys"]
    pretty = fastjson.dumps({"offsetTable": {"T@G": {0: "a", 1: 12}}, "z": 1}, pretty=True)
    assert pretty.decode() == recorded["integerKeysPretty"]


def test_routes_are_javas_bytes_in_both_forms() -> None:
    recorded = golden("route")
    route = from_json(bodies.TopicRouteData, recorded["standard"])
    assert from_json(bodies.TopicRouteData, recorded["plain"]) == route
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 2: "10.0.0.2:10911"}
    assert bodies.encode_route(route, version=codes.V4_9_4).decode() == recorded["standard"]
    assert bodies.encode_route(route, version=codes.V4_9_3).decode() == recorded["plain"]
    asked = bodies.encode_route(route, version=0, accept_standard_json_only=True)
    assert asked.decode() == recorded["standard"]


def test_registrations_are_read_plain_and_compressed() -> None:
    recorded = golden("register")
    plain = bodies.RegisterBrokerBody.decode(recorded["plain"].encode())
    wrapper = plain.topic_config_serialize_wrapper
    assert wrapper.data_version == wrapper.mapping_data_version == topics.DataVersion(12, 3, 1700000000000)
    assert wrapper.topic_config_table["T1"] == from_json(topics.TopicConfig, recorded["topic"])
    assert wrapper.topic_config_table["T1"].encode() == recorded["topicLine"]
    assert to_json(wrapper.topic_config_table["T1"]).decode() == recorded["topic"]

    compressed = bytes.fromhex(recorded["compressed"])
    read = bodies.RegisterBrokerBody.decode(compressed, compressed=True)
    inflated = read.topic_config_serialize_wrapper
    assert read.filter_server_list == plain.filter_server_list == ["10.0.0.1:1"]
    assert inflated.data_version == wrapper.data_version
    # The one-line form of a topic has no topicSysFlag.
    lost = msgspec.structs.replace(wrapper.topic_config_table["T1"], topic_sys_flag=0)
    assert inflated.topic_config_table == {"T1": lost, "T2": wrapper.topic_config_table["T2"]}
    assert zlib.decompress(read.encode(compress=True)) == zlib.decompress(compressed)

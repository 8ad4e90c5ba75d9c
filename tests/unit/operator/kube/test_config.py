"""Tests the configuration file of the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_operator.kube.config import OperatorConfig, load_config
from epochmq_protocol.errors import ConfigError

PROPERTIES = """\
# of the chart
namespaces=trade, billing
brokerImage=example.org/broker:1
controllerImage=example.org/controller:1
networkPolicies=false
metricsPort=8081
imagePullSecrets=
operatorLabels=app=epochmq,tier=ops
"""


def file(folder: Path, text: str) -> str:
    """A file with this text."""
    path = folder / "operator.conf"
    path.write_text(text)
    return str(path)


def test_a_properties_file_is_read(tmp_path: Path) -> None:
    config = load_config(file(tmp_path, PROPERTIES))
    assert config.namespaces == ["trade", "billing"]
    assert (config.network_policies, config.metrics_port, config.image_pull_secrets) == (False, 8081, [])
    settings = config.settings("ops")
    assert (settings.broker_image, settings.operator_namespace) == ("example.org/broker:1", "ops")
    assert settings.operator_labels == (("app", "epochmq"), ("tier", "ops"))


def test_a_yaml_file_gives_the_same_configuration(tmp_path: Path) -> None:
    text = "namespaces: [trade, billing]\nimage: example.org/all:1\nsidecars: proxy\n"
    config = load_config(file(tmp_path, text))
    assert (config.namespaces, config.sidecars) == (["trade", "billing"], "proxy")
    settings = config.settings("ops")
    assert settings.broker_image == settings.controller_image == "example.org/all:1"


def test_single_keys_override_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, PROPERTIES)
    assert load_config(path, {"metricsPort": "9", "namespaces": "one"}).metrics_port == 9
    assert load_config(path, {"namespaces": ""}).namespaces == []


def test_an_empty_file_and_no_file_give_the_defaults(tmp_path: Path) -> None:
    assert load_config(file(tmp_path, "# nothing\n")) == load_config(None) == OperatorConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unheard=1", "unheard"),
        ("metricsPort=many", "metricsPort=many"),
        ("workers: 0", "workers"),
        ("- a\n- b", "a mapping"),
        ("a: [", "YAML"),
    ],
)
def test_an_invalid_key_is_rejected_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        load_config(file(tmp_path, text))


def test_an_image_is_required() -> None:
    with pytest.raises(ConfigError, match="image"):
        OperatorConfig().settings("ops")


def test_a_missing_file_is_reported_by_name() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/operator\.conf"):
        load_config("/nowhere/operator.conf")

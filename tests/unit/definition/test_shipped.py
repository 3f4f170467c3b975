"""What ships: every file loads and binds, the schema accepts it, the pages speak of every key."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import experiments_index
import pytest
import yaml
from definition_fixture import facts

from udpbench.definition import load, shipped
from udpbench.definition.binding.bind import (
    LabContext,
    Unavailable,
    bind,
    settings_for,
    unmet_needs,
)
from udpbench.model.experiment import Experiment, Trial
from udpbench.model.host import GSO_SEGMENTS, Facts
from udpbench.model.lab import Lab
from udpbench.model.limits import SECOND_NS

ROOT = Path(__file__).resolve().parents[3]
NAMES = shipped.shipped_names()
FILES = [file for file in shipped.files_in(shipped.folder()) if file.name != "published.yaml"]


LONG = {"loss/02-paced": 3, "loss/03-logged": 3, "ways/matrix": 5}
"""Experiments whose time is their point, or that have many of them → minutes."""
FOUR_QUEUES = (
    "sender needs 2 CPUs and has 1; receiver needs 4 CPUs and has 1; "
    "receiver needs 4 RX queues and has 1; receiver needs 2 NUMA nodes and has 1"
)
FOUR_THREADS = "receiver needs 8 CPUs and has 1; receiver needs 4 RX queues and has 1"
NO_MIDDLE = "settings.middle: lab {} has no node in the middle; try --lab router"
SKIPPED_WITH_TWO_CPUS = {
    "loss/08-ring": "receiver needs an interface with rings that can be set",
    "million/04-placement::other-node": "receiver needs 2 NUMA nodes and has 1",
    "million/04-placement::smt-sibling": "receiver needs cores with SMT siblings",
    "million/06-two-addresses": "receiver needs 3 CPUs and has 1; receiver needs 2 RX queues and has 1",
    "million/08-threads-one-socket::four": "receiver needs 4 CPUs and has 1",
    "million/08-threads-one-socket::two": "receiver needs 2 CPUs and has 1",
    "million/09-reuseport::four": FOUR_THREADS,
    "million/09-reuseport::two": "receiver needs 4 CPUs and has 1; receiver needs 2 RX queues and has 1",
    "million/02-steadier": "sender needs 2 CPUs and has 1; receiver needs 2 CPUs and has 1",
    "million/10-reuseport-aligned": FOUR_QUEUES,
    "path/nat::masqueraded": NO_MIDDLE.format("local"),
    "path/rules-in-forward": NO_MIDDLE.format("local"),
    "path/two-routers::dropped": NO_MIDDLE.format("local"),
    "path/vxlan::bursts": NO_MIDDLE.format("local"),
    "throughput/by-workers::four": "sender needs 4 CPUs and has 1; receiver needs 4 CPUs and has 1",
    "throughput/by-workers::two": "sender needs 2 CPUs and has 1; receiver needs 2 CPUs and has 1",
    "million/11-steering": "receiver needs 2 CPUs and has 1; receiver needs 2 RX queues and has 1",
}
"""What the default lab on two CPUs cannot express, and why: file or file::variant → reason."""
SKIPPED_ON_HOSTS = {
    "drops/backlog": "needs a built-in lab; --lab is two-hosts",
    "drops/every-stage": "needs a built-in lab; --lab is two-hosts",
    "drops/firewalled": "needs a built-in lab; --lab is two-hosts",
    "drops/in-pairs": "needs a built-in lab; --lab is two-hosts",
    "drops/one-by-one": "needs a built-in lab; --lab is two-hosts",
    "loss/01-bursts": "needs a built-in lab; --lab is two-hosts",
    "loss/06-backlog": "needs a built-in lab; --lab is two-hosts",
    "million/05-same-cpu-flood": "needs a built-in lab; --lab is two-hosts",
    "path/nat::masqueraded": NO_MIDDLE.format("two-hosts"),
    "path/rules-in-forward": NO_MIDDLE.format("two-hosts"),
    "path/tunnel-mtu": "needs a built-in lab; --lab is two-hosts",
    "path/two-routers::dropped": NO_MIDDLE.format("two-hosts"),
    "path/vxlan::bursts": f"needs a built-in lab; --lab is two-hosts; {NO_MIDDLE.format('two-hosts')}",
    **{
        f"path/vxlan::{point}": "needs a built-in lab; --lab is two-hosts"
        for point in ("cut", "fits", "whole")
    },
    "path/wireguard": "needs a built-in lab; --lab is two-hosts",
}
"""What hosts with two NUMA nodes, SMT and eight queues cannot."""


@cache
def shipped_experiment(name: str) -> Experiment:
    """Return a shipped experiment."""
    (experiment,) = load.load_experiments([name])
    return experiment


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Return the schema that editors complete by."""
    return load.schema()


def test_the_index_is_that_of_the_files() -> None:
    """Question, time and needs of every file; run experiments_index.py to write it anew."""
    text = experiments_index.README.read_text()
    assert experiments_index.with_index(text) == text
    labs = re.findall(r"`([\w-]+)`", text.partition("## Labs")[2])
    assert set(shipped.shipped_labs()) <= set(labs)


def test_a_folder_is_a_ladder() -> None:
    """Its files are run in the order of their numbers, which start with each folder's first."""
    names = [experiment.name for experiment in load.load_experiments(["million"])]
    assert sorted(names) == names
    assert "00-preparation" == names[0]


def unavailable(name: str, lab: Lab, known: dict[str, Facts]) -> dict[str, str]:
    """Return why points of a shipped experiment cannot run: file, or file::point → reason."""
    experiment = shipped_experiment(name)
    by_name = {}
    for point in experiment.points:
        try:
            after = known if unmet_needs(point, lab, known) else applied(point, lab, known)
            assert bind(point, lab, after).workers
        except Unavailable as reason:
            by_name[f"{name}::{point.point}"] = str(reason)
    if len(by_name) == len(experiment.points) and len(set(by_name.values())) == 1:
        return {name: next(iter(by_name.values()))}
    return by_name


def applied(point: Trial, lab: Lab, known: dict[str, Facts]) -> dict[str, Facts]:
    """Return hosts with as many RX queues as a point sets, as workers are bound to them."""
    after = {}
    for host in lab.hosts:
        settings = settings_for(lab, point, host, LabContext({}, known))
        assert settings
        channels = [setting.value for setting in settings if setting.kind == "channels"]
        queues = [*channels, known[host.name].rx_queues][0]
        after[host.name] = replace(known[host.name], rx_queues=queues)
    return after


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_experiment_plans_in_the_default_lab(name: str) -> None:
    """On a machine with two CPUs each point has workers and settings, or is known to lack what."""
    lab = load.load_lab("local")
    limits = {GSO_SEGMENTS: 128}
    known = {host.name: facts(host.name, limits=limits) for host in lab.hosts}
    expected = {
        key: why for key, why in SKIPPED_WITH_TWO_CPUS.items() if key.partition("::")[0] == name
    }
    assert expected == unavailable(name, lab, known)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_experiment_plans_on_large_hosts(name: str) -> None:
    """On two hosts with two nodes, SMT and eight queues only what is of a lab is skipped."""
    lab = load.load_lab("two-hosts")
    known = {host.name: large_host(host.name) for host in lab.hosts}
    expected = {key: why for key, why in SKIPPED_ON_HOSTS.items() if key.partition("::")[0] == name}
    assert expected == unavailable(name, lab, known)


def large_host(name: str) -> Facts:
    """Return a host of 2 nodes with 6 cores of 2 threads each and a card of eight queues."""
    cpus = tuple(range(24))
    nodes = {"0": (*range(6), *range(12, 18)), "1": (*range(6, 12), *range(18, 24))}
    return facts(
        name,
        cpus,
        numa_nodes=nodes,
        siblings={str(cpu): (cpu % 12, cpu % 12 + 12) for cpu in cpus},
        rx_queues=8,
        tx_queues=8,
        queue_cpus={str(k): (k % 6,) for k in range(8)},
        rings={"rx": 512, "tx": 512, "rx-max": 4096, "tx-max": 4096},
        interface_node=0,
        limits={GSO_SEGMENTS: 128},
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_experiment_takes_minutes_not_hours(name: str) -> None:
    """What a user tries first ends while they wait."""
    experiment = shipped_experiment(name)
    per_point = [
        0 if point.traffic.count_packets is not None else point.duration_ns + point.warmup_ns
        for point in experiment.points
    ]
    minutes = sum(per_point) * experiment.repetitions / (60 * SECOND_NS)
    assert minutes <= LONG.get(name, 2.5)


def test_the_labs_give_queues_and_threads_cpus_of_their_own() -> None:
    """As far as there are CPUs: lab → its queues' CPUs, its receiver's and its sender's list."""
    cpus_by_lab = {}
    for name in ("two-cpus", "four-cpus", "eight-cpus"):
        lab = load.load_lab(name)
        sender, receiver = lab.hosts
        link = lab.settings["receiver"].link
        assert link is not None
        assert lab.built_in
        cpus_by_lab[name] = (link.queues, link.cpus, receiver.cpus, sender.cpus)
    assert {
        "two-cpus": (2, "0", (0,), (1,)),
        "four-cpus": (2, "0-1", (2, 0, 1), (3,)),
        "eight-cpus": (3, "0-2", (3, 4, 5, 0, 1, 2), (6, 7)),
    } == cpus_by_lab


def test_the_smoke_experiment_stays_small_and_plain() -> None:
    """Others change it by text: its keys keep their places."""
    (experiment,) = load.load_experiments(["smoke"])
    text = experiment.text
    assert re.search(r"^traffic:\n(  .*\n)+^[a-z]+:", text, re.MULTILINE)
    assert re.search(r"^duration: 1s$", text, re.MULTILINE)
    assert re.search(r"^repetitions: 1$", text, re.MULTILINE)
    assert re.search(r"^ *count:", text, re.MULTILINE) is None
    assert 1 == len(experiment.points)


def test_the_default_lab_is_two_namespaces() -> None:
    """Names, interfaces and addresses are those of the documentation."""
    lab = load.load_lab("local")
    sender, receiver = lab.hosts
    assert ("sender", "send0", ("192.168.254.30/24", "fd75:6264::30/64")) == (
        sender.name,
        sender.interface,
        sender.addresses,
    )
    ends = ("192.168.254.1/24", "192.168.254.20/24", "fd75:6264::1/64", "fd75:6264::14/64")
    assert ("receiver", "receive0", 40, ends) == (
        receiver.name,
        receiver.interface,
        len(receiver.addresses),
        tuple(receiver.addresses[n] for n in (0, 19, 20, 39)),
    )
    assert (None, None, True) == (sender.cpus, receiver.cpus, lab.built_in)


def test_in_the_shipped_folder_labs_and_figures_are_no_experiments() -> None:
    """They have no question."""
    folder = shipped.folder()
    others = [path for path in shipped.files_in(folder) if not load.is_experiment(path)]
    assert [
        "labs/bridge.yaml",
        "labs/containers.yaml",
        "labs/eight-cpus.yaml",
        "labs/four-cpus.yaml",
        "labs/local.yaml",
        "labs/nat.yaml",
        "labs/published-port.yaml",
        "labs/router.yaml",
        "labs/two-cpus.yaml",
        "labs/two-hosts.yaml",
        "labs/two-receivers.yaml",
        "labs/two-routers.yaml",
        "labs/two-senders.yaml",
        "labs/vxlan.yaml",
        "labs/wireguard.yaml",
        "published.yaml",
    ] == [path.relative_to(folder).as_posix() for path in others]


# --- the JSON Schema -----------------------------------------------------------------------------


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Return whether a schema takes a value; knows the keywords that ours uses."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return accepts(root["$defs"][name], value, root)
    if "anyOf" in schema:
        return any(accepts(option, value, root) for option in schema["anyOf"])
    kinds = schema.get("type", [])
    types = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
    }
    accepted = tuple(types[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))
    if accepted and (
        not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted)
    ):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    if isinstance(value, int) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return bool(low <= value <= high)
    if isinstance(value, list) and "items" in schema:
        return all(accepts(schema["items"], item, root) for item in value)
    return not isinstance(value, dict) or accepts_map(schema, value, root)


def accepts_map(schema: dict[str, Any], value: dict[str, Any], root: dict[str, Any]) -> bool:
    """Return whether an object schema takes a map."""
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if not set(schema.get("required", [])) <= set(value):
        return False
    for key, item in value.items():
        below = properties.get(key, others)
        if below is False or (below is not True and not accepts(below, item, root)):
            return False
    return True


class Yaml12(yaml.SafeLoader):
    """An editor reads YAML 1.2, where ``off`` is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            (tag, pattern) for tag, pattern in known if not tag.endswith((":bool", "timestamp"))
        ]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


Yaml12.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|false)\Z"), list("tf"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_schema_accepts_every_shipped_file(file: Path, schema: dict[str, Any]) -> None:
    """An editor that completes by the schema does not underline what ships."""
    value = yaml.load(file.read_text(), Loader=Yaml12)  # noqa: S506 - derived from SafeLoader
    assert accepts(schema, value, schema)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"question": "x", "colour": "red"},
        {"question": "x", "send": {"batch": 4096}},
        {"question": "x", "send": {"call": "sendmsg"}},
        {"question": "x", "traffic": {"size": 64}},
        {"question": "x", "settings": {"receiver": {"napi": {"threaded": "yes"}}}},
        {"sender": [], "receiver": [{"interface": "x"}]},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(
    value: dict[str, Any], schema: dict[str, Any]
) -> None:
    """Unknown keys, ranges, words and units are in the schema, too."""
    assert not accepts(schema, value, schema)


def objects(part: Any) -> list[dict[str, Any]]:
    """Return every object schema that has keys of its own."""
    results = []
    if isinstance(part, dict):
        results += [part] if "properties" in part and isinstance(part["properties"], dict) else []
        for value in part.values():
            results += objects(value)
    if isinstance(part, list):
        for value in part:
            results += objects(value)
    return results


def test_the_schema_is_json_and_closed(schema: dict[str, Any]) -> None:
    """Every object refuses unknown keys, every reference leads somewhere, null never appears."""
    text = json.dumps(schema, allow_nan=False)
    assert '"null"' not in text
    assert "null" not in re.findall(r'"default": (\w+)', text)
    assert [] == [o["title"] for o in objects(schema) if o.get("additionalProperties") is not False]
    assert set(re.findall(r"#/\$defs/(\w+)", text)) == set(schema["$defs"])


def test_defaults_stand_in_the_schema_as_a_user_writes_them(schema: dict[str, Any]) -> None:
    """An editor shows ``32B`` and ``unlimited``, not 32 and null."""
    definitions = schema["$defs"]
    traffic, send = definitions["Traffic"]["properties"], definitions["Send"]["properties"]
    assert ("32B", "unlimited", "none", "off") == tuple(
        traffic[key]["default"] for key in ("size", "rate", "count", "echo")
    )
    assert "default" not in traffic["ttl"], "it follows from the lab"
    assert ("10ms", "default", "off", "auto") == tuple(
        send[key]["default"] for key in ("bucket", "buffer", "gso", "batch")
    )


def test_every_key_is_documented(schema: dict[str, Any]) -> None:
    """Each key of the schema stands as code in docs/experiments.md."""
    page = (ROOT / "docs" / "experiments.md").read_text()
    code = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`\n]+)`", page))))
    keys = {key for definition in objects(schema) for key in definition["properties"]}
    assert set() == keys - code


def test_every_default_is_documented(schema: dict[str, Any]) -> None:
    """The page shows the default of each key that has a plain one."""
    page = (ROOT / "docs" / "experiments.md").read_text()
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        for key in re.findall(r"`([^`]+)`", cells[1] if len(cells) > 3 else ""):
            rows.setdefault(key, []).append(cells[3])
    definitions = schema["$defs"]
    wrong = []
    for name in ("Traffic", "Flows", "Send", "Receive", "ExperimentFile"):
        for key, key_schema in definitions[name]["properties"].items():
            default = key_schema.get("default")
            shown = json.dumps(default) if isinstance(default, bool) else str(default)
            if default is not None and not any(f"`{shown}`" in cell for cell in rows.get(key, [])):
                wrong.append((name, key, shown))
    assert [] == wrong

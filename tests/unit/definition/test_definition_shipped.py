"""What ships: every file loads and binds, the schema accepts it, the pages speak of every key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from definition_fixture import facts

from udpbench.analysis import ledger
from udpbench.definition import load, shipped
from udpbench.definition.bind import LabContext, bind, settings_for
from udpbench.definition.leaves import STAGES
from udpbench.model import SECOND_NS

ROOT = Path(__file__).resolve().parents[3]
NAMES = shipped.shipped_names()
FILES = [file for file in shipped.files_in(shipped.folder()) if file.name != "published.yaml"]


def test_something_ships() -> None:
    """The names are those of the index."""
    assert [
        "drops/closed-port",
        "drops/slow-reader",
        "drops/small-buffer",
        "million/01-naive-and-pinned",
        "smoke",
    ] == NAMES
    index = (shipped.folder() / "README.md").read_text()
    assert [] == [name for name in NAMES if f"`{name}`" not in index]


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_experiment_plans_in_the_default_lab(name: str) -> None:
    """Each point has workers, settings and a short enough life on a machine with two CPUs."""
    (experiment,) = load.load_experiments([name])
    lab = load.load_lab("local")
    known = {host.name: facts(host.name) for host in lab.hosts}
    for point in experiment.points:
        assert bind(point, lab, known).workers
        for host in lab.hosts:
            assert settings_for(lab, point, host, LabContext({}, known))
    per_trial = max(point.duration_ns + point.warmup_ns for point in experiment.points)
    assert per_trial * len(experiment.points) * experiment.repetitions < 60 * SECOND_NS


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
    assert ("sender", "send0", ("192.168.254.30/24",)) == (
        sender.name,
        sender.interface,
        sender.addresses,
    )
    assert ("receiver", "receive0", 20, "192.168.254.1/24", "192.168.254.20/24") == (
        receiver.name,
        receiver.interface,
        len(receiver.addresses),
        receiver.addresses[0],
        receiver.addresses[-1],
    )
    assert (None, None, True) == (sender.cpus, receiver.cpus, lab.built_in)


def test_in_the_shipped_folder_labs_and_figures_are_left_alone() -> None:
    """They have no question."""
    folder = str(shipped.folder())
    assert [
        "labs/local.yaml",
        "labs/two-hosts.yaml",
        "labs/two-receivers.yaml",
        "labs/two-senders.yaml",
        "published.yaml",
    ] == [path.relative_to(folder).as_posix() for path in load.left_alone([folder])]


def test_the_stages_are_those_of_the_ledger() -> None:
    """Faults and expectations know every stage the analysis knows, in its order."""
    assert ledger.ORDER == STAGES


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
    }
    wanted = tuple(types[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))
    if wanted and (
        not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)
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
def test_the_schema_accepts_every_shipped_file(file: Path) -> None:
    """An editor that completes by the schema does not underline what ships."""
    schema = load.schema()
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
def test_the_schema_refuses_what_the_loader_refuses(value: dict[str, Any]) -> None:
    """Unknown keys, ranges, words and units are in the schema, too."""
    schema = load.schema()
    assert not accepts(schema, value, schema)


def objects(part: Any) -> list[dict[str, Any]]:
    """Return every object schema that has keys of its own."""
    found = []
    if isinstance(part, dict):
        found += [part] if "properties" in part and isinstance(part["properties"], dict) else []
        for value in part.values():
            found += objects(value)
    if isinstance(part, list):
        for value in part:
            found += objects(value)
    return found


def test_the_schema_is_json_and_closed() -> None:
    """Every object refuses unknown keys, every reference leads somewhere, null never appears."""
    schema = load.schema()
    text = json.dumps(schema, allow_nan=False)
    assert '"null"' not in text
    assert "null" not in re.findall(r'"default": (\w+)', text)
    assert [] == [o["title"] for o in objects(schema) if o.get("additionalProperties") is not False]
    assert set(re.findall(r"#/\$defs/(\w+)", text)) == set(schema["$defs"])


def test_defaults_stand_in_the_schema_as_a_user_writes_them() -> None:
    """An editor shows ``32B`` and ``unlimited``, not 32 and null."""
    definitions = load.schema()["$defs"]
    traffic, send = definitions["Traffic"]["properties"], definitions["Send"]["properties"]
    assert ("32B", "unlimited", "none", "off", 1) == tuple(
        traffic[key]["default"] for key in ("size", "rate", "count", "echo", "ttl")
    )
    assert ("10ms", "default", "off", 1024) == tuple(
        send[key]["default"] for key in ("bucket", "buffer", "gso", "batch")
    )


def test_every_key_is_documented() -> None:
    """Each key of the schema stands as code in docs/experiments.md."""
    page = (ROOT / "docs" / "experiments.md").read_text()
    code = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`\n]+)`", page))))
    keys = {key for found in objects(load.schema()) for key in found["properties"]}
    assert set() == keys - code


def test_every_default_is_documented() -> None:
    """The page shows the default of each key that has a plain one."""
    page = (ROOT / "docs" / "experiments.md").read_text()
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        for key in re.findall(r"`([^`]+)`", cells[1] if len(cells) > 3 else ""):
            rows.setdefault(key, []).append(cells[3])
    definitions = load.schema()["$defs"]
    wrong = []
    for name in ("Traffic", "Flows", "Send", "Receive", "ExperimentFile"):
        for key, found in definitions[name]["properties"].items():
            default = found.get("default")
            shown = json.dumps(default) if isinstance(default, bool) else str(default)
            if default is not None and not any(f"`{shown}`" in cell for cell in rows.get(key, [])):
                wrong.append((name, key, shown))
    assert [] == wrong

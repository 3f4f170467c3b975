"""What ships for monitoring: rules, a dashboard and a unit, by Prometheus's own checks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from udpbench.export.exposition import COUNTER, FAMILIES, PREFIX

ROOM = Path(__file__).resolve().parents[3] / "udpbench/export/shipped"
RULES, DASHBOARD, UNIT = (
    ROOM / name
    for name in ("udpbench.rules.yml", "udpbench.dashboard.json", "udpbench-export.service")
)
TESTS = Path(__file__).with_name("rules_test.yml")
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="needs promtool: apt install prometheus"
)
LABELS = {label for family in FAMILIES.values() for label in family.labels} | {"instance", "job"}
RANGES = {"$__rate_interval": "1m", "$__range": "1h", "$instance": ".*"}


def rules() -> list[dict[str, Any]]:
    """Return every rule."""
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def panels() -> list[dict[str, Any]]:
    """Return every panel of the dashboard."""
    return list(json.loads(DASHBOARD.read_text())["panels"])


def queries() -> list[str]:
    """Return every query of the dashboard, with Grafana's variables filled in."""
    found_queries = []
    for each in panels():
        for target in each["targets"]:
            query = target["expr"]
            for name, value in RANGES.items():
                query = query.replace(name, value)
            found_queries.append(query)
    return found_queries


def promtool(*words: str) -> str:
    """Return what promtool says; it must find nothing wrong."""
    done = subprocess.run((str(PROMTOOL), *words), capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_the_rules_are_right_and_say_what_they_should(tmp_path: Path) -> None:
    """Each alert fires with its text, and a day of noise fires none."""
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(RULES))
    for file in (RULES, TESTS):
        shutil.copy(file, tmp_path)
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / TESTS.name))


def test_every_alert_is_tried() -> None:
    """With the labels and the text that it is to have."""
    tried = {
        case["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert {rule["alert"] for rule in rules() if "alert" in rule} == tried


def test_every_alert_says_what_it_is_and_what_to_type() -> None:
    """No name that a user chose is in what is to be typed."""
    for rule in rules():
        if "alert" in rule:
            assert {"summary", "description", "command"} == rule["annotations"].keys()
            assert {"severity"} == rule["labels"].keys()
            words = re.findall(r"\$labels\.(\w+)", rule["annotations"]["command"])
            assert {*words} <= {"port", "netns", "stage"}


@pytest.mark.parametrize("text", [RULES.read_text(), *queries()], ids=lambda text: text[:40])
def test_only_metrics_that_there_are_are_asked_for(text: str) -> None:
    """By name and by label."""
    shown = {f"{PREFIX}{name}" for name in FAMILIES}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    names = {*re.findall(r"udpbench[_:][\w:]+", text)} - recorded
    assert {name for name in names if not name.endswith("_packets")} <= {
        *shown, "udpbench_sockets", "udpbench_stages", "udpbench_exporter",
    }  # fmt: skip
    used = {label for group in re.findall(r"\b(?:by|on|ignoring|without) \(([\w, ]+)\)", text)
            for label in group.split(", ")}  # fmt: skip
    assert used <= LABELS


@needs_promtool
def test_the_queries_of_the_dashboard_can_be_asked(tmp_path: Path) -> None:
    """As Prometheus parses them."""
    text = {"groups": [{"name": "all", "rules": [
        {"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())
    ]}]}  # fmt: skip
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump(text).replace("query:", "query_"))
    assert f"{len(queries())} rules found" in promtool("check", "rules", str(file))


def test_the_dashboard_is_one_that_grafana_reads() -> None:
    """Panels of a kind that it has, none over another, each with a unit and what it means."""
    board = json.loads(DASHBOARD.read_text())
    assert ["datasource", "instance"] == [each["name"] for each in board["templating"]["list"]]
    assert {"uid", "title", "panels", "schemaVersion", "time"} <= board.keys()
    assert len({each["id"] for each in panels()}) == len(panels())
    places: set[tuple[int, int]] = set()
    for each in panels():
        assert {"type", "title", "description", "gridPos", "fieldConfig", "targets"} <= each.keys()
        assert each["type"] in ("stat", "timeseries", "table")
        assert each["fieldConfig"]["defaults"]["unit"]
        grid = each["gridPos"]
        own = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert max(x for x, _ in own) < 24
        assert not own & places
        places |= own
        for target in each["targets"]:
            assert "${datasource}" == target["datasource"]["uid"]


def test_counters_are_asked_as_rates() -> None:
    """Their own value says when the exporter was started."""
    counters = [f"{PREFIX}{name}" for name, family in FAMILIES.items() if family.kind is COUNTER]
    for query in queries():
        for name in counters:
            for match in re.finditer(rf"{name}\b", query):
                before = query[: match.start()]
                folded = name.endswith("folded_sockets_total")
                assert folded or before.endswith(("rate(", "increase(")), query


def test_every_right_of_the_service_is_explained() -> None:
    """A comment is above what it may do, or is kept from."""
    lines = UNIT.read_text().split("\n")
    service = lines[lines.index("[Service]") : lines.index("[Install]")]
    keys = [line.partition("=")[0] for line in service if "=" in line and not line.startswith("#")]
    assert {"CapabilityBoundingSet", "AmbientCapabilities", "NoNewPrivileges", "ProtectSystem"} <= {
        *keys
    }
    for key in ("DynamicUser", "AmbientCapabilities", "CapabilityBoundingSet", "ProtectSystem", "IPAddressDeny",
                "RestrictNamespaces", "RestrictAddressFamilies", "ProtectKernelTunables"):  # fmt: skip
        place = next(n for n, line in enumerate(service) if line.startswith(f"{key}="))
        assert service[place - 1].startswith("#"), key


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_service_is_one_that_systemd_takes(tmp_path: Path) -> None:
    """With nothing to say about any line."""
    file = tmp_path / UNIT.name
    file.write_text(UNIT.read_text().replace("/usr/local/bin/udpbench", "/bin/true"))
    command = ("systemd-analyze", "verify", str(file))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)

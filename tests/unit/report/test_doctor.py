"""What ``doctor`` prints of the checks, and its JSON."""

from __future__ import annotations

from io import StringIO

import pytest
from golden import Golden

from udpbench.analysis.doctor import Readiness
from udpbench.definition.load import load_lab
from udpbench.report.doctor import is_ready, print_readiness, print_worst, readiness_json
from udpbench.report.terminal import Terminal

READY = Readiness("xdp", "left", "ready", "warning", "an XDP program sees every packet")
UNKNOWN = Readiness("pause", "left", "unknown", "warning", "pause frames slow down the sender")
SPOILS = Readiness(
    "governor",
    "right",
    "spoils",
    "warning",
    "the governor is not performance",
    "[bold]powersave[/bold]\x1b[2J",
    "performance",
    "set it",
    "cpu: {governor: performance}",
)


def printed(*results: Readiness) -> str:
    """Return what is printed on a wide terminal."""
    out = StringIO()
    print_readiness(Terminal(file=out, width=200), results)
    return out.getvalue()


def test_what_distorts_a_measurement_is_printed_with_what_mends_it(golden: Golden) -> None:
    """What a host says is shown as it is and obeyed never; ready checks are not listed."""
    golden.check(printed(SPOILS, UNKNOWN, READY))


@pytest.mark.parametrize(
    ("results", "ready"),
    [((READY,), True), ((READY, UNKNOWN), False), ((READY, SPOILS), False), ((), True)],
)
def test_only_hosts_of_which_all_was_read_are_ready(
    results: tuple[Readiness, ...], ready: bool
) -> None:
    """The unknown is never ready."""
    assert ready == is_ready(results) == readiness_json(results, load_lab("local"))["ready"]
    assert ready == ("ready\n" == printed(*results))


def test_as_json_every_check_is_there() -> None:
    """Under stable keys."""
    data = readiness_json((SPOILS, READY), load_lab("local"))
    assert (1, {"name": "local", "built_in": True}) == (data["schema"], data["lab"])
    keys = "check host status severity what value limit remedy settings"
    assert [keys.split()] * 2 == [list(check) for check in data["checks"]]
    assert ["right", "spoils", None] == [
        data["checks"][0]["host"],
        data["checks"][0]["status"],
        data["checks"][1]["value"],
    ]


def test_below_a_result_each_is_a_line(golden: Golden) -> None:
    """With the command that prints the rest; without any, nothing."""
    out = StringIO()
    print_worst(Terminal(file=out, width=200), (SPOILS, SPOILS), "udpbench doctor")
    golden.check(out.getvalue())
    empty = StringIO()
    print_worst(Terminal(file=empty), (), "udpbench doctor")
    assert "" == empty.getvalue()

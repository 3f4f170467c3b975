"""What a guest's kernel lacks: lab tests, and parts of them, that are left out there (pytest -p lacking)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from udpbench.agent.host.capabilities import try_capabilities
from udpbench.agent.host.system import Host

TESTS = {
    "af_xdp": {
        "test_frames_of_every_queue_are_accounted_for",
        "test_frames_are_not_taken_without_native_xdp",
    },
    "cpus": {"test_a_reader_is_named_by_what_it_does"},
    "rps": {
        "test_random_settings_with_random_failures_leave_no_trace",
        "test_an_ordinary_user_measures_and_loses_packets_on_purpose",
    },
    "tables": {"test_a_loss_at_every_stage_lands_on_its_own_line"},
    "types": {
        "test_the_kernels_own_reasons_are_those_of_the_stages",
        "test_each_socket_that_drops_is_named_with_its_reason_and_no_other",
        "test_what_comes_to_a_closed_port_is_counted_by_port",
    },
}
"""What a kernel may lack → the tests that need it."""
REASONS = {
    "af_xdp": "no AF_XDP (CONFIG_XDP_SOCKETS)",
    "cpus": "one CPU, which a reader's share of the time needs for itself",
    "rps": "no RPS (CONFIG_RPS)",
    "tables": "no tables of iptables (CONFIG_IP_NF_IPTABLES_LEGACY, CONFIG_NF_TABLES_IPV4)",
    "types": "no types of the kernel, and so no reasons of drops (CONFIG_DEBUG_INFO_BTF)",
}
WAYS = {
    "af_xdp": [("send", "af_xdp")],
    "io_uring_receive": [("send", "io_uring"), ("receive", "io_uring")],
    "incoming_cpu": [("sockets", "incoming-cpu")],
}
"""The same → its ways in the test of every way, which takes the others."""


def lacking() -> set[str]:
    """Return what this kernel lacks."""
    lacks = {name for name, has in try_capabilities(Host()).items() if not has}
    if not Path("/sys/kernel/btf/vmlinux").exists():
        lacks.add("types")
    if subprocess.run(["iptables", "-S"], capture_output=True).returncode != 0:
        lacks.add("tables")
    if os.cpu_count() == 1:
        lacks.add("cpus")
    return lacks


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Skip tests with the reason, and take parts out of the others."""
    lacks = lacking()
    release = os.uname().release
    for item in items:
        for need in (need for need in lacks & TESTS.keys() if item.originalname in TESTS[need]):
            why = f"Linux {release} of this guest has {REASONS[need]}"
            item.add_marker(pytest.mark.skip(reason=why))
    modules = {item.module.__name__.rpartition(".")[2]: item.module for item in items}
    if "test_ways" in modules:
        for kind, way in (each for need in lacks for each in WAYS.get(need, ())):
            modules["test_ways"].WAYS[kind].pop(way)
    if "test_ledger_quirks" in modules and "types" in lacks:
        modules["test_ledger_quirks"].QUIRKS["variants"].pop("explained")

"""What ``selftest`` prints of its proofs, and what a run says of a kernel that was never tried."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

from analysis.build import record
from golden import Golden

from udpbench.errors import ConnectError
from udpbench.model.record import SelfTest, StageProof
from udpbench.report.selftest import (
    conclusions,
    failure_json,
    not_kept,
    print_selftest,
    selftest_json,
    untried,
)
from udpbench.report.terminal import Terminal

NO_PORT = StageProof(
    "udp_no_port",
    4,
    100,
    100,
    0,
    ("receiver reason.NO_SOCKET", "receiver snmp.Udp.NoPorts"),
    "veth",
)
PURGED = StageProof("udp_purged", 6, 112, 112, 0, (), "veth")
LINK = StageProof("link", None, None, why="a veth pair loses nothing")
SILENT = StageProof("udp_memory", 4, 100, 0, 100, (), "veth")
WRONG = StageProof("rx_tc", 4, 100, 50, 50, (), "veth")
HIDDEN = StageProof("rx_ip", 4, 100, None, 100, (), "veth")
OF_DRIVER = StageProof("rx_xdp", 4, 100, None, 100, (), "veth")
UNTRIED = StageProof("rx_tc", 4, None, why="it needs root or CAP_BPF")
FAILED = [
    StageProof(stage, 6, None, why="napi_cpus: No such file or directory", failed=True)
    for stage in ("udp_rcvbuf", "udp_memory")
]
GOOD = SelfTest("6.18.0", "#1 SMP x86_64", "2026-11-22T16:00:00+00:00", "0.2.0", (NO_PORT,))


def test_each_proof_is_a_row_with_the_counters_that_moved(golden: Golden) -> None:
    """What could not be tried stands below, with the reason."""
    out = StringIO()
    selftest = replace(GOOD, proofs=(LINK, HIDDEN, NO_PORT, SILENT, PURGED))
    print_selftest(Terminal(file=out, width=120), selftest)
    golden.check("\n".join(line.rstrip() for line in out.getvalue().splitlines()))


def test_what_follows_is_said_in_words(golden: Golden) -> None:
    """A good kernel, a kernel that counts wrongly, and a kernel without drop reasons."""
    golden.check(list(conclusions(GOOD)))
    golden.check(list(conclusions(replace(GOOD, proofs=(WRONG, SILENT, HIDDEN)))))
    golden.check(list(conclusions(replace(GOOD, unexplained="no BTF"))))
    golden.check(list(conclusions(replace(GOOD, proofs=(NO_PORT, UNTRIED)))))
    golden.check(list(conclusions(replace(GOOD, proofs=(NO_PORT, OF_DRIVER)))))


def test_the_same_is_data() -> None:
    """With stable keys."""
    data = json.loads(json.dumps(selftest_json(GOOD)))
    assert (1, True, "6.18.0") == (data["schema"], data["believable"], data["kernel"])
    assert ["udp_no_port"] == [proof["stage"] for proof in data["proofs"]]
    assert [] == data["missing"]


def test_what_is_missing_is_said_and_not_kept(golden: Golden) -> None:
    """With the reason, all stages of one trial together, in words and as data."""
    lacking = replace(GOOD, proofs=(NO_PORT, *FAILED))
    golden.check([*conclusions(lacking), str(not_kept(lacking))])
    golden.check(list(conclusions(replace(GOOD, proofs=(SILENT, *FAILED)))))
    golden.check(list(conclusions(replace(GOOD, proofs=(LINK, UNTRIED)))))
    data = json.loads(json.dumps(selftest_json(lacking)))
    why = "napi_cpus: No such file or directory"
    assert (False, [("udp_rcvbuf", 6, why), ("udp_memory", 6, why)]) == (
        data["believable"],
        [(each["stage"], each["family"], each["why"]) for each in data["missing"]],
    )
    assert None is not_kept(replace(GOOD, proofs=(NO_PORT, UNTRIED)))


def test_a_host_that_could_not_be_tested_is_data_too() -> None:
    """With the error's words."""
    assert {"schema": 1, "believable": False, "error": "right: refused"} == failure_json(
        ConnectError("refused", "right")
    )


def test_a_kernel_that_was_never_tried_is_named(golden: Golden) -> None:
    """Until it was, here or on the hosts of a lab."""
    golden.check(untried([record()], "local"))
    golden.check(untried([replace(record(), built_in_lab=False)], "mine.yaml"))
    tried = replace(record(), selftests={"left": GOOD, "right": GOOD})
    assert [None] * 2 == [
        untried([], "local"),
        untried([tried], "local"),
    ]

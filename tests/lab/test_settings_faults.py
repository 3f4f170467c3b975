"""The settings that lose packets on purpose: put back as they were, and never in another's place."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import pytest
from settings_fixture import Inside, Refused, setting, wire

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo pytest tests/lab"),
]

OTHERS_PROGRAM = (
    f"{sys.executable} -c 'from udpbench.agent.host.bpf import bpf, instructions; from udpbench.agent.host.system import Host; "
    "from udpbench.agent.settings import packet_traps; "
    'packet_traps._attach(Host(), "receive0", bpf.load(bpf.XDP, instructions.passes(2), "others"))\''
)


@pytest.fixture
def receiver() -> Iterator[Inside]:
    """Yield the namespace of a receiver whose link is up."""
    near, far = Inside(), Inside()
    wire(far, near)
    near.shell("ip link set receive0 up")
    near.call("settled", interface="receive0")
    yield near
    near.close()
    far.close()


SETTINGS = [
    setting("xdp", "receive0", 64106),
    setting("tc_drop", "receive0", 64108),
    setting("trap", "receive0", True),
]


def test_what_lost_packets_on_purpose_leaves_no_trace(receiver: Inside) -> None:
    """Each reads back as it was asked for, and all of it is gone afterwards."""
    before = receiver.call("visible")
    changes = receiver.apply(*SETTINGS)
    assert [(None, 64106), (None, 64108), (None, True)] == [
        (change["before"], change["after"]) for change in changes
    ]
    assert before != receiver.call("visible")
    receiver.call("restore")
    assert before == receiver.call("visible")


@pytest.mark.parametrize(
    ("kind", "value", "command", "reason"),
    [
        ("xdp", 64106, OTHERS_PROGRAM, "has the XDP program others; detach it first"),
        (
            "tc_drop",
            64108,
            "tc qdisc add dev receive0 clsact",
            "already has an ingress qdisc with 0 filters",
        ),
        (
            "trap",
            True,
            "tc qdisc add dev receive0 root pfifo limit 7",
            "already has root qdisc pfifo",
        ),
    ],
)
def test_anothers_program_or_discipline_is_left_alone(
    receiver: Inside, kind: str, value: object, command: str, reason: str
) -> None:
    """It could not be put back, so that the setting is refused and names it."""
    receiver.shell(command)
    before = receiver.call("visible")
    with pytest.raises(Refused, match=reason):
        receiver.apply(setting(kind, "receive0", value))
    assert before == receiver.call("visible")


XDP_FACT = (
    f"{sys.executable} -c 'from udpbench.agent.host.environment import xdp_program; "
    'from udpbench.agent.host.system import Host; print(xdp_program(Host(), "receive0"))\''
)


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        ("DRV_MODE = 4", r"program \d+"),
        # XDP_FLAGS_SKB_MODE (linux/if_link.h)
        ("DRV_MODE = 2", r"program \d+, generic"),
    ],
)
def test_where_anothers_xdp_program_runs_is_known(receiver: Inside, flags: str, fact: str) -> None:
    """The driver counts its own drops, and nothing counts those of a program in the stack."""
    assert "none" == receiver.shell(XDP_FACT).strip()
    command = OTHERS_PROGRAM.replace(
        "packet_traps._attach", f"bpf.XDP_FLAGS_{flags}; packet_traps._attach"
    )
    receiver.shell(command)
    assert re.fullmatch(fact, receiver.shell(XDP_FACT).strip())

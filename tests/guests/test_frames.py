"""AF_XDP between two cards: whether their drivers copy frames is read back, and ledgers close."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import NEEDED, records, start

from udpbench.analysis.judge import judge

pytestmark = NEEDED

FRAMES = """
question: Who copies frames?
traffic:
  size: 200B
  rate: 500pps
  count: 1500
  flows: {{from: 65400-65415, to: "receiver.addresses[1]:4321"}}
send: {{{send}, bucket: 1s}}
receive: {{{receive}}}
duration: 60s
warmup: 0s
repetitions: 1
settings: {{receiver: {{ethtool: {{channels: 2}}}}}}
"""


@pytest.mark.parametrize(
    ("role", "kind", "in_place"),
    [
        ("sender", "virtio", True),
        ("receiver", "virtio", True),
        ("sender", "igb", False),  # igb_xsk_wakeup wants an XDP program, which a sender has not
        ("receiver", "igb", True),
    ],
)
def test_whether_a_driver_copies_frames_is_read_back(
    role: str, kind: str, in_place: bool, tmp_path: Path
) -> None:
    """To the packet; virtio_net since Linux 6.11, igb since 6.14."""
    keys = {
        "send": "call: af_xdp" if role == "sender" else "pace: sleep",
        "receive": "call: af_xdp, wait: nap 1ms, workers: 2"
        if role == "receiver"
        else "wait: block",
    }
    (record,) = records(tmp_path, start(tmp_path, kind, FRAMES.format(**keys)))
    result = judge(record)
    assert (True, 0, 1500) == (result.valid, result.unaccounted, result.received_packets)
    (measured,) = (phase for phase in record.phases if phase.name == "measured")
    copies = {stats.zerocopy for stats in measured.stats if stats.role == role}
    assert {in_place} == copies

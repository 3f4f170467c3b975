"""What udpbench does not do, by the words under which a user looks for it.

Each subject is a heading of docs/limits.md, which says what to use instead.
"""

from __future__ import annotations

from typing import NamedTuple


class NotDone(NamedTuple):
    """What is not done, in words, and the heading that says more."""

    what: str
    heading: str
    words: str


SUBJECTS = (
    NotDone(
        "captures are not replayed",
        "captures",
        "pcap pcapng capture captures replay trace tcpreplay",
    ),
    NotDone(
        "sizes are not mixed",
        "mixes-of-sizes",
        "mix mixes imix distribution genome",
    ),
    NotDone(
        "nothing is sent to groups",
        "multicast-and-broadcast",
        "multicast broadcast anycast group groups igmp mld join ssm",
    ),
    NotDone(
        "no link is impaired",
        "impaired-links",
        "delay latency jitter reorder reordering duplicate duplication corrupt corruption netem"
        " impair impairment",
    ),
    NotDone(
        "no other protocol is spoken",
        "other-protocols",
        "quic dtls tls sctp icmp http rtp coap vxlan geneve gre wireguard",
    ),
    NotDone(
        "every packet has the lab's own addresses",
        "addresses-outside-the-lab",
        "spoof spoofing source_ip src_ip source_address dst_ip dest destination host target url",
    ),
    NotDone(
        "the kernel's network stack is measured",
        "faster-senders",
        "dpdk pktgen trex netmap line_rate",
    ),
)
_BY_WORD = {word: subject for subject in SUBJECTS for word in subject.words.split()}


def elsewhere(word: str) -> str:
    """Return the next step for a word of something that is not done; empty for any other word."""
    subject = _BY_WORD.get(word.lower().replace("-", "_"))
    return f"{subject.what}: see docs/limits.md#{subject.heading}" if subject is not None else ""

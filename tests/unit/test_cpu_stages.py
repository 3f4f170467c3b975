"""The table of anchors: each row can be used, and what a kernel lacks is named."""

from __future__ import annotations

import pytest

from udpbench.analysis.cpu_time import ENTERS
from udpbench.cpu_stages import (
    IDLE,
    INTERRUPT,
    STAGES,
    Anchor,
    _rows,
    anchor_of,
    missing_anchors,
    stage_below,
)
from udpbench.model.limits import LEDGER_STAGES


def test_every_row_has_a_stage_that_packets_pass() -> None:
    """By itself, or by the side of who called; no function is in two rows."""
    sides, sending = ("tx", "rx"), ("tx", "fwd")
    for anchor, words in _rows():
        stage = anchor.stage
        assert stage is None or any(
            each in (*STAGES, IDLE)
            for each in (
                [s + stage[1:] for s in (sending if stage[0] == "^" else sides)]
                if stage[0] in "?~^"
                else [stage]
            )
        )
        for name in (name for word in words for name in word.rstrip("?").split("/")):
            assert anchor == anchor_of(name.replace("*", "x")), name


def test_stages_that_packets_enter_are_those_of_both_ledgers() -> None:
    """A name that neither has would never be divided by a packet."""
    assert set(ENTERS) <= set(STAGES)
    assert set(ENTERS.values()) <= set(LEDGER_STAGES)


@pytest.mark.parametrize(
    ("function", "caller", "stage"),
    [
        ("ip_rcv", "rx_core", "rx_ip"),
        ("strlen", "rx_core", "rx_core"),
        ("strlen", None, None),
        ("kfree_skb", "rx_udp", "rx_memory"),
        ("kfree_skb", "tx_qdisc", "tx_memory"),
        ("kfree_skb", None, "?_memory"),
        ("kfree_skb", "interrupts", "interrupts"),
        ("__schedule", "idle", "schedule"),
        ("_raw_spin_lock", "rx_udp", "rx_udp"),
        ("asm_exc_page_fault", None, "?_application"),
        ("asm_exc_page_fault", "rx_copy", "rx_copy"),
        ("tpacket_rcv", "rx_core", "rx_core"),
        ("tpacket_rcv", "tx_device", "tx_device"),
        ("bpf_prog_a_b", "rx_poll", "rx_xdp"),
        ("bpf_prog_a_b", "rx_udp", "rx_udp"),
        ("ip_forward", "rx_core", "fwd_ip"),
        ("ip6_forward", "rx_ip", "fwd_ip"),
        ("nf_hook_slow", "fwd_ip", "fwd_netfilter"),
        ("nf_confirm", "fwd_netfilter", "fwd_conntrack"),
        ("ip_output", "fwd_ip", "fwd_ip"),
        ("ip_output", "rx_core", "fwd_ip"),  # ip_forward called it last
        ("ip_output", "rx_netfilter", "fwd_ip"),
        ("ip_output", "tx_udp", "tx_ip"),
        ("ip_output", "others_softirq", "tx_ip"),  # a segment of TCP
        ("ip_output", None, "tx_ip"),
        ("ip_send_skb", "rx_udp", "tx_ip"),  # an error by ICMP
        ("ip_send_skb", "fwd_ip", "fwd_ip"),
        ("__dev_queue_xmit", "fwd_ip", "fwd_qdisc"),
        ("tcf_classify", "fwd_qdisc", "fwd_tc"),
        ("dev_hard_start_xmit", "fwd_qdisc", "fwd_device"),
        ("kfree_skb", "fwd_netfilter", "fwd_memory"),
        ("____napi_schedule", "fwd_device", "fwd_wakeup"),
        ("__schedule", "fwd_ip", "schedule"),
        ("udp_sendmsg", "fwd_device", "fwd_device"),  # fwd_udp is no stage
        ("asm_exc_page_fault", "fwd_device", "fwd_device"),
        ("enqueue_to_backlog", "fwd_device", "rx_backlog"),  # of the next host
        ("br_handle_frame", "rx_core", "fwd_bridge"),
        ("br_forward", "fwd_bridge", "fwd_bridge"),
        ("br_dev_xmit", "fwd_device", "fwd_bridge"),  # a router's own bridge
        ("nft_do_chain", "fwd_bridge", "fwd_netfilter"),
        ("__dev_queue_xmit", "fwd_bridge", "fwd_qdisc"),
        ("netif_receive_skb", "fwd_bridge", "rx_core"),  # for the bridge's own host
        ("br_dev_xmit", "tx_device", "bridge"),  # a sender's own
        ("__dev_queue_xmit", "bridge", "tx_qdisc"),
    ],
)
def test_the_innermost_anchor_wins(function: str, caller: str | None, stage: str | None) -> None:
    """A function that is none leaves the stage of its caller as it is."""
    assert stage == stage_below(function, caller)


def test_a_kernel_without_an_anchor_is_told() -> None:
    """By all names that it has had; what a module brings may be missing."""
    every = {name for _, words in _rows() for word in words for name in word.rstrip("?").split("/")}
    assert () == missing_anchors(every)
    assert ("ip_rcv",) == missing_anchors(every - {"ip_rcv"})
    assert () == missing_anchors(every - {"gro_receive_skb", "nft_do_chain"})
    assert () == missing_anchors(every - {"kfree_skb", "sk_skb_reason_drop"}), "Linux 6.1"
    assert ("gro_receive_skb/napi_gro_receive",) == missing_anchors(
        every - {"gro_receive_skb", "napi_gro_receive"}
    )


def test_what_a_thread_of_an_interrupt_waits_for_has_a_stage() -> None:
    """On PREEMPT_RT; the thread is a task, whose time is that of its interface or of a program."""
    anchor = anchor_of("irq_forced_thread_fn")
    assert anchor is not None
    assert ("interrupts", False) == (anchor.stage, anchor.kind == INTERRUPT)


def test_kinds_of_functions_are_known_by_their_beginning() -> None:
    """The longest that fits."""
    assert Anchor(None, "lock") == anchor_of("_raw_spin_lock_bh")
    assert anchor_of("_raw") is None

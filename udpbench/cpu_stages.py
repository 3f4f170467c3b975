"""The anchors: functions of the kernel, and the stage of a packet's way that their time belongs to.

The innermost function of a call chain that is an anchor decides. A stage ``?_name`` has the side,
``tx`` or ``rx``, of the anchor that called it, else of its task; ``~_name`` is one only where no
other anchor called it; ``^_name`` is one of sending, unless what received a packet called it, which
forwards then. All that forwarding calls of sending is forwarding, too.
``-`` says what kind of work a function is and leaves its stage as it is.
Functions with ``/`` between them are one function by its names in different kernels: one of them is
to be there. Of a function with ``?`` behind it the module may be missing, or the feature. A star
stands for any ending. Drivers need no row: they are below the poll, or below the device's queue.

A further function is a word in a row. Names are looked up in each host's own kallsyms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple, Optional

from udpbench.text_tables import rows_of

STAGES = (
    *("tx_application", "tx_syscall", "tx_udp", "tx_copy", "tx_ip", "tx_netfilter"),
    *("tx_conntrack", "tx_xsk", "tx_tc", "tx_qdisc", "tx_device", "tx_memory", "tx_wakeup"),
    *("tx_schedule", "bridge", "fwd_ip", "fwd_netfilter", "fwd_conntrack", "fwd_tc"),
    *("fwd_qdisc", "fwd_device", "fwd_memory", "fwd_wakeup"),
    *("rx_poll", "rx_xdp", "rx_gro", "rx_core", "rx_tc", "rx_backlog", "rx_ip", "rx_netfilter"),
    *("rx_conntrack", "rx_udp", "rx_wakeup", "rx_schedule", "rx_syscall", "rx_read", "rx_copy"),
    *("rx_memory", "rx_application"),
    *("schedule", "interrupts", "others_softirq", "own"),
)
"""In the order in which a packet passes them; the last are no packet's in particular."""
PACKETS_STAGES = frozenset({*STAGES} - {"own", "others_softirq"})
"""Those of the traffic's packets, and what its load makes the kernel do besides."""
FORWARDING = "fwd_"
"""How stages of packets begin that go on to another host."""
BRIDGED = "fwd_bridge"
"""``bridge`` where it takes in what was received: what it sends is forwarded."""
RECEIVED = (
    *("rx_poll", "rx_xdp", "rx_gro", "rx_core", "rx_tc", "rx_backlog", "rx_ip"),
    *("rx_netfilter", "rx_conntrack"),
)
"""Stages of a packet before it is known to be for the host itself."""
IDLE, UNATTRIBUTED = "idle", "unattributed"
INTERRUPT = "interrupt"
"""The kind of an anchor below which time belongs to no task."""
PROGRAM = "bpf_prog_"
"""How the name of every BPF program begins."""
_TABLE = """\
idle | idle | do_idle cpu_startup_entry cpuidle_enter_state
?_syscall | syscall | do_syscall_64/el0_svc/do_el0_svc entry_SYSCALL_64_after_hwframe?
  x64_sys_call? do_epoll_wait/ep_poll do_sys_poll core_sys_select io_submit_sqes?
tx_syscall | syscall | __sys_sendmmsg ___sys_sendmsg/____sys_sendmsg __sys_sendto __sys_sendmsg
  sock_write_iter io_send? io_sendmsg? io_send_zc?
rx_syscall | syscall | do_recvmmsg/__sys_recvmmsg ___sys_recvmsg/____sys_recvmsg __sys_recvfrom
  __sys_recvmsg sock_read_iter io_recv? io_recvmsg?
~_application | memory | asm_exc_page_fault/do_page_fault/do_mem_abort exc_page_fault?
tx_udp | protocol | udp_sendmsg udpv6_sendmsg? inet_sendmsg inet6_sendmsg? udp_send_skb?
  udp_v6_send_skb? sock_sendmsg/__sock_sendmsg
tx_copy | copy | ip_generic_getfrag? _copy_from_iter csum_and_copy_from_iter?
  skb_copy_datagram_from_iter skb_splice_from_iter? __zerocopy_sg_from_iter/zerocopy_sg_from_iter?
tx_ip | protocol | ip_make_skb __ip_append_data? ip_setup_cork? ip_send_skb ip_local_out
  __ip_local_out ip_route_output_flow ip_route_output_key_hash_rcu ip6_make_skb? ip6_send_skb?
  ip6_local_out? ip6_route_output_flags? ip6_dst_lookup_flow?
^_ip | protocol | ip_output ip_mc_output ip_finish_output? __ip_finish_output? ip_finish_output2?
  ip6_output? ip6_finish_output? ip6_finish_output2? neigh_resolve_output neigh_hh_output?
fwd_ip | protocol | ip_forward ip_forward_finish? ip_forward_options? ip6_forward?
  ip6_forward_finish?
?_netfilter | netfilter | nf_hook_slow? nf_hook_slow_list? ipt_do_table? ip6t_do_table?
  nft_do_chain? nf_nat_inet_fn? nf_ct_attach?
?_conntrack | netfilter | nf_conntrack_in? nf_confirm? __nf_conntrack_confirm? ipv4_confirm?
  nf_conntrack_destroy? nf_ct_destroy? destroy_conntrack? nf_ct_deliver_cached_events?
tx_xsk | protocol | xsk_sendmsg? __xsk_sendmsg? xsk_generic_xmit? xsk_poll?
rx_xdp | driver | do_xdp_generic? bpf_prog_run_generic_xdp? netif_receive_generic_xdp?
  xdp_do_redirect? xdp_do_flush/xdp_do_flush_map? xsk_rcv? __xsk_map_redirect? xsk_recvmsg?
?_tc | netdev | tcf_classify? tc_run? sch_handle_ingress? sch_handle_egress? tcx_run?
tx_qdisc | netdev | __dev_queue_xmit sch_direct_xmit __qdisc_run net_tx_action dev_qdisc_enqueue?
tx_device | driver | dev_hard_start_xmit __dev_direct_xmit? validate_xmit_skb?
  validate_xmit_skb_list skb_mac_gso_segment? __skb_gso_segment?
?_memory | skb | __alloc_skb alloc_skb_with_frags sock_alloc_send_pskb
  napi_alloc_skb/__napi_alloc_skb build_skb napi_build_skb? __netdev_alloc_skb __kfree_skb?
  kfree_skb/kfree_skb_reason/sk_skb_reason_drop consume_skb __consume_stateless_skb?
  skb_release_data? skb_free_head? kfree_skbmem? napi_consume_skb skb_attempt_defer_free?
  skb_defer_free_flush? napi_skb_free_stolen_head? kfree_skb_list_reason/kfree_skb_list
  page_pool_alloc_pages? page_pool_put_unrefed_page? page_pool_put_page?
  page_pool_put_unrefed_netmem? skb_clone pskb_expand_head skb_release_head_state?
  sock_wfree sock_rfree dev_kfree_skb_any_reason?
?_wakeup | schedule | sock_def_readable sock_def_write_space __wake_up_sync_key try_to_wake_up
  ep_poll_callback? ____napi_schedule? wake_up_process
?_schedule | schedule | __schedule schedule schedule_idle? schedule_timeout finish_task_switch
  preempt_schedule_common? preempt_schedule_irq? __cond_resched? prepare_to_wait_exclusive
  irqentry_exit_to_user_mode? exit_to_user_mode_loop? exit_to_user_mode_prepare?
bridge | netdev | br_handle_frame? br_dev_xmit? br_forward? __br_forward? br_dev_queue_push_xmit?
rx_poll | driver | net_rx_action __napi_poll/napi_poll napi_threaded_poll? napi_busy_loop?
  __napi_busy_loop? napi_threaded_poll_loop?
rx_gro | netdev | gro_receive_skb/napi_gro_receive dev_gro_receive napi_gro_frags?
  gro_flush_normal? napi_gro_flush/__gro_flush napi_complete_done gro_complete?
  skb_gro_receive udp4_gro_receive? udp_gro_receive?
rx_core | netdev | netif_receive_skb_list_internal? __netif_receive_skb_list_core
  __netif_receive_skb_core __netif_receive_skb netif_receive_skb
rx_backlog | netdev | process_backlog enqueue_to_backlog netif_rx_internal get_rps_cpu?
  net_rps_send_ipi?
rx_ip | protocol | ip_rcv ip_list_rcv ip_rcv_core? ip_rcv_finish? ip_sublist_rcv?
  ip_sublist_rcv_finish? ip_local_deliver ip_local_deliver_finish? ip_protocol_deliver_rcu
  ip_route_input_noref ip_route_input_slow? fib_validate_source ip_defrag? ipv6_rcv?
  ipv6_list_rcv? ip6_rcv_finish? ip6_input? ip6_input_finish? ip6_protocol_deliver_rcu?
  ip6_route_input? ip_mr_input?
rx_udp | protocol | udp_rcv __udp4_lib_rcv? __udp4_lib_lookup? udp_unicast_rcv_skb?
  udp_queue_rcv_skb? udp_queue_rcv_one_skb? __udp_enqueue_schedule_skb? udpv6_rcv? __udp6_lib_rcv?
  __udp6_lib_lookup? udpv6_queue_rcv_skb? udpv6_queue_rcv_one_skb? __udp4_lib_mcast_deliver?
  sk_filter_trim_cap reuseport_select_sock?
rx_read | protocol | udp_recvmsg udpv6_recvmsg? inet_recvmsg inet6_recvmsg? __skb_recv_udp
  __skb_try_recv_from_queue? __skb_wait_for_more_packets skb_consume_udp udp_rmem_release?
  sock_recvmsg first_packet_length? udp_poll udp_read_skb?
rx_copy | copy | skb_copy_datagram_iter __skb_datagram_iter? simple_copy_to_iter? _copy_to_iter
  skb_copy_and_csum_datagram_msg
others_softirq | protocol | tcp_v4_rcv tcp_v6_rcv? icmp_rcv icmpv6_rcv? arp_rcv igmp_rcv?
  raw_local_deliver? unix_stream_sendmsg?
interrupts | interrupt | handle_softirqs/__do_softirq asm_sysvec_*? sysvec_*? asm_common_interrupt?
  common_interrupt/handle_domain_irq/gic_handle_irq el1_interrupt? el0_interrupt? el1h_64_irq?
  irq_exit_rcu? __irq_exit_rcu? run_timer_softirq? rcu_core tasklet_action_common
  run_rebalance_domains/sched_balance_softirq hrtimer_run_softirq? hrtimer_interrupt irq_work_run
  __handle_irq_event_percpu smp_apic_timer_interrupt? do_IRQ?
  flush_smp_call_function_queue/generic_smp_call_function_single_interrupt irqtime_account_irq?
interrupts | driver | irq_thread? irq_thread_fn? irq_forced_thread_fn?
- | lock | _raw_spin_* _raw_read_* _raw_write_* native_queued_spin_lock_slowpath?
  __pv_queued_spin_lock_slowpath? queued_* mutex_lock mutex_unlock lock_sock_nested
  __lock_sock_fast? rt_spin_lock? rt_spin_unlock? rt_mutex_*?
- | memory | kmem_cache_* __slab_free? ___slab_alloc? __kmalloc* kmalloc_* kfree __free_slab?
  get_page_from_freelist free_unref_page* __alloc_pages* alloc_pages* page_frag_* __free_pages*
  __page_frag_* free_frag_*? memset* clear_page_*?
- | copy | rep_movs_alternative? copy_user_* __memcpy? memcpy* __arch_copy_* copy_from_user*
  copy_to_user*
- | checksum | csum_partial* __skb_checksum* __csum_*
- | clock | ktime_get* read_tsc? pvclock_* kvm_clock_* arch_counter_*
"""


class Anchor(NamedTuple):
    """What a function is an anchor of; without a stage only its kind is known."""

    stage: Optional[str]
    kind: str


def _rows() -> Iterator[tuple[Anchor, list[str]]]:
    for stage, kind, words in rows_of(_TABLE.rstrip("\n")):
        yield Anchor(None if stage == "-" else stage, kind), words.split()


_EXACT: dict[str, Anchor] = {}
_BEGIN: dict[str, Anchor] = {}
for _anchor, _words in _rows():
    for _name in (name for word in _words for name in word.rstrip("?").split("/")):
        (_BEGIN if _name.endswith("*") else _EXACT).setdefault(_name.rstrip("*?"), _anchor)
KINDS = tuple(dict.fromkeys(anchor.kind for anchor, _ in _rows()))


@lru_cache(maxsize=2**14)
def anchor_of(function: str) -> Optional[Anchor]:
    """Return what a function is an anchor of; None if it is none."""
    if function in _EXACT:
        return _EXACT[function]
    longest = max((each for each in _BEGIN if function.startswith(each)), key=len, default=None)
    return _BEGIN[longest] if longest is not None else None


def missing_anchors(functions: Collection[str]) -> tuple[str, ...]:
    """Return the anchors of stages of which a kernel with these functions has none.

    What they do is in the function that calls them then.
    """
    return tuple(
        word
        for anchor, words in _rows()
        for word in words
        if anchor.stage is not None
        and not word.endswith("?")
        and not any(name in functions for name in word.split("/"))
    )


def stage_below(function: str, caller: Optional[str]) -> Optional[str]:
    """Return the stage of a function's time, called in a stage; ``?_`` if only its task says whose.

    None where nothing says it yet.
    """
    if function.startswith(PROGRAM):
        return "rx_xdp" if caller == "rx_poll" else caller
    anchor = anchor_of(function)
    stage = anchor.stage if anchor is not None else None
    if stage is None:
        return caller
    if stage[0] == "~":
        return caller or f"?{stage[1:]}"
    forwards = caller is not None and caller.startswith(FORWARDING)
    if stage == "bridge" and (forwards or caller in RECEIVED):
        return BRIDGED
    if stage[0] == "^":
        # The compiler may have made the call of the last function in ip_forward a jump.
        stage = ("tx" if caller not in RECEIVED else "fwd") + stage[1:]
    if forwards and stage != "?_schedule" and (stage[0] == "?" or stage.startswith("tx_")):
        own = FORWARDING + stage.partition("_")[2]
        return own if own in STAGES else caller
    if stage[0] != "?" or caller is None or caller[0] == "?":
        return stage
    if caller[:3] in ("tx_", "rx_"):
        return caller[:2] + stage[1:]
    return "schedule" if stage == "?_schedule" else caller

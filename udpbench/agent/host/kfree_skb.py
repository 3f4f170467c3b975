"""The kernel's reasons for dropping packets in one network namespace, counted by a BPF program.

The program is attached to the tracepoint ``kfree_skb`` as long as this process holds it. It counts
skbs, not packets, and sees neither what never was an skb nor what a card drops.
"""

from __future__ import annotations

import os

from udpbench.agent.host import bpf
from udpbench.agent.host.btf import Types
from udpbench.agent.host.system import Host
from udpbench.cpu_lists import parse_cpu_list

TYPES = "/sys/kernel/btf/vmlinux"
REASONS_MAX = 1024
"""Beyond these are those of subsystems, Wi-Fi and Open vSwitch (include/net/dropreason.h)."""
PREFIX = "SKB_DROP_REASON_"
SOCKET_PARAMETERS = 5
"""Of the tracepoint since Linux 6.11, the last of which is the receiving socket."""
KEY, VALUE, NETNS = -4, -16, -24
"""Offsets on the program's stack."""


class DropReasons:
    """The reasons of one namespace, counted from now on."""

    def __init__(self, host: Host) -> None:
        types = Types(host.path(TYPES).read_bytes())
        self._names = {
            number: name[len(PREFIX) :]
            for number, name in types.values("skb_drop_reason").items()
            if name.startswith(PREFIX) and 0 <= number < REASONS_MAX
        }
        possible = parse_cpu_list(host.read_text("/sys/devices/system/cpu/possible"))
        self._cpus = len(possible)
        self._map = bpf.create_array(bpf.PERCPU_ARRAY, REASONS_MAX)
        try:
            loaded = bpf.load(
                bpf.RAW_TRACEPOINT, program(types, self._map, host.netns()), "udpb_why"
            )
            try:
                self._hook = bpf.open_raw_tracepoint("kfree_skb", loaded)
            finally:
                os.close(loaded)
        except BaseException:
            os.close(self._map)
            raise

    def counts(self) -> dict[str, int]:
        """Return ``reason.NO_SOCKET`` and the like: skbs dropped for it since this was made."""
        return {
            f"reason.{name}": bpf.read_per_cpu(self._map, number, self._cpus)
            for number, name in self._names.items()
        }

    def close(self) -> None:
        """Detach the program."""
        os.close(self._hook)
        os.close(self._map)


def program(types: Types, counts: int, netns: int) -> bytes:
    """Return a program that counts the reason if the packet is of this namespace.

    That is the namespace of the receiving socket if there is one, else of the device, else of the
    sending socket: once a datagram is queued, the field for its device holds something else
    (sk_buff.dev_scratch), and before routing it is empty.
    """
    of_socket = types.offset("sock", "__sk_common.skc_net.net")
    sender = [
        *bpf.read_kernel(VALUE, 8, bpf.load_context(0), types.offset("sk_buff", "sk")),
        *bpf.read_kernel(VALUE, 8, bpf.load_stack(VALUE), of_socket),
    ]
    of_device = types.offset("net_device", "nd_net.net")
    device = bpf.read_kernel(VALUE, 8, bpf.load_stack(VALUE), of_device)
    find = [
        *bpf.read_kernel(VALUE, 8, bpf.load_context(0), types.offset("sk_buff", "dev")),
        *bpf.either(bpf.load_stack(VALUE), device, sender),
    ]
    if types.parameters("btf_trace_kfree_skb") >= SOCKET_PARAMETERS:
        receiver = bpf.read_kernel(VALUE, 8, bpf.load_context(3), of_socket)
        find = bpf.either(bpf.load_context(3), receiver, find)
    number = bpf.read_kernel(NETNS, 4, bpf.load_stack(VALUE), types.offset("net", "ns.inum"))
    return b"".join(bpf.counting([*find, *number], NETNS, netns, counts, KEY))

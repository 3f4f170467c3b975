"""Counts by BPF programs what each UDP socket of this namespace receives, reads and drops.

No socket gets a filter. A program on the root cgroup sees each packet before the socket's own
filter, one on the tracepoint ``kfree_skb`` sees drops, and one on ``sock_recv_length`` sees reads.
All of them end with this process's descriptors.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress

from udpbench.agent.host.bpf import bpf
from udpbench.agent.host.bpf.btf import Types
from udpbench.agent.host.bpf.cgroups import root_cgroup
from udpbench.agent.host.bpf.kfree_skb import PREFIX, REASONS_MAX, SOCKET_PARAMETERS, TYPES
from udpbench.agent.host.bpf.socket_programs import (
    GET_NETNS_COOKIE,
    SockFields,
    arrivals,
    drops,
    reads,
)
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.model.record import SocketCount

ENTRIES = 2**16
"""Size of the map: two or three entries per used socket."""
ARRIVED, READ = REASONS_MAX, REASONS_MAX + 1
"""What is counted per socket, in addition to drop reasons by number."""
UNKNOWN_HELPER = re.compile(rf"(unknown func|cannot use helper) \w+#{GET_NETNS_COOKIE}\b")
"""How the verifier refuses a helper (check_helper_call), by the kernel's age."""
NEEDS = "Linux 6.15 or later, where BPF programs of a cgroup can tell network namespaces apart"


class SocketCounts:
    """Counts of one namespace's sockets, at these ports or all, from now on, by socket cookie.

    OSError if not possible: without root, without BTF, or before Linux 6.15
    (``bpf_get_netns_cookie`` in cgroup programs).
    """

    def __init__(self, host: Host, ports: Collection[int] = ()) -> None:
        try:
            types = Types(host.path(TYPES).read_bytes())
            fields = SockFields(
                net=types.offset("sock", "__sk_common.skc_net.net"),
                inode=types.offset("net", "ns.inum"),
                protocol=types.offset("sock", "sk_protocol"),
                cookie=types.offset("sock", "__sk_common.skc_cookie.counter"),
                port=types.offset("sock", "__sk_common.skc_num"),
                shutdown=types.offset("sock", "sk_shutdown"),
            )
            self._reasons = {
                number: name[len(PREFIX) :]
                for number, name in types.values("skb_drop_reason").items()
                if name.startswith(PREFIX)
            }
        except KeyError as error:
            # A type of a later kernel, such as the drop reasons before Linux 5.17.
            raise OSError(errno.EOPNOTSUPP, f"this needs {NEEDS}") from error
        except FileNotFoundError as error:
            text = f"this needs {NEEDS}, and a kernel with CONFIG_DEBUG_INFO_BTF"
            raise OSError(errno.EOPNOTSUPP, text) from error
        except ValueError as error:
            raise OSError(f"this kernel's BTF does not describe sockets: {error}") from error
        with ExitStack() as opened:
            self._map = _kept(opened, bpf.create_counts(ENTRIES))
            self._attach_to_cgroup(opened, host, ports)
            netns = host.netns()
            self.names_reasons = types.parameters("btf_trace_kfree_skb") >= SOCKET_PARAMETERS
            if self.names_reasons:
                program = drops(self._map, fields, netns, ports)
                _attach(opened, "kfree_skb", program)
            self._sees_reads = False
            with suppress(FileNotFoundError):  # before Linux 6.3
                program = reads(self._map, READ, fields, netns, ports)
                _attach(opened, "sock_recv_length", program)
                self._sees_reads = True
            self._opened = opened.pop_all()

    def _attach_to_cgroup(self, opened: ExitStack, host: Host, ports: Collection[int]) -> None:
        program = arrivals(self._map, ARRIVED, host.netns_cookie() or 0, ports)
        try:
            with _loaded(bpf.CGROUP_SKB, program) as loaded, root_cgroup() as cgroup:
                _kept(opened, bpf.link_cgroup(loaded, cgroup))
        except bpf.NotLoaded as error:
            if UNKNOWN_HELPER.search(error.log) is None:
                raise
            raise OSError(errno.EOPNOTSUPP, f"this needs {NEEDS}") from error

    def counts(self) -> dict[int, SocketCount]:
        """Return each socket's counts by cookie; OSError if there were too many sockets."""
        by_cookie: dict[int, dict[int, int]] = {}
        counted = bpf.read_counts(self._map, ENTRIES)
        if len(counted) == ENTRIES:
            raise OSError(f"more than {ENTRIES} socket counters: further sockets are not counted")
        for (cookie, what), value in counted.items():
            by_cookie.setdefault(cookie, {})[what] = value
        return {
            cookie: SocketCount(
                arrived=what.pop(ARRIVED, 0),
                read=what.pop(READ, 0) if self._sees_reads else None,
                dropped={self._reasons.get(why, str(why)): n for why, n in what.items()},
            )
            for cookie, what in by_cookie.items()
        }

    def forget(self, cookies: Collection[int]) -> None:
        """Free the entries of closed sockets whose counts were read."""
        for cookie, what in bpf.read_counts(self._map, ENTRIES) if cookies else ():
            if cookie in cookies:
                bpf.forget_count(self._map, (cookie, what))

    def close(self) -> None:
        """Detach every program."""
        self._opened.close()


def _kept(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


@contextmanager
def _loaded(kind: int, program: bytes) -> Iterator[int]:
    loaded = bpf.load(kind, program, "udpb_sockets")
    try:
        yield loaded
    finally:
        os.close(loaded)


def _attach(opened: ExitStack, tracepoint: str, program: bytes) -> None:
    with _loaded(bpf.RAW_TRACEPOINT, program) as loaded:
        _kept(opened, bpf.open_raw_tracepoint(tracepoint, loaded))

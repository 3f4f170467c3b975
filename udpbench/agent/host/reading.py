"""What can be read of a host: files, programs, netlink, ethtool, affinity; nothing can be changed.

``system`` adds the changes; observers import this alone. Makes no decisions. Every failure is an
OSError with the kernel's text. The process must never change its network namespace, and netlink is
used only from the main thread: pyroute2 keeps one socket per thread, opened in that thread's
namespace (docs/kernel.md, Netlink sockets and namespaces). Long, because all that may be asked of a
host is in one list.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec, module_from_spec
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union

from udpbench.agent.host import genetlink, nf_tables, rtstats
from udpbench.agent.host.bpf import bpf

SO_NETNS_COOKIE = 71  # include/uapi/asm-generic/socket.h, Linux 5.14
# include/uapi/linux/netdev.h, Linux 6.3
_NETDEV_CMD_DEV_GET, _DEV_IFINDEX, DEV_XDP_FEATURES = 1, 1, 3
XDP_FEATURES = (
    *("basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg"),
    "ndo-xmit-sg",
)
"""enum netdev_xdp_act, bit by bit (Documentation/netlink/specs/netdev.yaml)"""
# the same, Linux 6.8
_NETDEV_CMD_QUEUE_GET, _NETDEV_CMD_NAPI_GET = 10, 11
_NAPI_IFINDEX, NAPI_ID, _NAPI_IRQ, _NAPI_PID = 1, 2, 3, 4
NAPI_NUMBERS = {
    "defer-hard-irqs": 5,
    "gro-flush-timeout": 6,
    "irq-suspend-timeout": 7,
    "threaded": 8,
}
"""Name → attribute of what can be set for one NAPI instance: Linux 6.13, ``threaded`` 6.17."""
_QUEUE_ID, _QUEUE_IFINDEX, _QUEUE_TYPE, _QUEUE_NAPI_ID = 1, 2, 3, 4
_NETDEV_CMD_QSTATS_GET = 12  # Linux 6.9
_QSTATS_IFINDEX, _QSTATS_SCOPE, _SCOPE_QUEUE = 1, 4, 1
QUEUE_TYPES = ("rx", "tx")
"""enum netdev_queue_type"""
# include/uapi/linux/ethtool_netlink.h, Linux 5.13
_ETHTOOL_MSG_STATS_GET = 32
_STATS_HEADER, _STATS_GROUPS = 2, 3
_HEADER_DEV_INDEX = 1
_BITSET_NOMASK, _BITSET_SIZE, _BITSET_VALUE = 1, 2, 4
_ETH_MAC, _RMON = 1, 3
RTM_GETQDISC = 38  # include/uapi/linux/rtnetlink.h
RTM_GETNEXTHOP = 106
_RTM_GETLINK, _RTM_GETNSID = 18, 90
_IFLA_IFNAME, _IFLA_TARGET_NETNSID, _NETNSA_NSID = 3, 46, 1
_ANY_LINK = bytes(12)
"""struct ifinfomsg from the index on."""
NHA_ID, NHA_OIF, NHA_GATEWAY = 1, 5, 6  # include/uapi/linux/nexthop.h
RTM_GETADDR, RTM_GETNEIGH, _RTM_GETROUTE = 22, 30, 26
_RTA_OIF = 4
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _IFA_RT_PRIORITY = 1, 2, 8, 9  # include/uapi/linux/if_addr.h
_NDA_DST, _NDA_LLADDR = 1, 2  # include/uapi/linux/neighbour.h
_IFADDRMSG = struct.Struct("=BBBxI")
"""Family, length of the prefix, flags, index."""
_NDMSG = struct.Struct("=iHBx")
"""Index, state, flags; after the family and its padding."""
TCM_BYTES = 20
"""Length of struct tcmsg: family and padding, index, handle, parent, info; 4 bytes each."""
NDMSG_BYTES = 12
"""Length of struct ndmsg, with the index after four bytes, and of struct rtmsg."""
_INDEXED = {"addr": (RTM_GETADDR, 8), "tc": (RTM_GETQDISC, TCM_BYTES)}
"""What is dumped for all interfaces: request, bytes of its struct, with the index after four."""
_COUNTED = {
    "fdb": (RTM_GETNEIGH, socket.AF_BRIDGE),
    "neigh": (RTM_GETNEIGH, socket.AF_UNSPEC),
    "route": (_RTM_GETROUTE, socket.AF_UNSPEC),
}
"""What others make as long as they like, such as a bridge's table by frames: request, family."""
MESSAGES_MAX = 2**16
"""Messages of such a dump; pyroute2 keeps 4 kB of each."""
PROGRAM_FOLDERS: tuple[str, ...] = (
    *("/usr/local/sbin", "/usr/sbin", "/sbin"),
    *("/usr/local/bin", "/usr/bin", "/bin"),
)
"""Searched after PATH, which lacks sbin for users over SSH."""
PROGRAM_TIMEOUT_S = 20.0
OUTPUT_BYTES, OUTPUT_CHUNK_BYTES = 2**24, 2**16
"""Read of a program: root of a container decides how many rules it lists, 0.4 kB each."""
PROGRAM_BYTES = 2**28
"""Memory of a program: nft takes 8 kB for each rule before it prints the first."""
NO_MEMORY = "Memory allocation failure"  # src/utils.c of nft
POLL_S = 0.01
Met = TypeVar("Met")
ENVIRON_BYTES = 2**18
"""Room for a variable of any length (MAX_ARG_STRLEN, 128 KiB) and all others."""
WITHOUT_PATH = ("socket:[", "net:[", "pipe:[", "anon_inode:")
"""How the links of a process begin to what is no file."""
KTHREADD = 2
"""The parent of all kernel threads."""
TIMEX_BYTES = 256
"""At least the size of struct timex on any architecture."""
TIME_ERROR = 5  # include/uapi/linux/timex.h


@dataclass(frozen=True)
class Done:
    """A program's output and exit status."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class NapiInstance:
    """One NAPI instance of an interface; ``pid`` is its kernel thread if threaded."""

    id: int
    irq: Optional[int]
    pid: Optional[int]
    numbers: Mapping[str, int] = field(default_factory=dict)
    """By the names in NAPI_NUMBERS, those that the kernel knows; timeouts in ns."""


@dataclass(frozen=True)
class OwnAddress:
    """One address of an interface."""

    interface: Union[IPv4Interface, IPv6Interface]
    flags: int
    metric: Optional[int]
    """The metric of the route that the kernel made with it, if it is not the usual one."""


READING_PROGRAMS: dict[str, set[Optional[str]]] = {
    "ethtool": {"-a", "-c", "-g", "-i", "-k", "-l", "-n", "-S", "-x", "--version"},
    "iptables": {"--version"},
    "iptables-save": {None},
    "nft": {"-j list ruleset", "--version"},
}
"""Program → the first argument with which it only reads, or all of them; None: no arguments."""
READING_VERBS = ("dump", "get")
"""Verbs of rtnetlink that change nothing."""


class ReadingHost:
    """The host as seen by who only reads; ``root`` is another folder in tests of file settings."""

    verbs: Container[str] = READING_VERBS
    """Requests of rtnetlink that may be made."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self._netlink: Any = None
        self.drops: Any = None
        """Counts drop reasons while the setting ``explain`` is in force."""
        self.wireguard: Any = None
        """Its key and its process, once a tunnel was asked for."""
        self.tuns: Optional[dict[object, Any]] = None
        """What was searched for a question, while it is answered (``tun_devices``)."""
        self.ssh: Optional[str] = None
        """SSH_CONNECTION of the controller (``control_path``); empty: without one."""

    # --- files ---------------------------------------------------------------------------------

    def path(self, path: str) -> Path:
        """Return an absolute path of the host below the root."""
        return self.root / path.lstrip("/")

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return self.path(path).exists()

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a folder; OSError if it is not one."""
        return sorted(os.listdir(self.path(path)))  # noqa: PTH208 - names, in /sys by the hundred

    def link_target(self, path: str) -> Optional[str]:
        """Return the last component of a symbolic link's target; None if it is not a link.

        All of it where that looks as if it had no path, as ``socket:[7]``: a file may be called so.
        """
        try:
            # No Path: a search for owners reads thousands.
            target = os.readlink(f"{self.root}/{path}")  # noqa: PTH115
        except OSError:
            return None
        name = target.rpartition("/")[2]
        return target if name.startswith(WITHOUT_PATH) else name

    def read_text(self, path: str) -> str:
        """Return a file's text, stripped; OSError if it cannot be read."""
        # Unbuffered, and no Path: takes half the time, and a look reads thirty files.
        with open(f"{self.root}/{path}", "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().decode("utf-8", "replace").strip()

    # --- identity and time ---------------------------------------------------------------------

    def boot_id(self) -> str:
        """Return the boot id."""
        return self.read_text("/proc/sys/kernel/random/boot_id")

    def hostname(self) -> str:
        """Return the hostname."""
        return socket.gethostname()

    def kernel(self) -> tuple[str, str]:
        """Return the kernel's release, and its build: version and machine (uname(2))."""
        named = os.uname()
        return named.release, f"{named.version} {named.machine}"

    def netns(self) -> int:
        """Return the inode number of the network namespace, which the kernel may reuse."""
        return self.path("/proc/self/ns/net").stat().st_ino

    def netns_cookie(self) -> Optional[int]:
        """Return the namespace's cookie, unique per boot; None before Linux 5.14."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                raw = probe.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
            except OSError:
                return None
        return int.from_bytes(raw, sys.byteorder)

    def clock_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds, the agent's only clock."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def wall_ns(self) -> int:
        """Return CLOCK_REALTIME in nanoseconds."""
        return time.clock_gettime_ns(time.CLOCK_REALTIME)

    def is_wall_synchronised(self) -> bool:
        """Return whether CLOCK_REALTIME is synchronised; adjtimex(2) with modes 0 only reads."""
        state = int(
            ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
        )
        if state < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "adjtimex")
        return state != TIME_ERROR

    def affinity(self, pid: int) -> list[int]:
        """Return the CPUs that a thread may run on."""
        return sorted(os.sched_getaffinity(pid))

    def scheduling(self, pid: int) -> tuple[int, int, int]:
        """Return a thread's policy, real-time priority and nice value."""
        priority = os.sched_getparam(pid).sched_priority
        return os.sched_getscheduler(pid), priority, os.getpriority(os.PRIO_PROCESS, pid)

    # --- processes -----------------------------------------------------------------------------

    def process_names(self) -> dict[int, str]:
        """Return pid → name of every visible process, of at most 15 bytes.

        Not from its command line, which a process can make as long as it likes (prctl(2)).
        """
        names = {}
        for text in self.listdir("/proc"):
            if text.isdigit():
                with suppress(OSError):  # it may have ended
                    line = self.read_text(f"/proc/{text}/stat")
                    names[int(text)] = line.partition("(")[2].rpartition(")")[0]
        return names

    def kernel_threads(self) -> dict[int, str]:
        """Return pid → whole name of each kernel thread; before Linux 5.17 only 15 bytes of it.

        OSError in a PID namespace of its own, or without CONFIG_PROC_CHILDREN.
        """
        names = {}
        for pid in self.read_text(f"/proc/{KTHREADD}/task/{KTHREADD}/children").split():
            with suppress(OSError):  # it may have ended
                names[int(pid)] = self.read_text(f"/proc/{pid}/comm")
        return names

    def parent(self, pid: int) -> int:
        """Return the parent of a process; 0 if it has no visible parent."""
        with self._process(pid) as process:
            return int(process.ppid())

    def is_stopped(self, pid: int) -> bool:
        """Return whether a process is stopped by a signal or a debugger."""
        with self._process(pid) as process:
            return process.status() in ("stopped", "tracing-stop")

    def is_of_root(self, pid: int) -> bool:
        """Return whether a process is root's, and of no PID namespace below this one.

        By all its user IDs: the owner of its folder is root if it hides its memory (proc_pid(5)).
        """
        lines = self.read_text(f"/proc/{pid}/status").split("\n")
        fields = {name: text.split() for name, _, text in (line.partition(":") for line in lines)}
        return set(fields["Uid"]) == {"0"} and len(fields.get("NSpid", ())) <= 1

    def environ(self, pid: int) -> dict[str, str]:
        """Return the beginning of a process's environment, which it can make as long as it likes.

        OSError if it is not visible.
        """
        with open(f"{self.root}/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as read_text
            whole = file.read(ENVIRON_BYTES).decode("utf-8", "replace").split("\0")[:-1]
        return dict(text.split("=", 1) for text in whole if "=" in text)

    @contextmanager
    def _process(self, pid: int) -> Iterator[Any]:
        """Yield psutil's view of a process; OSError ESRCH or EACCES if it is not visible."""
        import psutil  # late: it takes 20 ms

        before, psutil.PROCFS_PATH = psutil.PROCFS_PATH, str(self.path("/proc"))
        try:
            yield psutil.Process(pid)
        except psutil.Error as error:
            code = errno.EACCES if isinstance(error, psutil.AccessDenied) else errno.ESRCH
            raise OSError(code, os.strerror(code), f"process {pid}") from error
        finally:
            psutil.PROCFS_PATH = before

    def wait_for(self, what: str, condition: Callable[[], Optional[Met]], deadline_s: float) -> Met:
        """Return the condition's first true value; TimeoutError with ``what`` is still the case."""
        end_ns = self.clock_ns() + int(deadline_s * 10**9)
        while True:
            met = condition()
            if met:
                return met
            if self.clock_ns() >= end_ns:
                raise TimeoutError(errno.ETIMEDOUT, f"timed out after {deadline_s:g} s: {what}")
            time.sleep(POLL_S)

    # --- programs ------------------------------------------------------------------------------

    def program(self, name: str) -> Optional[Path]:
        """Return the path of a program under the root; None if it is not installed."""
        folders = [*os.environ.get("PATH", "").split(os.pathsep), *PROGRAM_FOLDERS]
        for folder in folders:
            path = self.path(f"{folder}/{name}")
            if folder.startswith("/") and os.access(path, os.X_OK) and path.is_file():
                return path
        return None

    def run(self, *command: str, stdin: str = "") -> Done:
        """Run an installed program that only reads, in the C locale, and return its output.

        OSError ENOPKG if it is not installed, ETIMEDOUT if it does not end, EPERM for another one.
        """
        refuse_changing_program(command)
        return self._run(command, stdin)

    def _run(self, command: Sequence[str], stdin: str, **options: Any) -> Done:
        path = self.program(command[0])
        if path is None:
            # Not ENOENT, which means that a setting's target is gone, and so restored.
            raise OSError(errno.ENOPKG, f"{command[0]} is not installed")
        process = subprocess.Popen(
            [str(path), *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            **options,
        )
        with process:
            try:
                _limit(process.pid)
                out, err = _outputs(process, stdin.encode(), command[0])
            except BaseException:
                process.kill()
                raise
        if process.returncode == -signal.SIGABRT or NO_MEMORY in err:
            limit = f"{PROGRAM_BYTES // 2**20} MiB"
            raise OSError(errno.EFBIG, f"{command[0]} needs more memory than its {limit}")
        return Done(process.returncode, out, err)

    # --- rtnetlink -----------------------------------------------------------------------------

    @property
    def netlink(self) -> Any:
        """The pyroute2 IPRoute of this namespace, opened on first use.

        It raises NetlinkError, which is not an OSError; ``rtnl`` translates.
        """
        if self._netlink is None:
            _import_in_parts()
            from pyroute2.iproute.linux import IPRoute

            # Without groups: nothing would read multicast messages.
            self._netlink = IPRoute(ext_ack=True, strict_check=True, groups=0)
        return self._netlink

    def rtnl(self, noun: str, verb: str, **fields: Any) -> list[Any]:
        """Make a request such as ``rtnl("link", "set", index=2, mtu=9000)``; return the messages.

        OSError with the kernel's extended ack message if there is one; EPERM if it is a change.
        """
        if verb not in self.verbs:
            raise OSError(errno.EPERM, f"an observer may not {verb} a {noun}")
        if verb == "dump" and noun in _INDEXED and "index" in fields:
            return _of_interface(noun, **fields)
        if verb == "dump" and noun in _COUNTED:
            _refuse_many(noun, fields)
        with _kernel_errors():
            return list(getattr(self.netlink, noun)(verb, **fields) or ())

    def addresses(self, index: int, family: int) -> list[OwnAddress]:
        """Return the addresses of a family that an interface has.

        Takes 0.2 ms for twenty, while pyroute2 takes 6 ms.
        """
        owned = []
        for message in genetlink.dump_whole(RTM_GETADDR, socket.NETLINK_ROUTE, family):
            _, length, flags, its = _IFADDRMSG.unpack_from(message)
            if its == index:
                has = dict(genetlink.attributes(message[_IFADDRMSG.size :]))
                address = ip_address(has.get(_IFA_LOCAL) or has[_IFA_ADDRESS])
                whole, metric = has.get(_IFA_FLAGS), has.get(_IFA_RT_PRIORITY)
                owned.append(
                    OwnAddress(
                        ip_interface(f"{address}/{length}"),
                        genetlink.unsigned(whole) if whole else flags,
                        genetlink.unsigned(metric) if metric else None,
                    )
                )
        return owned

    def neighbour(self, index: int, address: str) -> Optional[tuple[int, Optional[str]]]:
        """Return the state and the MAC address of an interface's neighbour; None without one.

        Takes 0.1 ms, while pyroute2 takes 1 ms.
        """
        sought = ip_address(address)
        asked = _NDMSG.pack(index, 0, 0) + genetlink.attribute(_NDA_DST, sought.packed)
        family = socket.AF_INET if sought.version == 4 else socket.AF_INET6
        try:
            entry = genetlink.get(RTM_GETNEIGH, socket.NETLINK_ROUTE, asked, family)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        mac = dict(genetlink.attributes(entry[_NDMSG.size :])).get(_NDA_LLADDR)
        return _NDMSG.unpack_from(entry)[1], None if mac is None else mac.hex(":")

    def link(self, interface: str) -> Any:
        """Return the RTM_NEWLINK message of an interface; OSError ENODEV if there is none."""
        # Not by its name, which pyroute2 encodes as UTF-8 alone.
        return self.rtnl("link", "get", index=self.index(interface))[0]

    def link_statistics(self, interface: str) -> bytes:
        """Return the raw attributes of an interface's RTM_NEWSTATS message."""
        return rtstats.request(self.index(interface))

    def qdiscs(self, interface: str) -> list[bytes]:
        """Return each qdisc of an interface: its RTM_NEWQDISC message from tcm_handle on.

        OSError if the kernel has no traffic control.
        """
        index = struct.pack("=i", self.index(interface))
        listed = genetlink.dump(RTM_GETQDISC, socket.NETLINK_ROUTE, bytes(TCM_BYTES - 4))
        return [message[4:] for message in listed if message[:4] == index]

    def nexthops(self) -> list[tuple[int, int, Optional[str]]]:
        """Return (id, interface's index, gateway) of each nexthop object that has an interface."""
        try:
            listed = genetlink.dump(RTM_GETNEXTHOP, socket.NETLINK_ROUTE, bytes(4))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # before Linux 5.3
                return []
            raise
        objects = [dict(genetlink.attributes(message[4:])) for message in listed]
        return [
            (
                genetlink.unsigned(nexthop[NHA_ID]),
                genetlink.unsigned(nexthop[NHA_OIF]),
                str(ip_address(nexthop[NHA_GATEWAY])) if NHA_GATEWAY in nexthop else None,
            )
            for nexthop in objects
            if NHA_OIF in nexthop
        ]

    def xdp_program(self, interface: str) -> Optional[int]:
        """Return the id of the XDP program on an interface; None if there is none."""
        names = ("IFLA_XDP_PROG_ID", "IFLA_XDP_DRV_PROG_ID", "IFLA_XDP_SKB_PROG_ID")
        return next(filter(None, self._xdp(interface, *names)), None)

    def is_xdp_generic(self, interface: str) -> bool:
        """Return whether an XDP program runs in the stack (xdpgeneric) instead of the driver."""
        return any(self._xdp(interface, "IFLA_XDP_SKB_PROG_ID"))

    def _xdp(self, interface: str, *attributes: str) -> list[Optional[int]]:
        attached = self.link(interface).get_attr("IFLA_XDP")
        return [attached.get_attr(each) for each in attributes] if attached is not None else []

    def tcx_programs(self, interface: str) -> Optional[int]:
        """Return the number of tcx ingress programs; None without permission."""
        return bpf.tcx_programs(self.index(interface))

    def index(self, interface: str) -> int:
        """Return an interface's index; OSError ENODEV if there is none."""
        try:
            return socket.if_nametoindex(interface)
        except OSError as error:
            # glibc reports the ioctl's ENODEV without a text.
            code = error.errno or errno.ENODEV
            raise OSError(code, os.strerror(code), interface) from error

    def name_of(self, index: int) -> Optional[str]:
        """Return an interface's current name; None if it no longer exists."""
        try:
            return socket.if_indextoname(index)
        except OSError:
            return None

    def is_elsewhere(self, index: int, name: str) -> bool:
        """Return whether a network namespace that this one knows has such an interface.

        A move lets this one know the other (peernet2id_alloc) and keeps the name, and the index
        unless that is taken there (net/core/dev.c: __dev_change_net_namespace).
        """
        known = map(genetlink.numbers, genetlink.dump(_RTM_GETNSID, socket.NETLINK_ROUTE))
        for there in (genetlink.number(_IFLA_TARGET_NETNSID, n[_NETNSA_NSID]) for n in known):
            with suppress(OSError):  # without privileges there
                links = genetlink.dump(_RTM_GETLINK, socket.NETLINK_ROUTE, _ANY_LINK + there)
                indexes = {int.from_bytes(link[:4], sys.byteorder) for link in links}
                words = [dict(genetlink.attributes(link[len(_ANY_LINK) :])) for link in links]
                names = {os.fsdecode(word[_IFLA_IFNAME][:-1]) for word in words}
                if index in indexes and name in names:
                    return True
        return False

    # --- ethtool -------------------------------------------------------------------------------

    def features(self, interface: str) -> dict[str, bool]:
        """Return an interface's offload features by kernel name."""
        with device_features(interface) as (_, listed):
            return {name: bool(listed[name]) for name in listed.keys() if name}  # noqa: SIM118

    def statistics(self, interface: str) -> dict[str, int]:
        """Return the driver's own counters (ethtool -S); empty if it has none.

        Counters with the same name are added: vmxnet3 repeats names for each queue.
        """
        counters: dict[str, int] = {}
        with _ethtool(interface) as device:
            if device.get_stringset_length(_ETH_SS_STATS) > 0:
                for name, value in device.get_statistics():
                    counters[name] = counters.get(name, 0) + int(value)
        return counters

    def mac_statistics(self, interface: str) -> bytes:
        """Return the raw attributes of the kernel's standard MAC statistics.

        Groups eth-mac and rmon; OSError before Linux 5.13, or without ethtool netlink.
        """
        groups = genetlink.nest(
            _STATS_GROUPS,
            genetlink.attribute(_BITSET_NOMASK, b""),
            genetlink.number(_BITSET_SIZE, _RMON + 1),
            genetlink.number(_BITSET_VALUE, 1 << _ETH_MAC | 1 << _RMON),
        )
        device = genetlink.number(_HEADER_DEV_INDEX, self.index(interface))
        header = genetlink.nest(_STATS_HEADER, device)
        return genetlink.ask("ethtool", _ETHTOOL_MSG_STATS_GET, header, groups)[0]

    # --- firewall (nfnetlink) ---------------------------------------------------------------------

    def firewall_rules(self) -> int:
        """Return the number of nf_tables rules in this namespace; OSError without nf_tables."""
        return genetlink.count_rules()

    def firewall_tables(self, family: str) -> list[nf_tables.Table]:
        """Return the tables of a family: ip, ip6 or inet; OSError without nf_tables."""
        return nf_tables.tables(family)

    # --- generic netlink family netdev: XDP since Linux 6.3, NAPI since 6.8 -----------------------

    def xdp_features(self, interface: str) -> tuple[str, ...]:
        """Return what a driver does for XDP natively, by the kernel's names; empty: nothing.

        OSError before Linux 6.3.
        """
        index = genetlink.number(_DEV_IFINDEX, self.index(interface))
        (device,) = genetlink.ask("netdev", _NETDEV_CMD_DEV_GET, index)
        return xdp_feature_names(device)

    def knows_napis(self) -> bool:
        """Return whether the kernel lists NAPI instances by netlink (Linux 6.8)."""
        return self._listed_napis("lo") is not None

    def napis(self, interface: str) -> tuple[NapiInstance, ...]:
        """Return the NAPI instances of an interface that is up, by id, i.e. in queue order.

        Before Linux 6.8 those that have threads, by the threads' names, if it has one per RX queue;
        OSError if not.
        """
        listed = self._listed_napis(interface)
        napis = self._named_napis(interface) if listed is None else listed
        return tuple(sorted(napis, key=lambda napi: napi.id))

    def _listed_napis(self, interface: str) -> Optional[list[NapiInstance]]:
        """Return the NAPI instances that netlink lists; None before Linux 6.8."""
        napis = _netdev_list(_NETDEV_CMD_NAPI_GET, _NAPI_IFINDEX, self.index(interface))
        if napis is None:
            return None
        return [
            NapiInstance(
                napi[NAPI_ID],
                napi.get(_NAPI_IRQ),
                napi.get(_NAPI_PID),
                {name: napi[key] for name, key in NAPI_NUMBERS.items() if key in napi},
            )
            for napi in napis
        ]

    def _named_napis(self, interface: str) -> list[NapiInstance]:
        """Return NAPI instances by their threads' names, ``napi/INTERFACE-ID``.

        The names do not contain the network namespace, so an interface of the same name elsewhere
        on the machine makes them ambiguous (net/core/dev.c: napi_kthread_create).
        """
        pattern = re.compile(rf"napi/{re.escape(interface)}-(\d+)")
        threads = ((pid, pattern.fullmatch(name)) for pid, name in self.kernel_threads().items())
        napis = [NapiInstance(int(match[1]), None, pid) for pid, match in threads if match]
        if not napis:
            return []
        names = self.listdir(f"/sys/class/net/{interface}/queues")
        ways = [name.partition("-")[0] for name in names]
        # A kernel for one CPU does not show RX queues (CONFIG_RPS); a veth has as many of both.
        queues = ways.count("rx") or ways.count("tx")
        if not len(napis) == queues == len({napi.id for napi in napis}):
            what = f"{len(napis)} NAPI threads of this machine are named after {interface}"
            need = "before Linux 6.8 they are known by name alone, one for each RX queue"
            raise OSError(errno.ENOTUNIQ, f"{what}, which has {queues} RX queues; {need}")
        return napis

    def queue_napis(self, interface: str, way: str = "rx") -> dict[int, NapiInstance]:
        """Return RX or TX queue → the NAPI instance that serves it.

        A driver that does not link them (veth) has one instance per RX queue, in queue order.
        """
        index = self.index(interface)
        napis = self.napis(interface)
        by_id = {napi.id: napi for napi in napis}
        linked = {
            queue[_QUEUE_ID]: by_id[queue[_QUEUE_NAPI_ID]]
            for queue in _netdev_list(_NETDEV_CMD_QUEUE_GET, _QUEUE_IFINDEX, index) or ()
            if queue.get(_QUEUE_TYPE) == QUEUE_TYPES.index(way)
            and queue.get(_QUEUE_NAPI_ID) in by_id
        }
        return linked if linked or way == "tx" else dict(enumerate(napis))

    def queue_statistics(self, interface: str) -> list[dict[int, int]]:
        """Return the kernel's per-queue statistics: NETDEV_A_QSTATS_* → value.

        Empty if the driver has none; OSError before Linux 6.9.
        """
        scope = genetlink.number(_QSTATS_SCOPE, _SCOPE_QUEUE)
        index = self.index(interface)
        return _netdev_dump(_NETDEV_CMD_QSTATS_GET, _QSTATS_IFINDEX, index, scope)

    def close(self) -> None:
        """Close the netlink socket; the next use opens a new one."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None


def refuse_changing_program(command: Sequence[str]) -> None:
    """Raise OSError EPERM unless a command only reads."""
    program, *words = command
    asked = {words[0] if words else None, " ".join(words)}
    if not asked & READING_PROGRAMS.get(program, set()):
        raise OSError(errno.EPERM, f"an observer may not run: {' '.join(command)}")


def link_kind(message: Any) -> Optional[str]:
    """Return veth, vlan, bridge ... from an RTM_NEWLINK message; None for a physical device."""
    info = message.get_attr("IFLA_LINKINFO")
    return info.get_attr("IFLA_INFO_KIND") if info is not None else None


def xdp_feature_names(device: bytes) -> tuple[str, ...]:
    """Return the names in the attributes of a NETDEV_CMD_DEV_GET answer; OSError without any."""
    flags = genetlink.numbers(device).get(DEV_XDP_FEATURES)
    if flags is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), "xdp-features")
    return tuple(name for bit, name in enumerate(XDP_FEATURES) if flags >> bit & 1)


def own_address(message: Any) -> str:
    """Return the local address of an RTM_NEWADDR message; IFA_ADDRESS may be the peer's."""
    return str(message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS"))


def load_libraries() -> None:
    """Import what this module otherwise imports where it is needed: 0.1 s."""
    _import_in_parts()
    import psutil  # noqa: F401
    import pyroute2.ethtool.ioctl
    import pyroute2.iproute.linux  # noqa: F401


def _import_in_parts() -> None:
    """Let pyroute2 be imported without its ``__init__``, unless it is imported already.

    That imports every protocol there is, of which we use one: 0.13 s for each agent. Who asks for
    one of its names, and not for a part, gets the whole.
    """
    spec = find_spec("pyroute2") if "pyroute2" not in sys.modules else None
    if spec is None or spec.loader is None:
        return
    loader, package = spec.loader, module_from_spec(spec)

    def name_of_whole(name: str) -> Any:
        if name.startswith("__") or find_spec(f"pyroute2.{name}") is not None:
            raise AttributeError(name)
        vars(package).pop("__getattr__", None)
        loader.exec_module(package)
        return getattr(package, name)

    vars(package)["__getattr__"] = name_of_whole  # PEP 562
    sys.modules["pyroute2"] = package


_ETH_SS_STATS = 1  # include/uapi/linux/ethtool.h


def _of_interface(noun: str, index: int, family: int = 0) -> list[Any]:
    """Return the messages of a dump that are about an interface, as pyroute2 has them.

    It would parse those of all interfaces, 60 µs each, of which a host may have thousands.
    """
    _import_in_parts()
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.tcmsg import tcmsg

    (kind, size_bytes), parse = _INDEXED[noun], {"addr": ifaddrmsg, "tc": tcmsg}[noun]
    asked, messages = bytes(size_bytes - genetlink.GENERIC.size), []
    for whole in genetlink.dump_whole(kind, socket.NETLINK_ROUTE, family, asked):
        if int.from_bytes(whole[4:8], sys.byteorder) == index:
            head = genetlink.HEADER.pack(genetlink.HEADER.size + len(whole), kind - 2, 0, 0, 0)
            messages.append(parse(head + whole))
            messages[-1].decode()
    return messages


def _refuse_many(noun: str, fields: Mapping[str, Any]) -> None:
    """Raise OSError if a dump, perhaps of an interface, would have too many messages."""
    kind, family = _COUNTED[noun]
    index, of_route = fields.get("ifindex", fields.get("oif")), kind == _RTM_GETROUTE
    asked, flags = bytes(NDMSG_BYTES - genetlink.GENERIC.size), genetlink.REQUEST | genetlink.DUMP
    family, count = fields.get("family", family), 0
    for whole in genetlink.each_answer(kind, family, flags, asked, socket.NETLINK_ROUTE, 0):
        where = whole[4:8]
        if index is not None and of_route:
            where = dict(genetlink.attributes(whole[NDMSG_BYTES:])).get(_RTA_OIF, b"")
        count += index is None or int.from_bytes(where, sys.byteorder) == index
        if count > MESSAGES_MAX:
            what = {"fdb": "stations of bridges", "neigh": "neighbours", "route": "routes"}[noun]
            raise OSError(errno.EFBIG, f"more than {MESSAGES_MAX} {what}, and no more are read")


@contextmanager
def _kernel_errors() -> Iterator[None]:
    """Translate pyroute2's exceptions into OSError."""
    _import_in_parts()
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        text = error.args[1] if len(error.args) > 1 else ""
        raise OSError(error.code, text or os.strerror(error.code)) from error


@contextmanager
def _ethtool(interface: str) -> Iterator[Any]:
    """Open an interface for ethtool ioctls; a new object each time, because it caches names."""
    _import_in_parts()
    from pyroute2.ethtool.ioctl import IoctlEthtool, NoSuchDevice, NotSupportedError

    try:
        device = IoctlEthtool(interface)
    except UnicodeEncodeError as error:
        why = "pyroute2 asks for names in UTF-8 alone"
        raise OSError(errno.EOPNOTSUPP, why, interface) from error
    try:
        yield device
    except NoSuchDevice as error:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface) from error
    except NotSupportedError as error:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), interface) from error
    finally:
        device.close()


@contextmanager
def device_features(interface: str) -> Iterator[tuple[Any, Any]]:
    """Yield an interface, opened for ethtool ioctls, and its features."""
    with _ethtool(interface) as device:
        yield device, device.get_features()


def _netdev_dump(command: int, index_at: int, index: int, *asked: bytes) -> list[dict[int, int]]:
    """Return the numbers of each object of an interface: attribute → value."""
    interface = genetlink.number(index_at, index)
    answers = genetlink.ask("netdev", command, interface, *asked, dump=True)
    objects = [genetlink.numbers(answer) for answer in answers]
    return [numbers for numbers in objects if numbers.get(index_at) == index]


def _netdev_list(command: int, index_at: int, index: int) -> Optional[list[dict[int, int]]]:
    """Return a dump; None if the kernel has no such command, or no netdev family."""
    try:
        return _netdev_dump(command, index_at, index)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOENT):
            raise
        return None


def _outputs(process: subprocess.Popen[bytes], given: bytes, name: str) -> tuple[str, str]:
    """Return what a program prints, and its errors, once it has ended; OSError if it is too much.

    ETIMEDOUT if it does not end.
    """
    end_s = time.monotonic() + PROGRAM_TIMEOUT_S
    pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]
    known = {pipe.fileno(): bytearray() for pipe in pipes[1:]}
    open_ones = {pipe.fileno(): pipe for pipe in pipes}
    with selectors.DefaultSelector() as waiting:
        for pipe in pipes:
            is_read = pipe is not process.stdin
            waiting.register(pipe, selectors.EVENT_READ if is_read else selectors.EVENT_WRITE)
        while open_ones:
            ready = waiting.select(max(end_s - time.monotonic(), 0.0))
            if not ready:
                raise _still_running(name)
            for key, _ in ready:
                if key.fd in known:
                    chunk = os.read(key.fd, OUTPUT_CHUNK_BYTES)
                    known[key.fd] += chunk
                    is_over = not chunk
                else:
                    given = given[_written(key.fd, given) :]
                    is_over = not given
                if is_over:
                    waiting.unregister(key.fd)
                    open_ones.pop(key.fd).close()
            if sum(map(len, known.values())) > OUTPUT_BYTES:
                limit = f"{OUTPUT_BYTES // 2**20} MiB"
                raise OSError(errno.EFBIG, f"{name} lists more than the {limit} that are read")
    try:
        process.wait(max(end_s - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired as error:
        raise _still_running(name) from error
    out, err = (each.decode("utf-8", "replace").replace("\r\n", "\n") for each in known.values())
    return out, err


def _limit(pid: int) -> None:
    """Have a program take no more memory than that, and leave no picture of it."""
    with suppress(OSError):  # it has ended, or has rights of its own
        resource.prlimit(pid, resource.RLIMIT_DATA, (PROGRAM_BYTES, PROGRAM_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def _written(fd: int, given: bytes) -> int:
    """Write as much as a pipe that has room surely takes, and return it; all if nobody reads."""
    try:
        return os.write(fd, given[: select.PIPE_BUF])
    except BrokenPipeError:
        return len(given)


def _still_running(name: str) -> OSError:
    what = f"timed out after {PROGRAM_TIMEOUT_S:g} s: {name} still running"
    return OSError(errno.ETIMEDOUT, what)

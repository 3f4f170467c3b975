"""Replaces the names and addresses of a recorded host, each by the same stand-in everywhere.

Addresses of one network stay in one network, and equal values stay equal. Pure.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Optional

from udpbench.agent.host.files import lines_of

PLAIN_INTERFACE = re.compile(
    r"lo|eth\d+|(send|receive)\d+"
    r"|en(o\d+|(P\d+)?(p\d+)?s\d+)(f\d+)?(u\d+)*(c\d+)?(i\d+)?(d\d+|np\d+)?([vr]\d+)?"
)
"""Kernel and systemd names (systemd.net-naming-scheme(7)) that identify nobody; an enx… name
contains a MAC address."""
MAC = re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5,19}\b", re.IGNORECASE)
"""Six bytes, or up to the twenty of InfiniBand."""
VERSION_OR_IPV4 = re.compile(
    r"(?P<version>^[\w-]*version: \d+(?:\.\d+){3}$)|(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])",
    re.MULTILINE,
)
"""A version of ``ethtool -i`` may look like an address."""
IPV6 = re.compile(r"(?<![0-9a-fA-F:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![0-9a-fA-F:.])")
UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
LOCAL_PORT = re.compile(r"^ *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) ", re.MULTILINE)
"""In /proc/net/udp and udp6, after the address."""
SYSTEM_NAME = re.compile(
    r"^PRETTY_NAME=.?(AlmaLinux|Alpine Linux|Amazon Linux|Arch Linux|CentOS|Debian GNU/Linux|Debian"
    r"|Fedora|Oracle Linux|Red Hat Enterprise Linux|Rocky Linux|SUSE Linux Enterprise|openSUSE"
    r"|Ubuntu)\b[^\d\n]*([\d.]*)",
    re.MULTILINE,
)
"""Lines of os-release(5) without a site's own image: the well-known names, and their version."""
HASH_KEY = re.compile(r"(?<=hash key:\n)[0-9a-f:]{11,}")
"""The key of ``ethtool -x``: a sender who knows it can direct all packets to one queue."""
SERIAL = re.compile(r"^Serial\s*:.*\n?", re.MULTILINE)
"""The number of an ARM board's device tree."""
SOCKET_FILES = re.compile(r"/net/udp(lite)?6?\Z")
NLA_HEADER_BYTES = 4
"""Header of a netlink attribute: length and type, 16 bits each (netlink(7))."""
BROADCAST_MAC = "ff:ff:ff:ff:ff:ff"


class Names:
    """The stand-ins of one host."""

    def __init__(self, hosts: Iterable[str], interfaces: Iterable[str]) -> None:
        self._words: dict[str, str] = {}
        for name in filter(None, interfaces):
            if PLAIN_INTERFACE.fullmatch(name) is None and name not in self._words:
                self._words[name] = f"net{len(self._words)}"
        self._macs: dict[str, str] = {}
        self._networks: dict[str, int] = {}
        self._addresses: dict[str, str] = {}
        self._word = _any_of(self._words)
        self._hosts = tuple(filter(None, hosts))
        self._host = _any_of(self._hosts, re.IGNORECASE)

    def text(self, text: str) -> str:
        """Return a text with every name and address replaced."""
        return self.path(self._host.sub("host", text) if self._host is not None else text)

    def path(self, path: str) -> str:
        """Return a path or a key with all but the host's name replaced.

        There it is a word of the kernel's, such as ``node``.
        """
        if self._word is not None:
            path = self._word.sub(lambda match: self._words[match.group()], path)
        path = HASH_KEY.sub(lambda match: re.sub("[0-9a-f]", "0", match.group()), path)
        path = UUID.sub("00000000-0000-4000-8000-000000000000", path)
        path = MAC.sub(lambda match: self._mac(match.group()), path)
        path = VERSION_OR_IPV4.sub(
            lambda match: match["version"] or self._ipv4(match.group()), path
        )
        return IPV6.sub(lambda match: self._ipv6(match.group()), path)

    def file(self, path: str, text: str) -> str:
        """Return a file's text with every name and address replaced."""
        if path == "/proc/cpuinfo":
            text = SERIAL.sub("", text)
        if path == "/etc/os-release":
            known = SYSTEM_NAME.search(text)
            name = " ".join(filter(None, known.groups())) if known is not None else "Linux"
            text = f'PRETTY_NAME="{name}"'
        if SOCKET_FILES.search(path):
            text = bare_sockets(text)
        return self.text(text)

    def data(self, data: Any) -> Any:
        """Return JSON data with names and addresses replaced in every string, including keys."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, list):
            return [self.data(item) for item in data]
        if isinstance(data, dict) and data.get("is") == "bytes":
            return {**data, "hex": self._bytes(bytes.fromhex(data["hex"])).hex()}
        if isinstance(data, dict) and data.get("is") == "Path":  # of a program, maybe a user's
            return {**data, "path": f"/usr/sbin/{data['path'].rpartition('/')[2]}"}
        if isinstance(data, dict):
            return {self.path(key): self.data(value) for key, value in data.items()}
        return data

    def _bytes(self, raw: bytes) -> bytes:
        """Return a netlink answer with names in attributes replaced; offsets do not change."""
        for name, word in {**self._words, **dict.fromkeys(self._hosts, "host")}.items():
            own = name.encode()
            length = struct.pack("=H", NLA_HEADER_BYTES + len(own) + 1)
            attribute = re.compile(re.escape(length) + b".." + re.escape(own) + b"\0", re.DOTALL)
            stand_in = word.encode()[: len(own)].ljust(len(own) + 1, b"\0")
            head = NLA_HEADER_BYTES
            raw = attribute.sub(lambda match: match.group()[:head] + stand_in, raw)  # noqa: B023
        return raw

    def _mac(self, mac: str) -> str:
        lower = mac.lower()
        if lower == BROADCAST_MAC or set(lower) <= {"0", ":"}:
            return mac
        number = len(self._macs) + 1
        return self._macs.setdefault(lower, f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}")

    def _ipv4(self, text: str) -> str:
        try:
            address = IPv4Address(text)
        except ValueError:
            return text
        first = address.packed[0]
        if first in (0, 127) or first >= 224:  # this host, multicast, netmasks
            return text
        network, _, last = text.rpartition(".")
        number = self._networks.setdefault(network, len(self._networks))
        if text not in self._addresses and last not in ("0", "255"):
            taken = sum(known.rpartition(".")[0] == network for known in self._addresses)
            self._addresses[text] = str(taken % 253 + 1)
        return f"10.{number >> 8 & 255}.{number & 255}.{self._addresses.get(text, last)}"

    def _ipv6(self, text: str) -> str:
        try:
            address = IPv6Address(text)
        except ValueError:
            return text
        if address.is_multicast or address.is_loopback or address.is_unspecified:
            return text
        prefix = "fe80::" if address.is_link_local else "2001:db8::"
        known = self._addresses.setdefault(address.compressed, f"{len(self._addresses) + 1:x}")
        return f"{prefix}{known}"


def _any_of(names: Iterable[str], flags: int = 0) -> Optional[re.Pattern[str]]:
    """Return a pattern of any of these names as a word, the longest first; None without names."""
    longest = sorted(map(re.escape, names), key=len, reverse=True)
    # Also of upper_bond0 and lower_eth3, links of an interface in /sys.
    pattern = rf"(?:(?<![\w-])|(?<=\b(?:upper|lower)_))(?:{'|'.join(longest)})(?![\w])"
    return re.compile(pattern, flags) if longest else None


def bare_sockets(text: str) -> str:
    """Return /proc/net/udp or udp6 reduced to its header and a line for each bound port.

    Whose sockets they are, how many and with whom they speak is their users' business.
    """
    ports = {(port, "0" * len(address)) for address, port in LOCAL_PORT.findall(text)}
    lines = [
        f"0: {none}:{port} {none}:0000 07 00000000:00000000 00:00000000 00000000 0 0 0 0 0 0"
        for port, none in sorted(ports)
    ]
    return "\n".join([*lines_of(text)[:1], *lines])


def bare_ruleset(text: str) -> str:
    """Return ``nft -j list ruleset`` reduced to base chains and their number of rules."""
    try:
        items = json.loads(text)["nftables"]
    except (ValueError, KeyError, TypeError):
        return ""
    names: dict[str, str] = {}
    kept = [
        {kind: _bare(item[kind], kind, names)}
        for item in items
        for kind in ("chain", "rule")
        if kind in item
    ]
    return json.dumps({"nftables": kept})


def _bare(part: dict[str, Any], kind: str, names: dict[str, str]) -> dict[str, Any]:
    own: dict[str, Any] = {
        key: part[key] for key in ("family", "type", "hook", "prio", "policy") if key in part
    }
    for key in ("table", "name") if kind == "chain" else ("table", "chain"):
        own[key] = names.setdefault(str(part.get(key)), f"name{len(names)}")
    return own


def bare_iptables(text: str) -> str:
    """Return ``iptables-save`` output reduced to chains and their number of rules."""
    names: dict[str, str] = {}
    lines = []
    for line in lines_of(text):
        words = line.split()
        if line.startswith(("*", "COMMIT")):
            lines.append(words[0])
        elif line.startswith(":") and len(words) > 1:
            lines.append(f":{_chain(words[0][1:], names)} {words[1]} [0:0]")
        elif line.startswith("-A ") and len(words) > 1:
            lines.append(f"-A {_chain(words[1], names)} -j RETURN")
    return "".join(f"{line}\n" for line in lines)


def _chain(name: str, names: dict[str, str]) -> str:
    built_in = name in ("INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING")
    return name if built_in else names.setdefault(name, f"chain{len(names)}")

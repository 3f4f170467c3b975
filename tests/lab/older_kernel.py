"""Hides from an agent what kernels before Linux 5.11 do not have; Python imports it at its start.

No netdev netlink (6.3 to 6.9), no ``rx_otherhost_dropped`` (5.19), no ``MemErrors`` (5.11), no BPF.
"""

import errno
import os

from udpbench.agent.counters.parse import IFLA_STATS_LINK_64, LINK_STATISTICS
from udpbench.agent.host import genetlink, reading, rtstats
from udpbench.agent.host.bpf import bpf

OTHERHOST_BYTES = 8 * LINK_STATISTICS.index("rx_otherhost_dropped")
ask, request, read_text = genetlink.ask, rtstats.request, reading.ReadingHost.read_text


def ask_older(family, *words, **how):
    """Know no family ``netdev``."""
    if family == "netdev":
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return ask(family, *words, **how)


def request_older(index):
    """End the struct of statistics where it ended then."""
    (payload,) = (data for kind, data in genetlink.attributes(request(index)) if kind == 1)
    return genetlink.attribute(IFLA_STATS_LINK_64, payload[:OTHERHOST_BYTES])


def read_text_older(host, path):
    """Leave out the column and the line of ``MemErrors``."""
    text = read_text(host, path)
    if path.endswith("/net/snmp6"):
        return "\n".join(line for line in text.splitlines() if "MemErrors" not in line)
    if not path.endswith("/net/snmp"):
        return text
    lines = [line.split() for line in text.splitlines()]
    kept = []
    for names, values in zip(lines[::2], lines[1::2]):  # noqa: B905 - for Python 3.9
        known = [k for k, name in enumerate(names) if name != "MemErrors"]
        kept += [[names[k] for k in known], [values[k] for k in known]]
    return "\n".join(" ".join(words) for words in kept)


def refuse(*_words, **_how):
    """Refuse to load a program."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


genetlink.ask, rtstats.request, bpf.load = ask_older, request_older, refuse
reading.ReadingHost.read_text = read_text_older

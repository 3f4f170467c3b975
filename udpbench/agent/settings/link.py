"""Kind ``link``: a veth pair, this end named by the target, the other in another namespace.

Value: {peer, peer_pid, peer_mac, mac, queues}, or None where there is no such interface. Never
changes a pair that is there: the kernel refuses a second one of the same name.
"""

from __future__ import annotations

import errno
from typing import Any, Optional

from udpbench.agent.host import Host


def read(host: Host, target: str) -> Optional[dict[str, Any]]:
    """Return the pair without ``peer_pid``, which the kernel forgets; a hidden peer is None."""
    try:
        message = host.link(target)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    peer = _peer(host, message)
    return {
        "peer": None if peer is None else peer.get_attr("IFLA_IFNAME"),
        "peer_mac": None if peer is None else peer.get_attr("IFLA_ADDRESS"),
        "mac": message.get_attr("IFLA_ADDRESS"),
        "queues": message.get_attr("IFLA_NUM_RX_QUEUES"),
    }


def _peer(host: Host, message: Any) -> Any:
    """Return the other end's message, asked for by its namespace's number (Linux 5.0)."""
    index, namespace = message.get_attr("IFLA_LINK"), message.get_attr("IFLA_LINK_NETNSID")
    if index is None or namespace is None:
        return None
    try:
        return host.rtnl("link", "get", index=index, if_netnsid=namespace)[0]
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EINVAL, errno.EPERM):
            return None
        raise


def write(host: Host, target: str, value: Optional[dict[str, Any]]) -> None:
    """Make the pair with as many queues on both ends, or take it away."""
    if value is None:
        host.rtnl("link", "del", index=host.index(target))
        return
    queues = {"num_tx_queues": value["queues"], "num_rx_queues": value["queues"]}
    host.rtnl(
        "link",
        "add",
        kind="veth",
        ifname=target,
        address=value["mac"],
        peer={
            "ifname": value["peer"],
            "address": value["peer_mac"],
            "net_ns_pid": value["peer_pid"],
            **queues,
        },
        **queues,
    )


def same(wanted: Any, got: Any) -> bool:
    """Compare without ``peer_pid``."""
    return _seen(wanted) == _seen(got)


def _seen(value: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    if value is None:
        return None
    return {
        key: item.lower() if key.endswith("mac") and isinstance(item, str) else item
        for key, item in value.items()
        if key != "peer_pid"
    }

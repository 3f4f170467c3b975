"""The TCP ports of a process to which anyone on the network may send commands; how to open none.

Reads the kernel's own list of sockets: what a server reports is the address to contact, which may
be on loopback while it listens on all. Beyond loopback a port must demand a certificate, and so it
does of a scheduler and its workers that the printed commands start; nor can another user put
modules where these import from (docs/campaigns.md).
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

RESOURCE = "pair"
"""Workers that have it run any pair; those with ``pair-NAME`` the pair of that name."""
CERTIFICATES = "--tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem"
PAGES = "--dashboard-address 127.0.0.1:0"
"""Dask's HTTP servers authenticate nobody; ``--no-dashboard`` leaves them open on all addresses."""
PRIVATE = '"$(mktemp -d)"'
"""Left out it is /tmp/dask-scratch-space, whoever made that; Dask imports from it."""
LISTEN = "0A"
"""TCP_LISTEN of include/net/tcp_states.h."""
ANSWER_S = 2.0
"""For a server on this host to turn a client away; that of HTTP waits for a whole request."""
TURNED_AWAY = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")
"""By a server that demands a certificate and gets none: TLS 1.3; 1.2, without an alert for it."""


def open_ports(pid: int) -> tuple[str, ...]:
    """Return the listening sockets beyond loopback that demand no certificate.

    OSError if the process is another user's, or has ended.
    """
    return tuple(
        f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
        for address, port in sorted(_listening(pid), key=str)
        if not address.is_loopback and not _demands_certificate(address, port)
    )


def _listening(pid: int) -> set[tuple[Address, int]]:
    process = Path("/proc", str(pid))
    files = set()
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was listed
            files.add(str(descriptor.readlink()))
    sockets = set()
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a kernel without IPv6 has no tcp6
            for line in (process / "net" / name).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == LISTEN and f"socket:[{columns[9]}]" in files:
                    address, _, port = columns[1].partition(":")
                    sockets.add((_address(bytes.fromhex(address)), int(port, 16)))
    return sockets


def _address(raw: bytes) -> Address:
    """Return an address that the kernel prints as words in host byte order."""
    words = [raw[at : at + 4] for at in range(0, len(raw), 4)]
    ordered = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(ordered)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _demands_certificate(address: Address, port: int) -> bool:
    """Return whether a client without a certificate is turned away; False if that is not seen."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE  # nothing is sent
    client.set_ciphers("ALL:@SECLEVEL=0")  # else TLS 1.2 fails in the same way for want of a cipher
    for target in _targets(address):
        try:
            with (
                socket.create_connection((target, port), timeout=ANSWER_S) as plain,
                client.wrap_socket(plain) as encrypted,
            ):
                encrypted.recv(1)  # TLS 1.3 turns a client away after its handshake
        except ssl.SSLError as error:
            return error.reason in TURNED_AWAY
        except TimeoutError:
            return False
        except OSError:
            continue
        return False
    return False


def _targets(address: Address) -> Iterator[str]:
    """Yield where this host reaches the address that listens; ``::`` also without IPv6."""
    if not address.is_unspecified:
        yield str(address)
        return
    if address.version == 6:
        yield "::1"
    yield "127.0.0.1"


def scheduler_command(address: str) -> str:
    """Return the command that starts the scheduler of a complete address."""
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    where = f"--protocol tls {CERTIFICATES}" if scheme == "tls" else f"--host {quote(host)}"
    # ``dask scheduler`` has no option for it.
    return f"DASK_TEMPORARY_DIRECTORY={PRIVATE} dask scheduler {where} --port {port} {PAGES}"


def worker_command(address: str, name: str) -> str:
    """Return the command that starts a worker of that scheduler for any pair."""
    # Without --host it would listen on all addresses, wherever its scheduler does.
    where = CERTIFICATES if address.startswith("tls:") else "--host 127.0.0.1"
    what = f'--name {name} --nthreads 1 --resources "{RESOURCE}=1"'
    return f"dask worker {quote(address)} {where} {PAGES} {what} --local-directory {PRIVATE}"

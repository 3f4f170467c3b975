"""The commands that start a scheduler and its workers, as the program prints them.

No port that they open is reachable beyond loopback without a certificate, and no other user can
put modules where they import from (docs/campaigns.md).
"""

from __future__ import annotations

from shlex import quote

RESOURCE = "pair"
"""Workers that have it run any pair; those with ``pair-NAME`` the pair of that name."""
CERTIFICATES = "--tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem"
PAGES = "--dashboard-address 127.0.0.1:0"
"""Dask's HTTP servers authenticate nobody; ``--no-dashboard`` leaves them open on all addresses."""
PRIVATE = '"$(mktemp -d)"'
"""Left out it is /tmp/dask-scratch-space, whoever made that; Dask imports from it."""


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

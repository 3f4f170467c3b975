"""What is sent to a host runs there: with every Python of this machine, and nothing installed."""

from __future__ import annotations

import io
import platform
import subprocess
import tarfile
from pathlib import Path

import pytest
from interpreters import interpreters
from sampled import sampled

from udpbench.control.deployment.bundle import Target, make_bundle
from udpbench.protocol import PROTOCOL, build_id, read_line, write_line

ROOT = Path(__file__).parents[2]
PYTHONS = interpreters()
LIBC, LIBC_VERSION = platform.libc_ver()
AGENT = """
import sys
sys.path.insert(0, sys.argv[1])
from pyroute2 import IPRoute
import psutil
from udpbench.agent import serve
from udpbench.agent.workers import loops, memory
assert not [path for path in sys.path if "site-packages" in path], sys.path
assert psutil.boot_time() > 0
with IPRoute() as route:
    assert len(route.get_links()) > 0
sys.exit(serve.main())
"""
"""Uses what is sent along, then serves requests."""

pytestmark = pytest.mark.apart


@pytest.mark.parametrize("version", sampled(PYTHONS, list(PYTHONS)[:1]))
def test_an_agent_runs_from_a_bundle_alone(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Isolated from site-packages, on the oldest Python, and on each that is here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / ".nox" / "cache"))
    major, minor = map(int, version.split("."))
    target = Target((major, minor), platform.machine(), LIBC, LIBC_VERSION)
    archive = make_bundle(target, None, print).archive()
    assert len(archive) < 2_000_000
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tmp_path, filter="data")
    hello = {"host": "left", "run": "test", "build": build_id(), "protocol": PROTOCOL}
    request = {"id": 1, "verb": "hello", "args": {**hello, "lease_ns": 10**10, "scopes": []}}
    command = [PYTHONS[version], "-I", "-S", "-c", AGENT, str(tmp_path)]
    ended = subprocess.run(command, input=write_line(request), capture_output=True, check=False)
    reply = read_line(ended.stdout.splitlines(keepends=True)[0] if ended.stdout else b"{}\n")
    assert (0, build_id()) == (ended.returncode, reply["result"]["build"]), ended.stderr.decode()

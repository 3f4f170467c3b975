"""Containers of podman, for real: its bridge, its rules, and the namespaces that it makes.

In a network namespace of its own, so that the machine keeps its rules; with the control groups of
version 2, which crun asks for, in a mount namespace.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from test_path import EACH, before_the_proof, conducted, entries, traffic

from udpbench.definition.load import lab_of
from udpbench.model.lab import Lab

BUSYBOX = Path("/bin/busybox")
pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
    pytest.mark.skipif(
        not (shutil.which("podman") and BUSYBOX.exists()),
        reason="needs podman: apt-get install podman busybox-static",
    ),
]
HOLD = """
umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && mount -t tmpfs none /run/netns \\
  && mount -t tmpfs -o mode=1777 none /dev/shm && mount --make-rshared / && echo ready
exec sleep 1000
"""
ENGINE = """#!/bin/sh
cd {folder}
exec nsenter -t {pid} --mount --net --wdns={folder} {user} {podman} --root {folder}/root --runroot {folder}/run \\
  --network-config-dir {folder}/networks --storage-driver vfs --cgroup-manager cgroupfs "$@"
"""
NOBODY = 65534
AS_USER = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups env HOME={{0}} XDG_RUNTIME_DIR={{0}}/own"
BRIDGE = "podman1"
PR_SET_CHILD_SUBREAPER = 36
"""Whoever has it set gets the daemons of its children as children."""
LIMITS = (
    "--sysctl=net.ipv6.conf.all.disable_ipv6=1",
    "--cgroups=disabled",
    "--ulimit=nofile=1024:1024",
    "--ulimit=nproc=4096:4096",
)
"""An engine that may not raise its own limits can start a container below them."""


class Engine:
    """A machine's podman, whose machine is a network namespace; root's, or an ordinary user's."""

    def __init__(self, folder: Path, rootless: bool = False) -> None:
        self.folder, self.namespace = folder, f"ub{os.getpid()}podman"
        self.rootless = rootless
        self.before = {*psutil.Process().children(recursive=True)}
        self.kept = Path(tempfile.mkdtemp(prefix="ub"))
        """Where podman keeps what it knows: a path that is short enough for it."""
        self.system = self.kept / "system"

    def hold(self, script: str) -> None:
        """Make the namespaces of the machine, and the file system of its containers."""
        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
        system = self.system
        (system / "bin").mkdir(parents=True)
        shutil.copy(BUSYBOX, system / "bin")
        for folder in (
            *(system / n for n in ("proc", "sys", "dev", "etc", "tmp")),
            self.kept / "own",
        ):
            folder.mkdir(mode=0o700)
        if self.rootless:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(self.kept)], check=True)
        subprocess.run(["ip", "netns", "add", self.namespace], check=True)
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
        enter = ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "sh", "-c", script]
        self.holder = subprocess.Popen(enter, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.holder.stdout is not None
        with self.holder.stdout:
            assert b"ready\n" == self.holder.stdout.readline()

    def open(self) -> None:
        """Start two containers on its own network; a port of the second is published."""
        self.hold(HOLD)
        podman = self.folder / "bin" / "podman"
        podman.parent.mkdir()
        user = AS_USER.format(self.kept) if self.rootless else ""
        names = {"pid": self.holder.pid, "folder": self.kept, "user": user}
        podman.write_text(ENGINE.format(**names, podman=shutil.which("podman")))
        podman.chmod(0o755)
        if self.rootless:  # what it leads to must be theirs
            os.chown(podman, NOBODY, NOBODY)
        self.run("network", "create", "own")
        published = () if self.rootless else ("--publish", "5555:4321/udp")
        for name, more in (("client", ()), ("server", published)):
            words = ("--name", name, "--network=own", *LIMITS, *more, "--rootfs", str(self.system))
            sleep = ("/bin/busybox", "sleep", "1000")
            self.run("run", "--detach", "--stop-signal=SIGKILL", *words, *sleep)

    def run(self, *words: str) -> str:
        """Return what podman prints."""
        command = [str(self.folder / "bin" / "podman"), *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def inside(self, *words: str) -> str:
        """Return what a program prints in the namespace of the machine."""
        command = ["ip", "netns", "exec", self.namespace, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def started(self) -> list[psutil.Process]:
        """Return what podman has started: containers, and who looks after them."""
        running = psutil.Process().children(recursive=True)
        return [process for process in running if process not in self.before]

    def close(self) -> None:
        """Remove the containers, and all that podman laid for them, also if podman does not."""
        try:
            self.run("rm", "--all", "--force", "--time=0")
            if self.rootless:
                self.run("system", "migrate")  # ends the process that holds its namespaces
        finally:
            self.release()

    def release(self) -> None:
        """End what has not ended, and remove the namespaces of the machine."""
        self.holder.kill()
        self.holder.wait()
        left = self.started()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
        subprocess.run(["ip", "netns", "del", self.namespace], check=True)
        shutil.rmtree(self.kept)

    def lab(self, **node: Any) -> Lab:
        """Return the lab of both containers, with their machine between them if asked for."""

        def end(name: str, cpu: int) -> dict[str, Any]:
            more = {"interface": "eth0", "addresses": "existing", "cpus": str(cpu)}
            return {"connect": {"container": name}, **more}

        cpus = sorted(os.sched_getaffinity(0))
        data: dict[str, Any] = {
            "sender": [end("client", cpus[-1])],
            "receiver": [end("server", cpus[0])],
        }
        if node:
            host = {"name": "host", "connect": {"netns": self.namespace}, **node}
            data["middle"] = [{**host, "interfaces": {"in": "veth0", "out": "veth1"}}]
        return lab_of(yaml.safe_dump(data, sort_keys=False), Path("podman.yaml"))


@pytest.fixture
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """Yield podman with two containers; udpbench finds it as any podman."""
    own = Engine(tmp_path, rootless=getattr(request, "param", "") == "rootless")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    try:
        own.open()
        yield own
    finally:
        own.close()


@pytest.mark.parametrize("engine", ["root", "rootless"], indirect=True)
def test_two_containers_of_a_network_are_a_lab(engine: Engine, tmp_path: Path) -> None:
    """Without their machine the bridge between them is the link; an ordinary user's, too."""
    _, record, result = conducted(tmp_path, engine.lab(), traffic=traffic(1))
    assert "done" == result.status, (record.error, result.findings)
    assert EACH == result.received_packets
    assert not record.wired


def test_the_machine_of_two_containers_is_a_bridge_between_them(
    engine: Engine, tmp_path: Path
) -> None:
    """Its rules, as podman lays them, are read: where they may send packets is the receiver."""
    rules = engine.inside("nft", "list", "ruleset")
    assert "masquerade" in rules
    assert "dnat to" in rules
    pid = int(engine.run("inspect", "--format", "{{.State.Pid}}", "server"))
    address = engine_address(pid)

    def plants() -> None:
        engine.inside("nft", "add", "table", "bridge", "plants")
        engine.inside("nft", "add chain bridge plants f { type filter hook forward priority 0 ; }")
        engine.inside("nft", f"add rule bridge plants f ip daddr {address} udp dport 4321 drop")

    _, record, result = conducted(
        tmp_path / "passed", engine.lab(bridge=BRIDGE), traffic=traffic(1)
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert EACH == result.received_packets
    assert record.wired
    _, record, result = conducted(
        tmp_path / "dropped",
        engine.lab(bridge=BRIDGE),
        before_the_proof(plants),
        traffic=traffic(1),
        path_check="explained",
    )
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert {"host.fwd_bridge": (EACH, None)} == entries(result)
    kept = engine.inside("nft", "list", "ruleset")
    assert without_counts(rules) == without_counts(kept.split("table bridge plants")[0])


def engine_address(pid: int) -> str:
    """Return the address of a container."""
    words = ["nsenter", "-t", str(pid), "-n", "ip", "-4", "-o", "addr", "show", "dev", "eth0"]
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return shown.split()[3].partition("/")[0]


def without_counts(rules: str) -> list[str]:
    """Return rules without the numbers of their counters."""
    return [word for word in rules.split() if not word.isdigit()]


@pytest.mark.parametrize("rootless", [False, True])
def test_what_podman_does_not_end_is_ended(tmp_path: Path, rootless: bool) -> None:
    """Neither a container nor who looks after it outlives a test whose podman fails."""
    own = Engine(tmp_path, rootless)
    own.open()
    started = own.started()
    assert {"conmon", "busybox"} <= {process.name() for process in started}
    (tmp_path / "bin" / "podman").write_text("#!/bin/sh\nexit 7\n")
    with pytest.raises(AssertionError, match="rm"):
        own.close()
    assert [] == [process for process in started if process.is_running()]
    assert not Path(f"/run/netns/{own.namespace}").exists()

"""Containers of docker, for real: a daemon of our own, with its bridge, its rules and its proxy.

In network and mount namespaces of its own, so that the machine keeps its rules. An image needs no
registry: it is a folder with busybox.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_path import EACH, before_the_proof, conducted, entries, run_error, traffic
from test_podman import BUSYBOX, Engine
from waiting import wait_until

from udpbench.definition.load import lab_of
from udpbench.model.lab import Lab

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
    pytest.mark.skipif(
        not (shutil.which("dockerd") and shutil.which("docker") and BUSYBOX.exists()),
        reason="needs docker: apt-get install docker.io busybox-static",
    ),
]
HOLD = """
mkdir -p /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && mount -t tmpfs none /run \\
  && mount -t tmpfs -o mode=1777 none /dev/shm && mount --make-rshared / && echo ready
exec sleep 1000
"""
GROUP = f"ub{os.getpid()}docker"
PUBLISHED = 5555
LIMITS = ("--ulimit=nofile=1024:1024", "--sysctl=net.ipv6.conf.all.disable_ipv6=1")


class Docker(Engine):
    """A machine's docker, whose machine is a network namespace; beyond it is another."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.namespace, self.outside = f"ub{os.getpid()}docker", f"ub{os.getpid()}outside"
        self.socket = f"unix://{self.kept}/docker.sock"

    def open(self) -> None:
        """Start two containers on a network of their own; a port of the second is published."""
        self.hold(HOLD)
        subprocess.run(["ip", "netns", "add", self.outside], check=True)
        self.lead_outside()
        kept = self.kept
        options = (
            *("--data-root", f"{kept}/data", "--exec-root", f"{kept}/exec"),
            *("--storage-driver=vfs", "--pidfile", f"{kept}/pid", "--host", self.socket),
            *("--exec-opt=native.cgroupdriver=cgroupfs", f"--cgroup-parent=/{GROUP}"),
        )
        enter = ("nsenter", "-t", str(self.holder.pid), "--mount", "--net")
        with (kept / "log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [*enter, "dockerd", *options], stdout=log, stderr=log, start_new_session=True
            )
        wait_until("docker answers", self.answers)
        pack = subprocess.run(["tar", "-cC", self.system, "."], check=True, capture_output=True)
        command = ["docker", "--host", self.socket, "import", "-", "busy:1"]
        subprocess.run(command, input=pack.stdout, check=True, capture_output=True)
        self.run("network", "create", "own")
        self.start("client", "--network=own")
        self.start("server", "--network=own", "--publish", f"{PUBLISHED}:4321/udp")

    def lead_outside(self) -> None:
        """Join the machine to what is beyond it, which has its way back there."""
        for words in (
            f"ip link add up0 type veth peer name eth0 netns {self.outside}",
            "ip addr add 10.66.0.1/24 dev up0",
            "ip link set up0 up",
        ):
            self.inside(*words.split())
        for words in ("addr add 10.66.0.2/24 dev eth0", "link set eth0 up", "link set lo up"):
            subprocess.run(["ip", "-n", self.outside, *words.split()], check=True)
        way_back = ["ip", "-n", self.outside, "route", "add", "default", "via", "10.66.0.1"]
        subprocess.run(way_back, check=True)

    def answers(self) -> bool:
        """Return whether the daemon is ready."""
        assert self.daemon.poll() is None, (self.kept / "log").read_text()[-2000:]
        asked = ["docker", "--host", self.socket, "version"]
        return subprocess.run(asked, check=False, capture_output=True).returncode == 0

    def start(self, name: str, *words: str) -> None:
        """Start a container that does nothing."""
        limits = LIMITS[:1] if "--network=host" in words else LIMITS
        sleep = ("busy:1", "/bin/busybox", "sleep", "1000")
        self.run("run", "--detach", "--name", name, *limits, *words, *sleep)

    def run(self, *words: str) -> str:
        """Return what docker prints."""
        command = ["docker", "--host", self.socket, *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def close(self) -> None:
        """Remove the containers, and all that docker laid for them, also if docker does not."""
        try:
            self.run("rm", "--force", *self.run("ps", "--all", "--quiet").split())
            self.daemon.terminate()
            self.daemon.wait(60)
        finally:
            leave = ["nsenter", "-t", str(self.holder.pid), "--mount", "rmdir"]
            subprocess.run([*leave, f"/sys/fs/cgroup/{GROUP}"], check=False)
            self.release()
            subprocess.run(["ip", "netns", "del", self.outside], check=True)

    def pid(self, name: str) -> int:
        """Return a container's first process."""
        return int(self.run("inspect", "--format", "{{.State.Pid}}", name))

    @property
    def bridge(self) -> str:
        """The bridge of the containers' network."""
        return "br-" + self.run("network", "inspect", "--format", "{{.Id}}", "own")[:12]

    def rules(self) -> list[list[str]]:
        """Return the words of docker's own rules."""
        saved = [self.inside("iptables-save", "-t", table) for table in ("filter", "nat")]
        return [line.split() for text in saved for line in text.splitlines() if line[0] == "-"]

    def port(self, name: str) -> str:
        """Return the interface of the machine whose other end is a container's eth0."""
        enter = ["nsenter", "-t", str(self.pid(name)), "--net", "ip", "-o", "link", "show", "eth0"]
        shown = subprocess.run(enter, check=True, capture_output=True, text=True).stdout
        index = shown.partition("eth0@if")[2].partition(":")[0]
        links = self.inside("ip", "-o", "link").splitlines()
        return next(line.split()[1].partition("@")[0] for line in links if line.startswith(index))

    def lab_from(self, sender: Any, receiver: Any, **node: Any) -> Lab:
        """Return a lab of two ends that are there, with the machine between them if asked for."""

        def end(place: Any, cpu: int) -> dict[str, Any]:
            connect, interface = place if isinstance(place, tuple) else (place, "eth0")
            more = {"interface": interface, "addresses": "existing", "cpus": str(cpu)}
            return {"connect": connect, **more}

        cpus = sorted(os.sched_getaffinity(0))
        data = {"sender": [end(sender, cpus[-1])], "receiver": [end(receiver, cpus[0])]}
        if node:
            data["middle"] = [{"name": "host", "connect": {"netns": self.namespace}, **node}]
        return lab_of(yaml.safe_dump(data, sort_keys=False), Path("docker.yaml"))


CLIENT, SERVER = {"container": "client"}, {"container": "server"}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """Yield docker with two containers."""
    own = Docker(tmp_path_factory.mktemp("docker"))
    try:
        own.open()
        yield own
    finally:
        own.close()


@pytest.fixture
def docker(started: Docker, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Let udpbench find it as it finds any docker."""
    monkeypatch.setenv("DOCKER_HOST", started.socket)
    return started


def from_ports(number: int) -> dict[str, Any]:
    """Return a load of so many flows, which differ in where they come from."""
    flows = {"to": "receiver.addresses[1]:4321", "from": f"5001-{5000 + number}"}
    return {**traffic(1), "count": str(EACH * number), "flows": flows}


def of_port(number: int, *words: str) -> tuple[str, ...]:
    """Return what has iptables drop a flow."""
    of_flow = f"-p udp --dport 4321 --sport {5000 + number} -j DROP"
    return ("iptables", *words, *of_flow.split())


def test_two_containers_of_a_network_are_a_lab(docker: Docker, tmp_path: Path) -> None:
    """Without their machine the bridge between them is the link."""
    _, record, result = conducted(tmp_path, docker.lab_from(CLIENT, SERVER), traffic=traffic(1))
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert EACH == result.received_packets
    assert not record.wired


def test_the_machine_of_two_containers_is_a_bridge_between_them(
    docker: Docker, tmp_path: Path
) -> None:
    """What DOCKER-USER and a container's own rules drop is there; docker's rules stay as they are."""
    before = docker.rules()
    assert {"DOCKER-USER", "MASQUERADE", "DNAT"} <= {word for rule in before for word in rule}
    assert "1" == docker.inside("sysctl", "-n", "net.bridge.bridge-nf-call-iptables").strip()
    server = ("nsenter", "-t", str(docker.pid("server")), "--net")

    def plants() -> None:
        docker.inside(*of_port(2, "-I", "DOCKER-USER"))
        docker.inside(*of_port(3, "-t", "raw", "-I", "PREROUTING"))
        subprocess.run([*server, *of_port(4, "-I", "INPUT")], check=True)

    ports = {"in": docker.port("client"), "out": docker.port("server")}
    lab = docker.lab_from(CLIENT, SERVER, bridge=docker.bridge, interfaces=ports)
    try:
        _, record, result = conducted(
            tmp_path,
            lab,
            before_the_proof(plants),
            traffic=from_ports(5),
            path_check="explained",
        )
    finally:
        docker.inside(*of_port(2, "-D", "DOCKER-USER"))
        docker.inside(*of_port(3, "-t", "raw", "-D", "PREROUTING"))
        subprocess.run([*server, *of_port(4, "-D", "INPUT")], check=True)
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    lost = {"host.fwd_bridge": (2 * EACH, None), "rx_netfilter": (EACH, None)}
    assert lost == entries(result)
    assert 2 * EACH == result.received_packets
    assert record.wired
    assert before == docker.rules()


@pytest.mark.parametrize("leaves", [False, True])
def test_the_machine_routes_between_containers_and_others(
    docker: Docker, tmp_path: Path, leaves: bool
) -> None:
    """In to a container, and out of it, masqueraded: what its rules drop is an upper limit.

    Since docker 28 a rule of the table raw drops what others send to a container's own address.
    """
    outside = {"netns": docker.outside}
    ways = {"in": docker.bridge, "out": "up0"} if leaves else {"in": "up0", "out": docker.bridge}
    ends = (CLIENT, outside) if leaves else (outside, SERVER)

    def plants() -> None:
        docker.inside(*of_port(2, "-I", "DOCKER-USER"))

    try:
        _, record, result = conducted(
            tmp_path,
            docker.lab_from(*ends, interfaces=ways),
            before_the_proof(plants),
            traffic=from_ports(3),
            path_check="explained",
        )
    finally:
        docker.inside(*of_port(2, "-D", "DOCKER-USER"))
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    guarded = not leaves and "DROP" in docker.inside("iptables-save", "-t", "raw")
    stage, flows = ("fwd_prerouting", 3) if guarded else ("fwd_netfilter", 1)
    lost = entries(result)
    hidden = {"link", *(("host.fwd_ring", "host.fwd_bridge") if leaves else ())}
    assert {f"host.{stage}", *hidden} == {*lost}
    assert EACH * flows == lost[f"host.{stage}"][1]
    assert EACH * (3 - flows) == result.received_packets


def test_the_proxy_of_a_published_port_is_a_program_that_reads(
    docker: Docker, tmp_path: Path
) -> None:
    """What a container sends to its own machine's published port, docker-proxy reads there."""
    machine = ({"netns": docker.namespace}, docker.bridge)
    load = {**traffic(1), "flows": {"to": f"receiver.addresses[1]:{PUBLISHED}"}}
    _, record, result = conducted(
        tmp_path,
        docker.lab_from(CLIENT, machine),
        traffic=load,
        receive={"attach": {"port": PUBLISHED}},
    )
    assert ("done", 0, EACH) == (result.status, result.unaccounted, result.received_packets), (
        record.error,
        result.findings,
    )


def test_a_container_without_a_network_of_its_own_is_its_machine(
    docker: Docker, tmp_path: Path
) -> None:
    """With --network=host its namespace is that of the machine."""
    docker.start("bare", "--network=host")
    machine = ({"container": "bare"}, docker.bridge)
    _, record, result = conducted(tmp_path, docker.lab_from(CLIENT, machine), traffic=traffic(1))
    docker.run("rm", "--force", "bare")
    assert ("done", EACH) == (result.status, result.received_packets), record.error


def test_two_containers_of_a_macvlan_are_a_lab(docker: Docker, tmp_path: Path) -> None:
    """They have no bridge, and the machine does not see their packets."""
    docker.run("network", "create", "--driver=macvlan", "--opt=parent=up0", "beside")
    for name in ("left", "right"):
        docker.start(name, "--network=beside")
    lab = docker.lab_from({"container": "left"}, {"container": "right"})
    _, record, result = conducted(tmp_path, lab, traffic=traffic(1))
    docker.run("rm", "--force", "left", "right")
    assert ("done", 0) == (result.status, result.unaccounted), (record.error, result.findings)
    assert EACH == result.received_packets


def test_a_container_without_any_network_is_refused(docker: Docker, tmp_path: Path) -> None:
    """It has no interface but its loopback; the message names what is missing."""
    docker.start("alone", "--network=none")
    outcome = run_error(tmp_path, docker.lab_from({"container": "alone"}, SERVER))
    docker.run("rm", "--force", "alone")
    assert "eth0" in outcome

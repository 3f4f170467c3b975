"""Which ports are open to the network while a campaign has a cluster, and that no other is used.

Every command is taken from the page, or from what the program prints, and is started in a network
namespace of its own, which has an address beyond loopback.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import DEADLINE_S, wait_until

pytest.importorskip("distributed", reason="python3 noxfile.py campaigns")

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py campaigns"),
]

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
BEYOND = "10.9.8.1"
HOLDER = f"""
import signal
from pyroute2 import IPRoute
with IPRoute() as link:
    link.link("set", index=1, state="up")
    link.addr("add", index=1, address="{BEYOND}", prefixlen=32)
print("ready", flush=True)
signal.pause()
"""
STRANGER = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
if sys.argv[3:]:
    context.load_cert_chain("others/cert.pem", "others/key.pem")
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as plain:
        with context.wrap_socket(plain) as encrypted:
            print("let in", encrypted.recv(1))
except ssl.SSLError as error:
    print(error.reason)
"""
EXPERIMENT = (
    "question: Is it safe?\ntraffic: {rate: 100pps}\nduration: 1s\nwarmup: 0s\nrepetitions: 1\n"
)
SAFE = "--dashboard-address 127.0.0.1:0"
TLS = "--tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem"
ENVIRONMENT = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONUNBUFFERED": "1",
}
ANSWERED = (0, 1, 5)


class Apart:
    """A folder and a network of its own, in which commands are started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "hosts").write_text(
            f"127.0.0.1 localhost\n::1 localhost\n{BEYOND} control.example\n"
        )
        (folder / "mine.yaml").write_text(EXPERIMENT)
        (folder / "racks").mkdir()
        shutil.copy(ROOT / "experiments" / "labs" / "local.yaml", folder / "racks" / "rack1.yaml")
        words = ("unshare", "--net", "--mount", "sh", "-ec")
        script = f'mount --bind hosts /etc/hosts; exec "{sys.executable}" -c "$0"'
        self.exports = ""
        self.started: list[subprocess.Popen[str]] = []
        self.holder = subprocess.Popen(
            (*words, script, HOLDER), cwd=folder, stdout=subprocess.PIPE, text=True
        )
        assert self.holder.stdout is not None
        assert "ready\n" == self.holder.stdout.readline()

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a line of a shell; its output goes to a file of its number."""
        inside = ("nsenter", f"--target={self.holder.pid}", "--net", "--mount", "sh", "-c")
        with self.log(len(self.started)).open("w") as out:
            process = subprocess.Popen(
                (*inside, f"cd {self.folder}\n{self.exports}\n{command}"),
                env={**os.environ, **ENVIRONMENT},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        """Return the file of the output of a process that was started."""
        return self.folder / f"{number}.log"

    def output_of(self, process: subprocess.Popen[str]) -> str:
        """Return what a process has printed."""
        return self.log(self.started.index(process)).read_text()

    def wait_for(self, process: subprocess.Popen[str], text: str) -> None:
        """Wait until a process says something."""

        def heard() -> bool:
            ended = process.poll() is not None
            assert text in self.output_of(process) or not ended, self.output_of(process)
            return text in self.output_of(process)

        wait_until(text, heard)

    def start_dask(self, command: str) -> subprocess.Popen[str]:
        """Start a scheduler or a worker, and wait until it is ready: all its ports are open."""
        process = self.start(command)
        self.wait_for(process, "Scheduler at:" if "dask scheduler" in command else "Registered to:")
        return process

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end, and return its exit code and output."""
        process = self.start(command)
        return process.wait(DEADLINE_S), self.output_of(process)

    def listening(self) -> set[tuple[str, int]]:
        """Return where anything in this network listens for TCP."""
        sockets = set()
        for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            rows = Path(f"/proc/{self.holder.pid}/net/{name}").read_text().splitlines()[1:]
            for row in (row.split() for row in rows if row.split()[3] == "0A"):
                address, port = row[1].split(":")
                words = re.findall("." * 8, address)
                raw = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
                sockets.add((socket.inet_ntop(family, raw), int(port, 16)))
        return sockets

    def check(self) -> None:
        """See that every port beyond loopback turns away whoever lacks a certificate of the CA."""
        assert self.listening()
        for address, port in self.listening():
            if address.startswith("127.") or address == "::1":
                continue
            known = (self.folder / "others").exists()
            assert known, f"{address}:{port} is open to the network"
            at = "::1" if ":" in address else BEYOND
            for certificate, refusal in (("", "CERTIFICATE_REQUIRED"), ("other", "ALERT")):
                _, output = self.run(f"python -c '{STRANGER}' {at} {port} {certificate}")
                assert refusal in output, f"{address}:{port} lets in: {output}"

    def end(self) -> None:
        """End all."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.holder.kill()
        self.holder.communicate()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    """Yield a network of its own."""
    network = Apart(tmp_path)
    try:
        yield network
    finally:
        network.end()


def lines_of(section: str) -> list[str]:
    """Return the lines of the shell in a section of the page."""
    page = (ROOT / "docs" / "campaigns.md").read_text()
    text = page.partition(f"# {section}\n")[2]
    return "".join(BLOCK.findall(re.split(r"^#+ ", text, flags=re.MULTILINE)[0])).splitlines()


def make_certificates(apart: Apart) -> None:
    """Make those of the page, and those of others; the campaign has its own in the environment."""
    lines = lines_of("Over a network")
    make = "\n".join(line for line in lines if line.startswith("openssl"))
    assert 0 == apart.run(f"{make}\nmkdir others; cd others\n{make}")[0]
    apart.exports = "\n".join(line for line in lines if line.startswith("export"))


@pytest.mark.parametrize("section", ["Workers near the hosts", "Over a network"])
def test_what_the_page_shows_opens_no_port_to_the_network(section: str, apart: Apart) -> None:
    """Scheduler, nanny and worker, and the pages of each; and it runs a campaign."""
    if section == "Over a network":
        make_certificates(apart)
    commands = [line for line in lines_of(section) if re.match("DASK|dask|udpbench", line)]
    kinds = [re.sub(r"^DASK\S+ -d\)\" ", "", line).split()[:2] for line in commands]
    assert [["dask", "scheduler"], ["dask", "worker"], ["udpbench", "campaign"]] == kinds
    for command in commands[:2]:
        apart.start_dask(command)
    apart.check()
    campaign = apart.start(commands[2])
    apart.wait_for(campaign, "1 cells on 1 pairs")
    apart.check()
    assert campaign.wait(DEADLINE_S) in ANSWERED, apart.output_of(campaign)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:8786",
        "tcp://localhost:9000",
        "tcp://[::1]:8786",
        "tls://control.example:8786",
    ],
)
def test_what_the_program_prints_opens_no_port_to_the_network(address: str, apart: Apart) -> None:
    """A reader who does nothing but type what is printed has a campaign."""
    if address.startswith("tls:"):
        make_certificates(apart)
    command = f"udpbench campaign mine.yaml --labs racks/rack1.yaml --scheduler '{address}'"
    code, output = apart.run(command)
    printed = re.search(r"start it: (DASK.* dask scheduler .*), or correct", output)
    assert (3, True) == (code, printed is not None), output
    assert printed is not None
    apart.start_dask(printed[1])
    apart.check()
    campaign = apart.start(command)
    apart.wait_for(campaign, "start one: dask worker")
    (printed_worker,) = re.findall(r"start one: (dask worker .*)", apart.output_of(campaign))
    apart.start_dask(printed_worker)
    apart.check()
    assert campaign.wait(DEADLINE_S) in ANSWERED, apart.output_of(campaign)


SCHEDULER = f"dask scheduler --host 127.0.0.1 {SAFE}"
TLS_SCHEDULER = f"dask scheduler --protocol tls {TLS} {SAFE}"
WORKER = "dask worker tcp://127.0.0.1:8786 --nthreads 1 --resources pair=1 --name other"
TLS_WORKER = f"{WORKER.replace('tcp', 'tls')} {TLS} {SAFE}"
REPORTED = "--listen-address tcp://0.0.0.0:9000 --contact-address tcp://127.0.0.1:9000"
OPEN_NANNY = f"{WORKER} --host 127.0.0.1 {SAFE} --preload-nanny ./opened.py"
# What is started, what is named, and on which ports, where those are known.
UNSAFE = {
    "worker": (SCHEDULER, WORKER, "worker other", ["0.0.0.0:", "0.0.0.0:", "[::]:"]),
    "pages of a worker": (
        SCHEDULER,
        f"{WORKER} --host 127.0.0.1 --no-dashboard",
        "worker other",
        ["0.0.0.0:"],
    ),
    "worker that reports loopback": (
        SCHEDULER,
        f"{WORKER} --no-nanny {SAFE} {REPORTED}",
        "worker other",
        ["0.0.0.0:9000"],
    ),
    "nanny": (
        SCHEDULER,
        OPEN_NANNY,
        "worker other",
        ["0.0.0.0:9001"],
    ),
    "nanny behind a fork server": (
        SCHEDULER,
        f"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD=forkserver {OPEN_NANNY}",
        "worker other",
        ["0.0.0.0:9001"],
    ),
    "scheduler": (f"dask scheduler {SAFE}", "", "the scheduler", ["0.0.0.0:8786", "[::]:8786"]),
    "pages of a scheduler": (
        "dask scheduler --host 127.0.0.1 --no-dashboard",
        "",
        "the scheduler",
        ["0.0.0.0:8787"],
    ),
    "TLS: pages of a scheduler": (
        f"dask scheduler --protocol tls {TLS}",
        "",
        "the scheduler",
        ["0.0.0.0:8787"],
    ),
    "TLS: pages of a worker": (
        TLS_SCHEDULER,
        TLS_WORKER.replace(SAFE, ""),
        "worker other",
        ["0.0.0.0:"],
    ),
}
OPENED = """
import socket
opened = socket.socket()
opened.bind(("0.0.0.0", 9001))
opened.listen()
"""


@pytest.mark.parametrize("case", UNSAFE)
def test_a_cluster_that_takes_orders_from_the_network_is_refused(case: str, apart: Apart) -> None:
    """Before any cell, by what the kernel lists, and not by what the cluster reports."""
    scheduler, worker, who, ports = UNSAFE[case]
    (apart.folder / "opened.py").write_text(OPENED)
    if case.startswith("TLS"):
        make_certificates(apart)
    apart.start_dask(scheduler)
    if worker:
        apart.start_dask(worker)
    address = f"{'tls' if case.startswith('TLS') else 'tcp'}://127.0.0.1:8786"
    words = f"udpbench campaign mine.yaml --labs racks/rack1.yaml --scheduler {address}"
    code, output = apart.run(words)
    named = re.search(rf"{address}: (.*) accepts commands from the network on (.*?);", output)
    assert named is not None, output
    assert (2, who) == (code, named[1])
    assert ports == [
        port if port in ports else re.sub(r"\d+$", "", port) for port in named[2].split(", ")
    ]
    assert not (apart.folder / "results").exists()


@pytest.mark.parametrize("who", ["worker other", "the scheduler"])
def test_a_cluster_that_imports_what_others_may_write_is_refused(who: str, apart: Apart) -> None:
    """Dask takes its folder from whoever made it first; what is printed makes a new one."""
    planted = apart.folder / "tmp" / "dask-scratch-space"
    planted.mkdir(parents=True)
    os.chown(planted, 12345, 12345)
    planted.chmod(0o777)
    there = f"TMPDIR={planted.parent}"
    apart.start_dask(f"{there} {SCHEDULER}" if who == "the scheduler" else SCHEDULER)
    if who != "the scheduler":
        apart.start_dask(f"{there} {WORKER} --host 127.0.0.1 {SAFE}")
    assert [path for path in planted.iterdir() if path.is_dir()], "Dask did not use it"
    words = "udpbench campaign mine.yaml --labs racks/rack1.yaml --scheduler tcp://127.0.0.1:8786"
    code, output = apart.run(words)
    assert 2 == code, output
    assert f"{who} imports what others may write: {planted} belongs to user 12345" in output
    assert "$(mktemp -d)" in output


def test_a_worker_that_the_scheduler_of_tls_does_not_speak_to_is_refused(apart: Apart) -> None:
    """It has registered, but listens without TLS: nobody can ask it for its ports."""
    make_certificates(apart)
    apart.start_dask(TLS_SCHEDULER)
    plain = "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=false"
    apart.start_dask(f"{plain} {TLS_WORKER} --protocol tcp --no-nanny --host 127.0.0.1")
    words = "udpbench campaign mine.yaml --labs racks/rack1.yaml --scheduler tls://127.0.0.1:8786"
    code, output = apart.run(words)
    assert 2 == code
    assert "worker other cannot be asked which of its ports are open: RuntimeError" in output


def test_a_worker_that_comes_later_is_looked_at(apart: Apart) -> None:
    """The campaign ends, and runs nothing on it."""
    apart.start_dask(SCHEDULER)
    words = "udpbench campaign mine.yaml --labs racks/rack1.yaml --scheduler tcp://127.0.0.1:8786"
    campaign = apart.start(words)
    apart.wait_for(campaign, "no worker serves it")
    apart.start_dask(WORKER)
    assert 2 == campaign.wait(DEADLINE_S), apart.output_of(campaign)
    assert "worker other accepts commands from the network on 0.0.0.0:" in apart.output_of(campaign)
    assert not list(apart.folder.glob("results/campaign/*/*/run.jsonl"))

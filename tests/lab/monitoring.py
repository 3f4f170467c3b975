"""Monitoring for longer than a test may take: ``monitoring.py incidents quiet soak --minutes 20``.

``incidents`` plants three losses in a namespace, and ``udpbench show`` has to name each: its start
within a second, its socket, its cause. ``quiet`` runs Debian's Prometheus with the rules that ship
over a server that loses nothing to speak of: no alert may fire. ``soak`` holds an exporter that
records over sockets that come and go: no process's memory may grow. Each has its own minutes unless
these are given: 20, 30, 60.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import exporting  # noqa: E402 - of the benchmarks

UDPBENCH = (sys.executable, "-m", "udpbench")
GROWTH = 0.05
WITHIN_S = 1.05
"""How near a start has to be: a look each second, and what a look takes."""
LOSS_S = 5
SERVERS = r"""
import fcntl, multiprocessing, os, signal, socket, struct, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))

def bound(port):
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("127.0.0.1", port))
    return opened

def read(opened, work_s, shrunk, widened):
    while True:
        opened.recv(2000)
        if widened.is_set():
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 106496)
            widened.clear()
        if shrunk.is_set():
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
            shrunk.clear()
        end = time.perf_counter() + work_s
        while time.perf_counter() < end:
            pass

ports = {8001: 0, 8002: 0.002, 8003: 0}
shrunk, widened, *unused = (multiprocessing.Event() for _ in range(4))
readers = {}
for port, work_s in ports.items():
    words = bound(port), work_s, *((shrunk, widened) if port == 8001 else unused)
    readers[port] = multiprocessing.Process(target=read, args=words, daemon=True)
    readers[port].start()
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
numbers = multiprocessing.Array("i", [10, 10, 10])

def send():
    while True:
        for place, port in enumerate(ports):
            for _ in range(numbers[place]):
                sender.sendto(bytes(1000), ("127.0.0.1", port))
        time.sleep(0.1)

multiprocessing.Process(target=send, daemon=True).start()
print("bound", flush=True)
for command in sys.stdin:
    if command == "buffer\n":
        shrunk.set()
    if command == "widen\n":
        widened.set()
    if command == "flood\n":
        numbers[1] = 500
    if command == "calm\n":
        numbers[1] = 10
    if command == "stop\n":
        os.kill(readers[8003].pid, signal.SIGSTOP)
    if command == "go\n":
        os.kill(readers[8003].pid, signal.SIGCONT)
    if command == "burst\n":  # some hundred are lost, less than a packet a second of five minutes
        numbers[1] = 150
        time.sleep(0.15)
        numbers[1] = 10
    print("done", flush=True)
"""
INCIDENTS = {
    "buffer": ("8001", "receive buffer"),
    "flood": ("8002", "packets that come"),
    "stop": ("8003", "stopped"),
}
"""What is planted → the port that loses, and a word of the cause."""
ENDS = {"buffer": "widen", "flood": "calm", "stop": "go"}
CONFIG = """\
global: {{scrape_interval: 15s, evaluation_interval: 15s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: udpbench
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Servers:
    """Three servers in a network namespace of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._await("bound")
        self._pid = exporting.child_of(process)

    def do(self, command: str) -> None:
        """Have it done, and wait until it is."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._await("done")

    def inside(self, *command: str) -> tuple[str, ...]:
        """Return a command that runs another one in their namespaces, and sees no others."""
        return ("nsenter", f"--target={self._pid}", "--net", "--pid", "--mount", *command)

    def _await(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{word}\n"


@contextmanager
def servers() -> Iterator[Servers]:
    """Yield them, and end them."""
    apart = ("unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child")
    command = (*apart, sys.executable, "-c", SERVERS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield Servers(process)
        finally:
            process.kill()


@contextmanager
def ended(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, and end it as systemd would: a job in the background may ignore SIGINT."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        child = exporting.child_of(process)
        try:
            yield process
        finally:
            os.kill(child, signal.SIGTERM)
            process.wait()


def until(met: Callable[[], object], limit_s: float = 60) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + limit_s
    while not met():
        assert time.monotonic() < end_s
        time.sleep(0.2)


def incidents(minutes: float) -> list[str]:
    """Plant three losses at random moments; return what is wrong of what is said of them."""
    chance = random.Random(38)
    share_s = minutes * 60 / len(INCIDENTS)
    planted = {}
    with tempfile.TemporaryDirectory() as folder, servers() as own:
        with ended(*own.inside(*UDPBENCH, "export", "--record", folder)):
            until(lambda: any(Path(folder).glob("looks-*")))
            for kind in INCIDENTS:
                before_s = chance.uniform(0.4, 0.6) * share_s
                time.sleep(before_s)
                planted[kind] = time.time_ns()
                own.do(kind)
                time.sleep(LOSS_S)
                if kind in ENDS:
                    own.do(ENDS[kind])
                time.sleep(max(share_s - before_s - LOSS_S, 0))
        command = (*UDPBENCH, "show", folder, "--since", "2001-01-01T00:00", "--json")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return wrong(planted, json.loads(done.stdout)["incidents"])


def wrong(planted: dict[str, int], named: list[dict[str, object]]) -> list[str]:
    """Return which incidents are not named, or wrongly."""
    problems = []
    for kind, began_ns in planted.items():
        port, cause = INCIDENTS[kind]
        near = [
            (each, loss)
            for each in named
            for loss in each["losses"]  # type: ignore[attr-defined]
            if loss["place"].endswith(f":{port}")
        ]
        starts_s = [(loss["start_ns"] - began_ns) / 1e9 for _, loss in near]
        words = [json.dumps(each, ensure_ascii=False) for each, _ in near]
        print(f"{kind}: {starts_s} s after it began; {[loss for _, loss in near][:1]}", flush=True)
        if not any(abs(start_s) <= WITHIN_S for start_s in starts_s):
            problems.append(f"{kind} at {began_ns}: no start within a second: {starts_s}")
        elif not any(cause in word for word in words):
            problems.append(f"{kind}: its cause is not said: {words}")
    return problems


def quiet(minutes: float) -> list[str]:
    """Run Prometheus over servers that lose a burst now and then; return the alerts that fired."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own = stack.enter_context(servers())
        rules, config = folder / "udpbench.rules.yml", folder / "prometheus.yml"
        shipped = subprocess.run((*UDPBENCH, "export", "--print", "rules"), capture_output=True)
        rules.write_bytes(shipped.stdout)
        config.write_text(CONFIG.format(rules=rules, port=exporting.PORT))
        prometheus = (
            *(str(shutil.which("prometheus")), f"--config.file={config}", "--log.level=error"),
            *(f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:9090"),
        )
        page = ("export", "--listen", f"127.0.0.1:{exporting.PORT}")
        stack.enter_context(ended(*own.inside(*UDPBENCH, *page)))
        stack.enter_context(ended(*own.inside(*prometheus)))
        until(lambda: asked(own, "up") == ["1"])
        half_s = minutes * 30
        time.sleep(half_s)
        own.do("burst")
        time.sleep(half_s)
        span = f"[{max(round(minutes), 1)}m]"
        lost = asked(own, f"sum(increase(udpbench_socket_dropped_packets_total{span}))")
        fired = asked(own, f'count_over_time(ALERTS{{alertstate="firing"}}{span})')
        scraped = asked(own, f"count_over_time(up{span})")
    print(f"quiet: {scraped} scrapes, {lost} packets lost, {fired} alerts", flush=True)
    return [f"{fired} alerts fired"] if fired or not scraped else []


def asked(own: Servers, query: str) -> list[str]:
    """Return the values that Prometheus answers."""
    url = f"http://127.0.0.1:9090/api/v1/query?query={quote(query)}"
    done = subprocess.run(own.inside("curl", "-sf", url), capture_output=True, check=False)
    if not done.stdout:
        return []
    return [each["value"][1] for each in json.loads(done.stdout)["data"]["result"]]


def soak(minutes: float, most: float = GROWTH) -> list[str]:
    """Hold an exporter that records; return which process's memory grew."""
    words = ("--every", "1s", "--at-most", "64MiB", "--record")
    with (
        tempfile.TemporaryDirectory() as folder,
        exporting.crowd() as inside,
        exporting.exporter(inside, *words, folder) as pid,
    ):
        processes = exporting.family(pid)
        looks: list[list[int]] = [[] for _ in processes]
        begun_s = time.monotonic()
        while (held_s := time.monotonic() - begun_s) < minutes * 60:
            exporting.hold(inside, min(15, minutes))
            for each, sizes in zip(processes, looks, strict=True):
                sizes.append(exporting.resident_bytes(each))
            if len(looks[0]) % 4 == 1:
                shown = ", ".join(f"{sizes[-1] / 2**20:.1f}" for sizes in looks)
                print(f"soak: {held_s / 60:.0f} minutes: {shown} MiB", flush=True)
    grown = [growth(sizes) for sizes in looks]
    print(f"soak: {', '.join(f'{each:+.1%}' for each in grown)}", flush=True)
    return [f"memory grew by {each:.1%}" for each in grown if each > most]


def growth(sizes: list[int]) -> float:
    """Return by which part the last tenth is above the second one."""
    tenth = max(len(sizes) // 10, 1)
    return median(sizes[-tenth:]) / median(sizes[tenth : 2 * tenth]) - 1


PARTS = {"incidents": (incidents, 20), "quiet": (quiet, 30), "soak": (soak, 60)}


def main() -> None:
    """Run the parts that are named, all without a name, and leave with 1 where one fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS))
    parser.add_argument("--minutes", type=float)
    given = parser.parse_args()
    problems = []
    for name in given.parts or PARTS:
        part, minutes = PARTS[name]
        problems += part(given.minutes or minutes)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()

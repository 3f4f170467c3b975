"""Debian's Prometheus and node_exporter read what ``udpbench export`` says of real losses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from test_watch import KERNEL

from udpbench.commands.verbs.export import shipped

pytestmark = [
    pytest.mark.apart,
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.skipif(KERNEL < (6, 15), reason="--exact needs Linux 6.15"),
]

LIMIT_S = 120
SECONDS = 60
SCRAPE_S = 3
"""For three looks, as 15 s are by default: the age of a look is what ``increase`` cannot know."""
WINDOW_S = 10 * SCRAPE_S
PLANTED = {
    "7777": ("UdpReaderBoundByCpu", "is bound by its CPU", "running"),
    "7778": ("UdpReaderWaitsForCpu", "waits for a CPU", "runnable"),
    "7779": ("UdpReaderSleeps", "sleeps", "sleeping"),
}
"""Port → the alert, how its text ends, and in which state its reader has to be by far the most."""
PORT, PROMETHEUS, NODE = 10717, 9090, 9100
CROWD = r"""
import fcntl, json, socket, struct, sys, threading, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))

def drops(opened):
    return struct.unpack("9I", opened.getsockopt(socket.SOL_SOCKET, 55, 36))[8]

def bound(port):
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.bind(("127.0.0.1", port))
    return opened

def lost():
    return {port: before + drops(sockets[port]) for port, before in closed.items()}

sockets = {port: bound(port) for port in range(7000, 9000)}
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print("bound", flush=True)
sys.stdin.readline()
closed, totals, ended = dict.fromkeys(range(7000, 7200), 0), [], threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
tenth = 0
begun = time.monotonic()
while not ended.is_set():
    for port in closed:
        sender.sendto(bytes(200), ("127.0.0.1", port))
    for port in range(7000 + tenth // 10 % 20, 9000, 20) if tenth % 10 == 0 else ():
        if port in closed:  # a twentieth comes and goes each second
            closed[port] += drops(sockets[port])
        sockets[port].close()
        sockets[port] = bound(port)
    totals.append((time.time(), sum(lost().values())))
    tenth += 1
    ended.wait(max(begun + tenth / 10 - time.monotonic(), 0))
print(json.dumps([lost(), totals]), flush=True)
sys.stdin.readline()
"""
SERVER = r"""
import asyncio, fcntl, hashlib, os, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))

class Work(asyncio.DatagramProtocol):
    def datagram_received(self, data, address):
        hashlib.pbkdf2_hmac("sha256", data, b"salt", 20000)

async def main():
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Work, local_addr=("127.0.0.1", 7777))
    print("bound", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
"""It has a CPU of its own: what else wants that CPU waits."""
NEIGHBOURS = r"""
import hashlib, os, socket, time

def bound(port):
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("127.0.0.1", port))
    return opened

if not os.fork():  # at once wherever it wants to run, but it sleeps
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    opened = bound(7779)
    while True:
        opened.recv(2000)
        time.sleep(0.05)
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
if not os.fork():
    while True:
        pass
os.nice(19)
opened = bound(7778)
while True:
    hashlib.pbkdf2_hmac("sha256", opened.recv(2000), b"salt", 20000)
"""
"""A reader that sleeps after each datagram, and a nice one whose CPU another program uses."""
FLOOD = """
import os, socket, sys, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(3))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for port in sys.argv[1:]:
        for _ in range(100):
            sender.sendto(bytes(1000), ("127.0.0.1", int(port)))
    time.sleep(0.1)
"""
RESOLVER = r"""
import fcntl, os, pathlib, socket, struct, subprocess, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 1))
cpus = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cpus[:1])
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
config = pathlib.Path(sys.argv[2], "unbound.conf")
config.write_text('''server:
  interface: 127.0.0.1@7777
  do-daemonize: no
  username: ""
  chroot: ""
  pidfile: ""
  use-syslog: no
  so-rcvbuf: 0
  local-zone: "." static
  local-data: "flood.example. A 192.0.2.1"
remote-control:
  control-enable: no
''')
print("bound", flush=True)
os.execv(sys.argv[1], [sys.argv[1], "-c", str(config)])
"""
QUERIES = r"""
import os, socket, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(3))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
query = b"\x12\x34\1\0\0\1\0\0\0\0\0\0\5flood\7example\0\0\1\0\1"
sender.setsockopt(socket.SOL_UDP, 103, len(query))
while True:
    for _ in range(6):
        sender.sendto(query * 100, ("127.0.0.1", 7777))
    time.sleep(0.001)
"""
"""Half a million queries a second, more than twice what the resolver can answer, never in bursts that
it could wait between. UDP_SEGMENT (include/uapi/linux/udp.h) sends a hundred in a call."""
CONFIG = """\
global: {{scrape_interval: {scrape_s}s, evaluation_interval: 2s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: udpbench
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


APART = ("unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child")
"""Others on this machine lose packets, too, and take their part of what series there may be."""


@contextmanager
def ended(
    *command: str, inside: str | None = None, **given: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run a program apart, or in the namespaces of another, and end it."""
    enter = ("nsenter", f"--target={inside}", "--net", "--pid", "--mount") if inside else APART
    with subprocess.Popen((*enter, *command), text=True, **given) as process:
        try:
            yield process
        finally:
            os.kill(inner(process.pid), signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
            process.kill()


def inner(pid: int) -> int:
    """Return the process that unshare or nsenter began; itself if there is none any more."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def until(met: Callable[[], object], limit_s: float = LIMIT_S) -> Any:
    """Return what is met, once it is; asking without a pause would take the CPU of what is measured."""
    end_s = time.monotonic() + limit_s
    while not (value := met()):
        assert time.monotonic() < end_s
        time.sleep(0.2)
    return value


def program(*names: str) -> str:
    """Return a program of Debian's; skip without it."""
    path = next((path for name in names if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"needs {names[0]}: apt install {names[0]}")
    return path


class Crowd:
    """2,000 sockets of a namespace that come and go, 200 of which lose packets."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._words, self._answers = process.stdin, process.stdout
        assert "bound\n" == self._answers.readline()
        self.inside = str(inner(process.pid))

    def say(self) -> None:
        """Have it begin, or end."""
        self._words.write("\n")
        self._words.flush()

    def lost(self) -> tuple[dict[str, int], list[tuple[float, int]]]:
        """End its losses; return how many packets were lost at each port, and until when."""
        self.say()
        by_port, totals = json.loads(self._answers.readline())
        return by_port, totals

    def get(self, port: int, path: str) -> str:
        """Return what is served there."""
        command = ("nsenter", f"--target={self.inside}", "--net", "curl", "-sfg")
        url = f"http://127.0.0.1:{port}{path}"
        return subprocess.run((*command, url), capture_output=True, text=True, check=False).stdout

    def ask(self, query: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """Return Prometheus's answer to a query: as of now, or of another time."""
        when = f"&time={at_s}" if at_s is not None else ""
        text = self.get(PROMETHEUS, f"/api/v1/query?query={quote(query)}{when}")
        return list(json.loads(text)["data"]["result"]) if text else []

    def number(self, query: str, at_s: float | None = None) -> float:
        """Return the only number of an answer; 0 of none."""
        result = self.ask(query, at_s)
        return float(result[0]["value"][1]) if result else 0.0


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    """Open its sockets."""
    limited = ("sh", "-c", 'ulimit -n 4096; exec "$@"', "-", sys.executable, "-c", CROWD)
    with ended(*limited, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Crowd(process)


def total_at(totals: list[tuple[float, int]], at_s: float) -> int:
    """Return how many packets had been lost at a time."""
    return max(total for time_s, total in totals if time_s <= at_s)


def ages_s(crowd: Crowd, at_s: float) -> list[float]:
    """Return how old a window's looks were as they were scraped."""
    looks = crowd.ask(f"udpbench_exporter_last_look_timestamp_seconds[{WINDOW_S}s]", at_s)
    return [scraped_s - float(look_s) for each in looks for scraped_s, look_s in each["values"]]


def exporter(crowd: Crowd, *words: str) -> Any:
    """Run udpbench export in the crowd's namespace."""
    command = (sys.executable, "-m", "udpbench", "export", *words)
    return ended(*command, inside=crowd.inside)


def test_prometheus_counts_what_the_sockets_owner_counts(crowd: Crowd, tmp_path: Path) -> None:
    """No series falls, there are few, and ``increase`` says what was lost in a time."""
    config, rules = tmp_path / "prometheus.yml", tmp_path / "udpbench.rules.yml"
    rules.write_text(shipped("rules"))
    config.write_text(CONFIG.format(rules=rules, port=PORT, scrape_s=SCRAPE_S))
    command = (
        *(program("prometheus"), f"--config.file={config}", "--log.level=error"),
        *(
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{PROMETHEUS}",
        ),
    )
    dropped = "udpbench_socket_dropped_packets_total"
    words = ("--listen", f"127.0.0.1:{PORT}", "--every", "1s", "--exact")
    with exporter(crowd, *words), ended(*command, inside=crowd.inside):
        until(lambda: crowd.number("up") == 1)
        before = float(cpu_of(crowd))
        begun_s = time.monotonic()
        crowd.say()
        until(lambda: crowd.number(f"sum({dropped})") > 0)
        until(lambda: time.monotonic() - begun_s >= SECONDS, SECONDS + LIMIT_S)
        used = (float(cpu_of(crowd)) - before) / (time.monotonic() - begun_s)
        lost, totals = crowd.lost()
        until(lambda: crowd.number(f"sum({dropped})") == sum(lost.values()))
        counted: Counter[str] = Counter()
        for each in crowd.ask(f"{dropped}[{2 * SECONDS + LIMIT_S}s]"):
            first, *_, last = (int(float(value)) for _, value in each["values"])
            assert first == 0
            counted[each["metric"]["port"]] += last
        assert sum(lost.values()) == counted.total()
        named = counted.keys() - {"other"}
        assert len(named) >= 32  # of the room for 64 the idle have half at most, whichever they are
        assert {port: counted[port] for port in named} == {port: lost[port] for port in named}
        ends_s = [totals[-1][0] - back_s for back_s in range(0, SECONDS - WINDOW_S, 10)]
        errors = [
            crowd.number(f"sum(increase({dropped}[{WINDOW_S}s]))", at_s)
            / (total_at(totals, at_s) - total_at(totals, at_s - WINDOW_S))
            - 1
            for at_s in ends_s
        ]
        wide = {
            at_s: error for at_s, error in zip(ends_s, errors, strict=True) if abs(error) > 0.05
        }
        assert {} == {at_s: (error, ages_s(crowd, at_s)) for at_s, error in wide.items()}
        assert 0 == crowd.number(f"sum(resets({dropped}[10m]))")
        assert 0 == crowd.number("sum(resets(udpbench_stage_dropped_packets_total[10m]))")
        series = crowd.number('count({__name__=~"udpbench_.+",__name__!~"udpbench:.+"})')
        assert 200 < series < 2000
        alerts = until(lambda: crowd.ask('ALERTS{alertstate=~"pending|firing"}'))
        names = {each["metric"]["alertname"] for each in alerts}
        shown = ", ".join(f"{error:+.1%}" for error in errors)
        print(f"lost {totals[-1][1]}: {shown}; {series:.0f} series, {used:.1%} of a CPU, {names}")
        assert names & {"UdpReceiveBufferFull", "UdpReaderSleeps"}
        wrong = [query for query in dashboard() if not answered(crowd, query)]
        assert [] == wrong


@pytest.mark.parametrize("kind", ["python", "unbound"])
def test_each_reader_under_a_flood_fires_the_alert_that_names_its_cause(
    kind: str, tmp_path: Path
) -> None:
    """An asyncio server or a resolver that fills a CPU of its own, one that waits, one that sleeps."""
    served, floods = (sys.executable, "-c", SERVER), [(FLOOD, *PLANTED)]
    if kind == "unbound":
        served = (sys.executable, "-c", RESOLVER, program("unbound"), str(tmp_path))
        floods = [(QUERIES,), (FLOOD, *[*PLANTED][1:])]
    config, rules = tmp_path / "prometheus.yml", tmp_path / "udpbench.rules.yml"
    rules.write_text(shipped("rules"))
    config.write_text(CONFIG.format(rules=rules, port=PORT, scrape_s=2))
    command = (
        *(program("prometheus"), f"--config.file={config}", "--log.level=error"),
        *(
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{PROMETHEUS}",
        ),
    )
    with (
        ended(*served, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        ExitStack() as by,
    ):
        server = Crowd(process)
        by.enter_context(exporter(server, "--listen", f"127.0.0.1:{PORT}"))
        by.enter_context(ended(*command, inside=server.inside))
        for words in ((NEIGHBOURS,), *floods):
            by.enter_context(ended(sys.executable, "-c", *words, inside=server.inside))
        until(lambda: PLANTED.keys() <= {each["port"] for each in firing(server)}, 300)
        alerts = firing(server)
        shares = {
            (each["metric"]["port"], each["metric"]["state"]): float(each["value"][1])
            for each in server.ask("udpbench:reader_seconds:share5m")
        }
    for each in alerts:
        print(each["summary"])
    print({key: f"{share:.1%}" for key, share in sorted(shares.items())})
    assert {port: name for port, (name, *_) in PLANTED.items()} == {
        each["port"]: each["alertname"] for each in alerts
    }
    assert len(PLANTED) == len(alerts)
    for each in alerts:
        port, (_, does, state) = each["port"], PLANTED[each["port"]]
        assert each["summary"].startswith(kind if port == "7777" else "python")
        assert f"(port {port}, host) loses" in each["summary"]
        assert each["summary"].endswith(f" at udp_rcvbuf: its reader {does}")
        assert f'sudo "$(command -v udpbench)" watch --port {port}' == each["command"]
        assert 0.8 < shares[port, state]


def firing(server: Crowd) -> list[dict[str, str]]:
    """Return labels and texts of the alerts that fire for what is planted."""
    text = server.get(PROMETHEUS, "/api/v1/alerts") or '{"data": {"alerts": []}}'
    return [
        each["labels"] | each["annotations"]
        for each in json.loads(text)["data"]["alerts"]
        if each["state"] == "firing" and each["labels"].get("port") in PLANTED
    ]


def cpu_of(crowd: Crowd) -> float:
    """Return the CPU time that the exporter says it has used."""
    text = crowd.get(PORT, "/metrics").split("\n")
    return sum(
        float(line.split()[-1])
        for line in text
        if line.startswith("udpbench_exporter_cpu_seconds_total{")
    )


def dashboard() -> list[str]:
    """Return the dashboard's queries with Grafana's variables filled in."""
    queries = []
    for panel in json.loads(shipped("dashboard"))["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1h")
            queries.append(query.replace("$instance", ".*"))
    return queries


def answered(crowd: Crowd, query: str) -> bool:
    """Return whether Prometheus computes a query."""
    return '"status":"success"' in crowd.get(PROMETHEUS, f"/api/v1/query?query={quote(query)}")


def test_node_exporter_reads_the_file(crowd: Crowd, tmp_path: Path) -> None:
    """Whole, without an error of its collector."""
    tmp_path.chmod(0o755)
    command = (
        *(program("prometheus-node-exporter", "node_exporter"), "--collector.disable-defaults"),
        *("--collector.textfile", f"--collector.textfile.directory={tmp_path}"),
        f"--web.listen-address=127.0.0.1:{NODE}",
    )
    file = tmp_path / "udpbench.prom"
    with (
        exporter(crowd, "--textfile", str(file), "--every", "1s"),
        ended(*command, inside=crowd.inside),
    ):
        crowd.say()
        text = until(
            lambda: (
                page if "udpbench_socket_dropped" in (page := crowd.get(NODE, "/metrics")) else ""
            )
        )
    assert "node_textfile_scrape_error 0" in text
    assert 'udpbench_namespace_readable{netns="host"} 1' in text

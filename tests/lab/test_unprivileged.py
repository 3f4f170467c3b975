"""The built-in lab of an ordinary user: what it measures, what it lacks, and who may not have it."""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from busy import ended_well
from ordinary_user import run_as_user

from udpbench.analysis.judge import judge
from udpbench.records.reader import read_run

pytestmark = pytest.mark.lab

PLUGIN = [] if "udpbench" in entry_points(group="pytest11").names else ["-pudpbench.pytest_plugin"]
UDPBENCH = [sys.executable, "-m", "udpbench"]
MACHINE = """
question: May a user change the machine?
settings: {receiver: {sysctl: {net.core.netdev_budget_usecs: 4321}}}
duration: 100ms
warmup: 0s
repetitions: 1
"""
LOSING = ("smoke", "drops/closed-port", "drops/small-buffer", "--set", "repetitions=1")
DEGRADED = "the lab is degraded"


def test_an_ordinary_user_measures_and_loses_packets_on_purpose(tmp_path: Path) -> None:
    """These experiments hold without root, and say in each trial what the lab lacks."""
    home = tmp_path / "home"
    done = run_as_user([*UDPBENCH, "run", *LOSING, "--no-report", "--out", "run"], home)
    assert ended_well(done.returncode, home / "run"), done.stdout + done.stderr
    assert f"{DEGRADED}, run as root for the full lab: NAPI's threads" in done.stdout
    run = read_run(home / "run")
    results = [judge(record) for record in run.records]
    assert {("done", 0)} == {(result.status, result.unaccounted) for result in results}
    assert [True] * len(results) == [
        any(finding.what.startswith(DEGRADED) for finding in result.findings) for result in results
    ]
    facts = run.records[0].facts["receiver"]
    # RPS brings the packets of each queue to the receiver's CPUs.
    assert facts.queue_cpus
    assert {facts.cpus[: (len(facts.cpus) + 1) // 2]} == set(facts.queue_cpus.values())


PROGRAM = """
question: What may a program do?
traffic: {count: 20, rate: 2kpps, flows: {to: "receiver.addresses[1]:PORT"}}
duration: 5s
warmup: 0s
repetitions: 1
receive:
  command:
    - python3
    - -c
    - |
      import os, signal, socket
      print(open("/proc/self/status").read())
      print("Processes:", *(n for n in os.listdir("/proc") if n.isdigit()))
      print("Names:", *sorted(os.environ))
      bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
      bound.bind(("0.0.0.0", PORT))
      print("", flush=True)
      while True:
          bound.recv(2000)
"""


@pytest.mark.parametrize(("port", "rights"), [(4321, 0), (53, 1 << 10)])
def test_a_program_of_a_users_lab_is_not_root_of_it(tmp_path: Path, port: int, rights: int) -> None:
    """It is the user, called 0 there, with a right to its port alone, and sees no agent."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "program.yaml").write_text(PROGRAM.replace("PORT", f"{port}"))
    command = [*UDPBENCH, "run", "program.yaml", "--no-report", "--out", "run"]
    done = run_as_user(["env", "SSH_AUTH_SOCK=/run/secret", *command], home)
    assert ended_well(done.returncode, home / "run"), done.stdout + done.stderr
    (output,) = (home / "run").glob("*.output")
    rows = dict(row.split(":", 1) for row in output.read_text().splitlines() if ":" in row)
    caps = {name: int(rows[f"Cap{name}"], 16) for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
    assert ("1", dict.fromkeys(caps, rights)) == (rows["NoNewPrivs"].strip(), caps)
    assert "SSH_AUTH_SOCK" not in rows["Names"].split()
    assert 2 == len(rows["Processes"].split())


@pytest.mark.long
def test_the_ledger_is_reliable_as_far_as_a_user_can_try_it(tmp_path: Path) -> None:
    """What needs root is skipped with its reason, nothing is missing, and the result is kept."""
    home = tmp_path / "home"
    done = run_as_user([*UDPBENCH, "selftest", "--json"], home, timeout_s=300)
    assert 0 == done.returncode, done.stdout + done.stderr
    proven = json.loads(done.stdout)
    assert (True, []) == (proven["believable"], proven["missing"])
    whys = {each["stage"]: each["why"] for each in proven["proofs"] if each["packets"] is None}
    assert {"rx_tc", "rx_xdp", "rx_backlog", "udp_memory"} <= {
        stage for stage, why in whys.items() if "run as root" in why
    }
    assert 1 == len(list((home / ".cache/udpbench/selftest").iterdir()))


@pytest.mark.long
def test_doctor_lists_the_rights_that_an_ordinary_user_lacks(tmp_path: Path) -> None:
    """Each of them by name, of the machine."""
    done = run_as_user([*UDPBENCH, "doctor", "--json"], tmp_path / "home")
    assert (1, "") == (done.returncode, done.stderr)
    checks = json.loads(done.stdout)["checks"]
    assert [("machine", "net_admin, kernel_threads, rcvbuf_force, real_time")] == [
        (check["host"], check["value"]) for check in checks if check["check"] == "rights"
    ]


def test_an_ordinary_user_may_not_change_the_machine(tmp_path: Path) -> None:
    """The trial fails with the setting's name and what to do; nothing was changed."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "machine.yaml").write_text(MACHINE)
    done = run_as_user([*UDPBENCH, "run", "machine.yaml", "--no-report", "--out", "run"], home)
    assert 3 == done.returncode, done.stdout + done.stderr
    (record,) = read_run(home / "run").records
    assert record.error is not None
    assert ("SettingRefused", "machine") == (record.error.kind, record.error.host)
    assert "net.core.netdev_budget_usecs" in record.error.message
    assert "run as root" in record.error.message


def test_where_the_kernel_forbids_it_one_message_says_what_to_do(tmp_path: Path) -> None:
    """Exit 3 with the reason and the remedy; a pytest gate is skipped with the same words."""
    home = tmp_path / "home"
    reason = "unshare failed: Operation not permitted); run udpbench as root"
    done = run_as_user(
        [*UDPBENCH, "run", "smoke", "--no-report", "--out", "run"], home, changed_root=True
    )
    assert 3 == done.returncode, done.stdout
    text = " ".join(f"{done.stdout} {done.stderr}".split())
    assert reason in text
    assert "Traceback" not in text
    (home / "one.udpbench.yaml").write_text(MACHINE)
    gate = [sys.executable, "-m", "pytest", *PLUGIN, "-rs", "-pno:cacheprovider", "--basetemp=tmp"]
    done = run_as_user(gate, home, changed_root=True)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    assert reason in done.stdout


def test_an_ordinary_user_who_left_nothing_has_nothing_to_restore(tmp_path: Path) -> None:
    """It ends well, with a note that root may have left something."""
    Path("/run/udpbench").mkdir(mode=0o700, exist_ok=True)
    done = run_as_user([*UDPBENCH, "restore"], tmp_path / "home")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "this user cannot read what root's runs left behind" in done.stdout
    assert "nothing of this user was left behind" in done.stdout


NODES = """
question: Has an ordinary user nodes in the middle?
traffic: {count: 100, rate: 2kpps, FLOWS}
duration: 5s
warmup: 0s
repetitions: 1
path_check: explained
variants: {VARIANTS}
"""
PUBLISHED = 'flows: {to: "receiver.addresses[1]:4321", published: "docker.addresses[1]:8080"}'
DROPPED = "passed: {}, dropped: {settings.middle.firewall: {udp: 4321, drop: forward}}"


@pytest.mark.parametrize(
    ("lab", "stage"),
    [
        ("published-port", "docker.fwd_netfilter"),
        *(
            pytest.param(lab, stage, marks=pytest.mark.long)
            for lab, stage in {
                "router": "router1.fwd_netfilter",
                "nat": "router1.fwd_netfilter",
                "two-routers": "router1.fwd_netfilter",
                "containers": "docker.fwd_netfilter",
                "wireguard": "wg1.fwd_netfilter",
                "bridge": None,
                "vxlan": None,
            }.items()
        ),
    ],
)
def test_an_ordinary_user_has_nodes_in_the_middle(
    tmp_path: Path, lab: str, stage: str | None
) -> None:
    """Routers, NAT, bridges and tunnels, in the user's own namespaces: every loss is exact."""
    if lab == "wireguard" and not Path("/dev/net/tun").stat().st_mode & 0o002:
        pytest.skip("a user may not open /dev/net/tun here, which wireguard-go needs")
    home = tmp_path / "home"
    home.mkdir()
    flows = PUBLISHED if lab == "published-port" else "size: 32B"
    text = NODES.replace("FLOWS", flows).replace(
        "VARIANTS", DROPPED if stage is not None else "passed: {}"
    )
    (home / "nodes.yaml").write_text(text)
    where = ["--lab", lab, "--share", "--no-report", "--out", "run"]
    done = run_as_user([*UDPBENCH, "run", "nodes.yaml", *where], home)
    assert ended_well(done.returncode, home / "run"), done.stdout + done.stderr
    results = {record.trial.point: judge(record) for record in read_run(home / "run").records}
    assert {("done", 0)} == {(each.status, each.unaccounted) for each in results.values()}
    lost = {
        point: {entry.stage: entry.packets for entry in each.ledger.entries if entry.packets}
        for point, each in results.items()
        if each.ledger is not None
    }
    assert {"passed": {}} | ({"dropped": {stage: 100}} if stage else {}) == lost

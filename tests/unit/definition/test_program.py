"""A program of the user's as the receiver: what may stand beside it, and what it is bound to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from definition_fixture import both, loaded, refused, trial, write
from golden import Golden

from udpbench.definition import load
from udpbench.definition.binding.bind import bind
from udpbench.definition.file_keys import ExperimentFile
from udpbench.definition.file_schema import keys_at
from udpbench.definition.lab_rules import refuse_together
from udpbench.errors import InputError
from udpbench.model.experiment import Answers, Attach, Receive
from udpbench.model.lab import Connect, Lab
from udpbench.ways import way_to_receive

COMMAND = ["./server", "--port", "4321"]
PROGRAM = "receive: {command: [./a]}"
IDS = "payload: {hex: '00000000'}"
WRITTEN = {
    "read": "header",
    "wait": "block",
    "sockets": "shared",
    "steering": "/sys/fs/bpf/x",
    "priority": "normal",
    "fault": "none",
    "log": "none",
    "room": "auto",
    "work": "1us",
    "workers_as": "threads",
    "call": "recv",
    "buffer": "4MiB",
    "io_priority": "normal",
}


def test_a_program_starts_in_the_folder_of_its_experiment(tmp_path: Path) -> None:
    """Relative paths of the command are relative to the file, unless it names a folder."""
    write(tmp_path, "question: Why?\nreceive: {command: [./server, 4321]}\n", "own/x.yaml")
    (experiment,) = load.load_experiments(["own/x.yaml"])
    receive = experiment.points[0].receive
    assert (("./server", "4321"), str(tmp_path / "own")) == (receive.command, receive.folder)
    assert "/opt" == trial(receive={"command": COMMAND, "folder": "/opt"}).receive.folder
    assert None is trial(receive={}).receive.folder


@pytest.mark.parametrize(
    ("cpus", "cpu", "several"),
    [("lab", None, (0, 1)), ("1", 1, (1,)), ("any", None, ()), ("2-3", None, (2, 3))],
)
def test_a_program_is_one_worker_on_all_its_cpus(
    lab: Lab, cpus: str, cpu: int | None, several: tuple[int, ...]
) -> None:
    """It reads every port, with the flows of its host, and runs wherever it may."""
    known = both((0, 1, 2, 3))
    data = {
        "traffic": {"flows": {"to": "receiver.addresses[1-2]:4321-4324"}, "size": "5B"},
        "receive": {"command": COMMAND, "cpus": cpus, "priority": "nice 5"},
    }
    (spec,) = (s for s in bind(trial(**data), lab, known).workers if s.role == "receiver")
    assert (cpu, several) == (spec.cpu, spec.cpus)
    assert several == spec.own_cpus
    assert ((4321, 4322, 4323, 4324), 8) == (spec.bind_ports, len(spec.flows))
    assert several == replace(spec, cpus=(), cpu=cpu).own_cpus or cpu is None


@pytest.mark.parametrize(
    ("become", "named", "who"),
    [(None, None, None), ("sudo", None, "nobody"), ("sudo", "bench", "bench")],
)
def test_a_program_is_not_the_accounts_that_may_use_sudo(
    lab: Lab, become: Literal["sudo"] | None, named: str | None, who: str | None
) -> None:
    """Who logs in there is as good as root; only an experiment that names a user has that one."""
    (host,) = lab.receivers
    far = replace(lab, hosts=(*lab.senders, replace(host, connect=Connect("ssh", "right", become))))
    receive = {"command": COMMAND, **({"user": named} if named else {})}
    bound = bind(trial(receive=receive), far, both((0, 1, 2, 3)))
    (spec,) = (each for each in bound.workers if each.role == "receiver")
    assert spec.receive is not None
    assert who == spec.receive.user


def test_what_describes_our_loops_is_refused_beside_a_program(golden: Golden) -> None:
    """Each key on its line; of the keys that a program has, none."""
    (block,) = (r for r in way_to_receive(Receive(command=("a",))).refuses if r.key == "receive")
    known = (*block.beside, "attach")
    ours = [key for key in keys_at(ExperimentFile, ("receive",)) if key not in known]
    values = {"workers": "1", "cpus": "lab", "batch": "1", "gro": "true", "timestamps": "true"}
    lines = [f"  {key}: {({**WRITTEN, **values}).get(key, 'true')}" for key in ours]
    messages = refused("receive:", "  command: [./server]", *lines)
    of_loops = [line for line in messages if "describes udpbench's own receiver" in line]
    assert sorted(ours) == sorted(line.split(": ")[1].partition(".")[2] for line in of_loops)
    golden.check(of_loops[0])


@pytest.mark.parametrize(
    "receive",
    [
        "{command: ./server --port 4321}",
        "{command: []}",
        "{command: 7}",
        '{command: ["", x]}',
        "{command: [./server, {a: b}]}",
        "{command: [./server], user: root}",
        "{command: [./server], user: 0}",
        '{command: [./server], user: "two words"}',
        "{command: [./server], folder: here}",
        "{command: [./server], workers: 0}",
        "{ready: listening}",
        "{user: nobody, folder: /tmp}",
    ],
)
def test_what_is_no_program_is_refused(receive: str, golden: Golden) -> None:
    """With what to write instead."""
    golden.check("\n".join(refused(f"receive: {receive}")))


def test_a_program_receives_datagrams_without_echo(golden: Golden) -> None:
    """Neither a stream nor our own echoes."""
    messages = refused("traffic: {protocol: tcp}", "receive: {command: [./server]}")
    golden.check([line for line in messages if "of a program" in line])
    golden.check("\n".join(refused("traffic: {echo: 1}", "receive: {command: [./server]}")))


def test_a_process_that_runs_already_is_one_worker_left_where_it_is(lab: Lab) -> None:
    """No CPU is its own, since nothing of it is changed."""
    experiment = loaded("receive: {attach: {port: 4321}}")
    (point,) = experiment.points
    assert Attach(port=4321) == point.receive.attach
    workers = bind(point, lab, both((0, 1, 2, 3))).workers
    (spec,) = (each for each in workers if each.role == "receiver")
    assert (None, (), (4321,)) == (spec.cpu, spec.own_cpus, spec.bind_ports)


@pytest.mark.parametrize(
    "lines",
    [
        "receive: {attach: 4321}",
        "receive: {attach: {}}",
        "receive: {attach: {port: 4321, pid: 7}}",
        "receive: {attach: {port: 53}}",
        "receive: {attach: {pid: 0}}",
        "receive: {attach: {unit: a b}}",
        "receive: {attach: {process: unbound}}",
        "receive: {attach: {port: 4321}, command: [./server], cpus: 1}",
        "traffic: {protocol: tcp}\nreceive: {attach: {port: 4321}}",
        "traffic: {echo: 1}\nreceive: {attach: {port: 4321}}",
    ],
)
def test_what_names_no_process_is_refused(lines: str, golden: Golden) -> None:
    """With what to write instead."""
    golden.check("\n".join(line for line in refused(lines) if "a TCP stream" not in line))


def test_a_built_in_lab_has_no_process_to_attach_to(tmp_path: Path, golden: Golden) -> None:
    """It is said with the line, before any host is asked; real hosts are left to say."""
    write(tmp_path, "question: Why?\nreceive:\n  attach: {pid: 7}\n", "x.yaml")
    experiments = load.load_experiments(["x.yaml"])
    with golden.raises(InputError):
        refuse_together(experiments, load.load_lab("local"))
    refuse_together(experiments, load.load_lab("two-hosts"))


def test_a_program_answers() -> None:
    """Each datagram, or none is awaited."""
    beside = {"receive": {"command": COMMAND}}
    assert Answers() == trial(traffic={"answers": "count"}, **beside).traffic.answers
    payload = {"hex": "00000000"}
    for written, answers in (
        ({"id_at": 2}, Answers(2)),
        ({"id_at": 0, "timeout": "200ms"}, Answers(0, 200 * 10**6)),
    ):
        traffic = {"answers": written, "payload": payload, "rate": "65536pps"}
        assert answers == trial(traffic=traffic, **beside).traffic.answers
    assert None is trial(traffic={"answers": "off"}, **beside).traffic.answers


@pytest.mark.parametrize(
    "lines",
    [
        "traffic: {answers: count}",
        "traffic: {answers: all}\nreceive: {command: [./a]}",
        "traffic: {answers: count}\nsend: {zerocopy: true}\nreceive: {command: [./a]}",
        "traffic: {answers: count, protocol: tcp}",
        "traffic: {answers: count}\nsend: {call: af_xdp}\nreceive: {command: [./a]}",
        f"traffic: {{answers: {{id_at: 0}}}}\n{PROGRAM}",
        "traffic: {answers: {id_at: 2}, payload: [{hex: '000000'}, {hex: '00000000'}]}\n" + PROGRAM,
        f"traffic: {{answers: {{id_at: -1}}, {IDS}}}\n{PROGRAM}",
        f"traffic: {{answers: {{id_at: 65506}}, {IDS}}}\n{PROGRAM}",
        f"traffic: {{answers: {{timeout: 1s}}, {IDS}}}\n{PROGRAM}",
        f"traffic: {{answers: {{id_at: 0, at: 1}}, {IDS}}}\n{PROGRAM}",
        f"traffic: {{answers: {{id_at: 0, timeout: 1h}}, {IDS}}}\n{PROGRAM}",
        f"traffic: {{answers: {{id_at: 0}}, {IDS}, rate: 65537pps}}\n{PROGRAM}",
        f"traffic: {{answers: {{id_at: 0}}, {IDS}, flows: {{from: 1000-1256}}}}\n{PROGRAM}",
        f"send: {{workers: 2}}\n{PROGRAM}\ntraffic: {{answers: {{id_at: 0}}, {IDS}, flows: {{spread: each}}}}",
    ],
)
def test_answers_that_nobody_can_give_or_hear(lines: str, golden: Golden) -> None:
    """On its line, with what to write."""
    golden.check("\n".join(refused(lines)))


def test_variants_are_programs() -> None:
    """So that one file compares servers."""
    experiment = loaded(
        "variants:",
        "  a: {receive.command: [./a]}",
        "  b: {receive.command: [./b], receive.user: nobody}",
        "  loops: {receive.batch: 1}",
    )
    assert [("./a",), ("./b",), None] == [point.receive.command for point in experiment.points]


def test_payloads_are_read_into_the_experiment(tmp_path: Path) -> None:
    """So that its stored text is enough, whatever becomes of the file, also below ``extends``."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "query.bin").write_bytes(b"\x00\xff?")
    text = 'traffic: {payload: [{file: query.bin}, {hex: "01 02"}]}\nreceive: {command: [./a]}\n'
    write(tmp_path, f"question: Why?\n{text}", "base/x.yaml")
    write(tmp_path, "question: Why else?\nextends: base/x.yaml\n", "y.yaml")
    for name in ("base/x.yaml", "y.yaml"):
        (experiment,) = load.load_experiments([name])
        traffic = experiment.points[0].traffic
        assert ("00ff3f", "0102") == traffic.payload
        assert (3, (3, 2)) == (traffic.size_bytes, traffic.datagrams.sizes_bytes)
        write(tmp_path, experiment.text, "again/z.yaml")
        assert traffic == load.load_experiments(["again/z.yaml"])[0].points[0].traffic


def test_the_longest_payload_is_read_again_from_the_experiments_text(tmp_path: Path) -> None:
    """As by ``plan``, ``run`` and ``--resume``; its points have it once."""
    content = bytes(n % 251 for n in range(65_507))
    (tmp_path / "long.bin").write_bytes(content)
    experiment = loaded(
        "traffic: {payload: {file: long.bin}, rate: 1kpps}",
        "receive: {command: [./a, b]}",
        "sweep: {send.batch: [1, 2, 3], traffic.flows.from: [20000, 20001]}",
    )
    assert experiment.points == load.experiment_of(experiment).points
    assert {content.hex()} == {text for each in experiment.points for text in each.traffic.payload}
    shared = [
        (id(each.traffic.payload), id(each.receive.command), id(each.receive.folder))
        for each in experiment.points
    ]
    assert (6, 1) == (len(shared), len({*shared}))


def test_a_payload_that_is_too_long_is_not_shown() -> None:
    """It may be of a file."""
    hexadecimal = "ab" * 65_508
    text = "\n".join(refused(f"traffic: {{payload: {{hex: {hexadecimal}}}}}", PROGRAM))
    assert "x.yaml:2: traffic.payload.hex: too long; expected: at most 131014 characters" in text
    assert "abab" not in text


def test_variants_have_payloads(tmp_path: Path) -> None:
    """By the whole path, or within a map."""
    (tmp_path / "a.bin").write_bytes(b"a")
    experiment = loaded(
        "receive: {command: [./a]}",
        "variants:",
        "  file: {traffic.payload: {file: a.bin}}",
        "  hex: {traffic: {payload: {hex: '62'}}}",
        "  ours: {traffic.size: 64B}",
    )
    assert [("61",), ("62",), None] == [point.traffic.payload for point in experiment.points]


@pytest.mark.parametrize(
    "lines",
    [
        "traffic: {payload: {hex: 0x0g}}\nreceive: {command: [./a]}",
        'traffic: {payload: {hex: ""}}\nreceive: {command: [./a]}',
        "traffic: {payload: {hex: 1e3}}\nreceive: {command: [./a]}",
        "traffic: {payload: []}\nreceive: {command: [./a]}",
        "traffic: {payload: {file: none.bin}}\nreceive: {command: [./a]}",
        "traffic: {payload: {file: empty.bin}}\nreceive: {command: [./a]}",
        "traffic: {payload: {file: long.bin}}\nreceive: {command: [./a]}",
        "traffic: {payload: {file: a.bin, hex: '00'}}\nreceive: {command: [./a]}",
        "traffic: {payload: {hex: '00'}}",
        "traffic: {payload: {hex: '00'}, size: 1B}\nreceive: {command: [./a]}",
        "traffic: {payload: {hex: '00'}}\nsend: {gso: 2}\nreceive: {command: [./a]}",
        "traffic: {payload: {hex: '00'}}\nsend: {call: af_xdp}\nreceive: {command: [./a]}",
        "traffic: {payload: [{hex: '00'}, {hex: '0000'}], rate: 1Mbps}\nreceive: {command: [./a]}",
    ],
)
def test_what_is_no_payload_is_refused(lines: str, golden: Golden, tmp_path: Path) -> None:
    """On its line, with what to write."""
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "long.bin").write_bytes(bytes(65508))
    golden.check("\n".join(refused(lines)))


def test_payloads_of_an_experiment_fit_into_its_text(tmp_path: Path, golden: Golden) -> None:
    """All files together."""
    (tmp_path / "half.bin").write_bytes(bytes(40_000))
    files = "[{file: half.bin}, {file: half.bin}]"
    golden.check(refused(f"traffic: {{payload: {files}}}", "receive: {command: [./a]}"))


def test_payloads_of_all_points_fit_into_the_head_of_a_run(golden: Golden) -> None:
    """It has each as often as there are points: 4,096 made 508 MiB of 64 KiB."""
    payload = f"traffic: {{payload: [{{hex: {'00' * 40_000}}}]}}"
    sizes = ", ".join(str(n) for n in range(1, 1025))
    golden.check(refused(payload, "receive: {command: [./a]}", f"sweep: {{send.batch: [{sizes}]}}"))

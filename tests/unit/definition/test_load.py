"""From names and files to experiments: what is accepted, which files are meant, and extends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from definition_fixture import loaded, refused, write
from golden import Golden

from udpbench.definition import load
from udpbench.errors import InputError
from udpbench.host_settings import set_keys
from udpbench.model.experiment import Flows, Receive, Send, Traffic
from udpbench.units import Rate


def test_a_question_alone_is_an_experiment_with_every_default() -> None:
    """What is left out is what the model's dataclasses say."""
    experiment = loaded()
    trial = experiment.points[0]
    assert ("x", "Why?", 7, ()) == (
        experiment.name,
        experiment.question,
        experiment.repetitions,
        experiment.expect,
    )
    assert (Traffic(), Send(), Receive()) == (trial.traffic, trial.send, trial.receive)
    assert (5 * 10**9, 10**9) == (trial.duration_ns, trial.warmup_ns)
    assert ("", None, {}, 1, "x#1") == (
        trial.point,
        trial.variant,
        trial.values,
        trial.repetition,
        trial.name,
    )


def test_every_supported_key_reaches_its_field() -> None:
    """Text with units becomes integers, keys become fields."""
    trial = loaded(
        "traffic: {protocol: udp, family: 4, size: 64B, rate: 40kpps, count: 1k, ttl: 2,",
        '  flows: {from: 1000-1001, to: "receiver.addresses[1-2]:53", queues: any, spread: each}}',
        "send: {workers: 2, workers_as: threads, cpus: 0-1, call: sendmmsg, batch: 8, gso: off,",
        "  pace: sleep, bucket: 1ms, buffer: 64KiB, force_buffer: false, priority: normal}",
        "receive: {workers: 1, cpus: any, batch: 4, wait: block, room: 2KiB, work: 3us,",
        "  buffer: default, fault: none, log: none, read: header, gro: false}",
        "duration: 2s",
        "warmup: 0s",
        "path_check: explained",
        "explain: false",
        "fresh: true",
    ).points[0]
    assert (
        Traffic(
            size_bytes=64,
            flows=Flows("1000-1001", "receiver.addresses[1-2]:53", "any", "each"),
            rate=Rate(packets_per_s=40000),
            count_packets=1000,
            ttl=2,
        )
        == trial.traffic
    )
    assert (
        Send(
            workers=2,
            cpus="0-1",
            batch=8,
            pace="sleep",
            bucket_ns=10**6,
            buffer_bytes=65536,
            force_buffer=False,
        )
        == trial.send
    )
    assert Receive(cpus="any", batch=4, room=2048, work_ns=3000, buffer_bytes=None) == trial.receive
    assert (2 * 10**9, 0, "explained") == (trial.duration_ns, trial.warmup_ns, trial.path_check)
    assert (True, False) == (trial.fresh, trial.warmup_auto)


def test_a_warm_up_of_its_own_accord_is_at_most_a_second() -> None:
    """What plans and limits count with."""
    trial = loaded("warmup: auto").points[0]
    assert (10**9, True) == (trial.warmup_ns, trial.warmup_auto)


@pytest.mark.parametrize("unit", ["us", "\u00b5s", "\u03bcs"])
def test_microseconds_have_three_spellings(unit: str) -> None:
    """As keyboards, Greek and ASCII have it; also in the schema, for editors."""
    (point,) = loaded(f"receive: {{work: 10{unit}, wait: nap 5{unit}}}").points
    assert 10_000 == point.receive.work_ns
    definitions = load.schema()["$defs"]
    assert re.match(definitions["Receive"]["properties"]["work"]["pattern"], f"10{unit}")


@pytest.mark.parametrize("value", ["64Mib", "64mb", "64M", "1.5 GIB"])
def test_a_misspelt_size_is_no_text_for_a_sysctl(value: str, golden: Golden) -> None:
    """The kernel would refuse it in the middle of a run, or read 64."""
    (problem,) = refused(f"settings: {{receiver: {{sysctl: {{net.core.rmem_max: {value}}}}}}}")
    golden.check(problem)


def test_settings_become_plain_data_in_base_units() -> None:
    """A trial carries its settings by field name, only those that were set, as JSON would."""
    trial = loaded(
        "settings:",
        "  sender: {mtu: 9000, txqueuelen: 100, qdisc: {tbf: {rate: 1Gbps, burst: 64KiB,",
        "    limit: 1MiB}}}",
        "  receiver:",
        "    link: {queues: 2, receive: rps, cpus: 0-1, rate: none}",
        "    sysctl: {net.core.rmem_max: 64MiB, net.ipv4.udp_mem: 1 2 3, net.ipv4.ip_forward: 0}",
        "    ethtool: {features: {gro: true}}",
        "    napi: {threaded: true, cpus: 1, defer-hard-irqs: 2, gro-flush-timeout: 200us}",
        "    optional: [napi.defer-hard-irqs, sysctl.net.core.rmem_max]",
    ).points[0]
    assert {
        "sender": {
            "mtu_bytes": 9000,
            "txqueuelen_packets": 100,
            "qdisc": {"tbf": {"rate_bps": 10**9, "burst_bytes": 65536, "limit_bytes": 2**20}},
        },
        "receiver": {
            "link": {"queues": 2, "receive": "rps", "cpus": "0-1", "rate_bps": "none"},
            "sysctl": {
                "net.core.rmem_max": 64 * 2**20,
                "net.ipv4.udp_mem": "1\t2\t3",
                "net.ipv4.ip_forward": 0,
            },
            "ethtool": {"features": {"gro": True}},
            "napi": {
                "threaded": True,
                "cpus": "1",
                "defer_hard_irqs": 2,
                "gro_flush_timeout_ns": 200000,
            },
            "optional": ["napi.defer-hard-irqs", "sysctl.net.core.rmem_max"],
        },
    } == set_keys(trial.settings)


def test_with_a_count_the_duration_is_a_longer_deadline() -> None:
    """A counted phase may take 60 s unless the file says otherwise."""
    assert 60 * 10**9 == loaded("traffic: {count: 1M}").points[0].duration_ns


def test_what_is_no_plain_data_is_refused(golden: Golden) -> None:
    """An object that YAML cannot hold is an input error, and keys that are no text become text."""
    with pytest.raises(InputError) as caught:
        load.load_experiment_data({"question": object()}, "x")
    assert str(caught.value).startswith("x: not plain data: ")
    with pytest.raises(InputError) as caught:
        load.load_experiment_data({"question": "x", "sweep": {1: [1]}, "send": None}, "x")
    golden.check(str(caught.value))


def test_plain_data_may_extend_a_shipped_experiment() -> None:
    """``extends`` is obeyed wherever the data came from, and shared parts are no aliases."""
    shared = {"batch": 4}
    data = {"question": "x", "extends": "smoke", "send": shared, "receive": shared}
    experiment = load.load_experiment_data(data, "x")
    assert (1, 4, 4) == (
        experiment.repetitions,
        experiment.points[0].send.batch,
        experiment.points[0].receive.batch,
    )


def test_plain_data_that_reads_off_as_false_is_understood() -> None:
    """Data from another YAML reader may hold ``off`` as false."""
    data = {"question": "x", "send": {"gso": False}}
    assert "off" == load.load_experiment_data(data, "x").points[0].send.gso


def test_a_name_is_a_path_a_folder_or_a_shipped_name() -> None:
    """A file found twice is loaded once, and the order is that of the names."""
    write(Path.cwd(), "question: b", "some/b.yaml")
    write(Path.cwd(), "question: a", "some/a.yml")
    write(Path.cwd(), "hosts: []", "some/other.yaml")
    experiments = load.load_experiments(["smoke", "some/b.yaml", "some"])
    assert ["smoke", "b", "a"] == [experiment.name for experiment in experiments]


def test_files_without_a_question_are_left_alone_in_a_folder() -> None:
    """Even if they are no YAML at all."""
    write(Path.cwd(), "question: b", "some/b.yaml")
    write(Path.cwd(), "hosts: []", "some/lab.yaml")
    write(Path.cwd(), "a: [", "some/broken.yaml")
    Path("some/binary.yaml").write_bytes(b"\xff")
    assert 1 == len(load.load_experiments(["some"]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smok", "smok: neither a file, a folder nor a shipped experiment; did you mean smoke?"),
        ("", "neither a file, a folder nor a shipped experiment; known: compare/"),
        ("x" * 300, "x" * 59 + "…: neither a file, a folder nor a shipped experiment; known: comp"),
        ("../x", "../x: no such file or folder; name an existing one"),
        (
            "/nowhere/x",
            "/nowhere/x: no such file or folder; /nowhere is not a readable folder",
        ),
        ("x.yaml", "x.yaml: no such file or folder; name an existing one"),
        ("broken/c", "broken/c: no such file or folder; name an existing one"),
        ("broken/b.yml", "broken/b.yml: no such file or folder; did you mean broken/b.yaml?"),
        ("lab.yaml", "lab.yaml: not an experiment: it has no question; add question: …; name a "),
        ("empty", "empty: no experiment found; name a file with a question"),
        (
            "broken",
            "broken/b.yaml:1: invalid YAML: expected the node content, but found '<stream end>'",
        ),
    ],
)
def test_a_name_that_stands_for_no_experiment_is_refused(name: str, message: str) -> None:
    """A named file must be one, a folder must hold one, and a broken one is not passed over."""
    write(Path.cwd(), "sender: []", "lab.yaml")
    write(Path.cwd(), "question: [", "broken/b.yaml")
    Path("empty").mkdir()
    with pytest.raises(InputError) as caught:
        load.load_experiments([name])
    assert str(caught.value).startswith(message)


def test_two_experiments_of_one_name_are_refused() -> None:
    """Their trials could not be told apart."""
    write(Path.cwd(), "question: x", "a/x.yaml")
    write(Path.cwd(), "question: x", "b/x.yaml")
    with pytest.raises(InputError) as caught:
        load.load_experiments(["a", "b"])
    message = "b/x.yaml: x is also the name of a/x.yaml; rename one, or run them separately"
    assert message == str(caught.value)


def test_extends_merges_maps_and_replaces_the_rest() -> None:
    """Maps merge; lists, scalars, sweep, variants and expect are replaced whole."""
    write(
        Path.cwd(),
        "question: base\nsend: {workers: 1, batch: 8}\nvariants: {a: {send.batch: 1}, b: {}}\n"
        "expect: [unaccounted == 0]\nrepetitions: 3\n",
        "base.yaml",
    )
    experiment = loaded("extends: base.yaml", "send: {batch: 4}", "variants: {c: {}}")
    assert ("Why?", 3, ["c"]) == (
        experiment.question,
        experiment.repetitions,
        [trial.point for trial in experiment.points],
    )
    assert 4 == experiment.points[0].send.batch
    assert 1 == len(experiment.expect)


def test_the_stored_text_of_an_extending_experiment_stands_alone() -> None:
    """It loads again without the file it extends and without ``--set``."""
    write(Path.cwd(), "question: base\nsend: {batch: 8}\n", "base.yaml")
    experiment = loaded("extends: base.yaml", sets=("receive.batch=2",))
    Path("base.yaml").unlink()
    write(Path.cwd(), experiment.text)
    again = load.load_experiments(["x.yaml"])[0]
    assert experiment.points == again.points


def test_a_problem_in_an_extended_file_is_reported_there(golden: Golden) -> None:
    """The line is that of the file the value stands in."""
    write(Path.cwd(), "question: base\nsend:\n  batch: 0\n", "base.yaml")
    golden.check(refused("extends: base.yaml"))


def test_a_shipped_experiment_can_be_extended() -> None:
    """Where no file of the name lies beside, a shipped name is meant."""
    assert 1 == loaded("extends: smoke").repetitions


def test_a_shipped_experiment_can_be_extended_from_anywhere(tmp_path: Path) -> None:
    """Also by a file that is named from another folder, and one that itself is extended."""
    write(tmp_path, "question: Mine?\nextends: drops/small-buffer\n", "base.yaml")
    write(tmp_path, "question: Yours?\nextends: base.yaml\nrepetitions: 4\n", "mine.yaml")
    (shipped,) = load.load_experiments(["drops/small-buffer"])
    (mine,) = load.load_experiments([str(tmp_path / "mine.yaml")])
    assert ("Yours?", 4) == (mine.question, mine.repetitions)
    assert [trial.receive for trial in shipped.points] == [point.receive for point in mine.points]


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("nowhere.yaml", "x.yaml:2: extends: nowhere.yaml: neither a file in this folder nor a"),
        ("x.yaml", "x.yaml:2: extends: x.yaml: extends itself: x.yaml → x.yaml; break the cycle"),
        ("y.yaml", "y.yaml:1: extends: x.yaml: extends itself: x.yaml → y.yaml → x.yaml; break"),
        ("0.yaml", "6.yaml:1: extends: 7.yaml: extends too deeply; expected: at most 8 files"),
    ],
)
def test_extends_needs_a_file_and_no_circle(base: str, message: str) -> None:
    """A missing file, a circle and an endless chain are refused."""
    write(Path.cwd(), "extends: x.yaml\n", "y.yaml")
    for i in range(9):
        write(Path.cwd(), f"extends: {i + 1}.yaml\n", f"{i}.yaml")
    assert refused(f"extends: {base}")[0].startswith(message)


@pytest.mark.parametrize(
    ("expectation", "expects"), [("unsent < 10", True), ("unaccounted == 0", False)]
)
def test_a_trial_knows_whether_unsent_packets_are_expected(expectation: str, expects: bool) -> None:
    """Only then may a sender fall short of its load."""
    data = {"question": "x", "expect": [expectation]}
    (trial,) = load.load_experiment_data(data, "x").points
    assert expects == trial.expects_unsent

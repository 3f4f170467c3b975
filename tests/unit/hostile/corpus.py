"""Hostile files: real ones with one thing changed, and ones made by hand.

Not a test. A case writes its files into an empty folder, and returns what is done with them.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from analysis.build import experiment, failed, paced, record, series
from report.stored import stored

from hostile.answers import answered
from hostile.forked import commands
from udpbench.definition.load import load_lab
from udpbench.errors import UdpbenchError
from udpbench.model.host import Change, Setting
from udpbench.model.limits import COUNTERS_MAX, DAY_NS, EXPECT_MAX
from udpbench.report.data_frames import read_run as read_frames
from udpbench.report.embedded_data import HEAD, LINK, packed
from udpbench.store.dataset import read_runs, write_runs
from udpbench.store.pairs import beside, differing_facts

Work = Callable[[], list[int]]
Case = Callable[[Path], Work]
MIB = 2**20

# --- values and texts that nobody expects ----------------------------------------------------------

VALUES = {
    "null": "null",
    "true": "true",
    "negative": "-1",
    "fraction": "0.5",
    "infinite": "1e400",
    "nan": "NaN",
    "infinity": "-Infinity",
    "digits": "9" * 5000,
    "long-integer": "9" * 4000,
    "empty-text": '""',
    "escapes": json.dumps("\x1b[31m\x00</script><b>\u202e\u2028=cmd()"),
    "surrogate": '"\\ud800"',
    "long-text": '"' + "x" * MIB + '"',
    "empty-list": "[]",
    "empty-object": "{}",
    "deep": "[" * 60 + "]" * 60,
    "deeper": "[" * 100_000 + "]" * 100_000,
    "many-lists": "[" + ",".join(["[]"] * MIB) + "]",
    "many-objects": "[" + ",".join(["{}"] * MIB) + "]",
    "many-integers": "[" + ",".join(["9999"] * MIB) + "]",
    "strange-keys": '{"\\u001b[2J": {"": {"a": [null]}}}',
    "many-keys": "{" + ",".join(f'"{n:x}":1' for n in range(200_000)) + "}",
}
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "newline": lambda _: b"\n",
    "half": lambda data: data[: len(data) // 2],
    "one-byte-less": lambda data: data[:-1],
    "nul": lambda data: data[:50] + b"\0" * 50 + data[50:],
    "zeros": lambda _: bytes(4 * MIB),
    "not-utf-8": lambda data: data[:40] + b"\xff\xfe" + data[40:],
    "utf-16": lambda data: data.decode(errors="replace").encode("utf-16"),
    "bom": lambda data: b"\xef\xbb\xbf" + data,
    "gzip": lambda data: gzip.compress(data),
    "brackets": lambda _: b"[" * MIB,
    "quotes": lambda _: b'"' * MIB,
    "reversed": lambda data: data[::-1],
    "twice": lambda data: data + data,
    "one-line": lambda data: data.replace(b"\n", b" "),
    "random": lambda _: bytes((n * n + 7 * n) % 256 for n in range(100_000)),
}


def fifo(path: Path) -> None:
    """Make a pipe without a writer."""
    os.mkfifo(path)


def folder(path: Path) -> None:
    """Make a folder in a file's place."""
    path.mkdir()


def listening(path: Path) -> None:
    """Make a socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has room for 108 bytes
        listener.bind(path.name)
        os.chdir(here)


def looping(path: Path) -> None:
    """Make a link to itself."""
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    """Make a link to a device that never ends."""
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    """Make a link to a device that makes another each time that it is opened."""
    path.symlink_to("/dev/ptmx")


def kernel(path: Path) -> None:
    """Make a link to a file of the kernel."""
    path.symlink_to("/proc/self/maps")


def sparse(path: Path) -> None:
    """Make a file of a TiB that takes no disk."""
    with path.open("wb") as file:
        file.truncate(2**40)


def dangling(path: Path) -> None:
    """Make a link to nothing."""
    path.symlink_to("nowhere")


NO_FILES = (fifo, folder, listening, looping, endless, terminal, kernel, sparse, dangling)


def _named(name: str) -> str:
    return name.replace("_", "-")


def _written(path: Path, change: Callable[[bytes], bytes], data: bytes) -> None:
    path.write_bytes(change(data))


def misplaced(make: Callable[[Path], None], path: Path) -> None:
    """Put something that is no file in a file's place."""
    path.unlink(missing_ok=True)
    make(path)


# --- run folders ------------------------------------------------------------------------------------

PLACES = {
    "run.jsonl": (
        (0, "seed"),
        (0, "command"),
        (0, "experiments"),
        (0, "lab_text"),
        (1, "record"),
        (1, "sequence"),
        (1, "record", "trial", "values"),
        (1, "record", "trial", "point"),
        (1, "record", "facts"),
        (1, "record", "phases", 0, "after", "right", "counters"),
        (1, "record", "overhead_ns"),
        (2, "error"),
    ),
    "series.jsonl": ((0, "samples"), (0, "snapshots"), (0, "samples", 0, "counts")),
}
NO_BLOCKS = '[{"a":"rate=1kpps","b":"b","metric":"delivered_pps","margin":0.1,"blocks":[]}]'
LOOKS = (
    ("show", "run"),
    ("show", "--json", "run"),
    ("compare", "run"),
    ("report", "--format", "csv", "--out", "out", "run"),
)


def run_folder(at: Path) -> Path:
    """Write a real run."""
    trial = paced(values={"traffic.rate": "1kpps"}, point="rate=1kpps")
    declared = experiment(points=[trial])
    stored(at / "run", [record(of=trial, series=series([500, 500]))], declared)
    return at / "run"


def with_value(data: bytes, place: tuple[Any, ...], value: str) -> bytes:
    """Return JSON lines with another value, as text, at a place."""
    lines = [json.loads(line) for line in data.splitlines()]
    inner: Any = lines
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = "@here@"
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    return text.replace('"@here@"', value).encode()


def _changed_run(name: str, change: Callable[[bytes], bytes], at: Path) -> Work:
    path = run_folder(at) / name
    _written(path, change, path.read_bytes())
    return commands(*LOOKS)


def _misplaced_run(name: str, make: Callable[[Path], None], at: Path) -> Work:
    misplaced(make, run_folder(at) / name)
    return commands(*LOOKS)


def _sessions(data: bytes) -> bytes:
    """Return a run of 100 trials that went on three thousand times."""
    header, trial, _ = data.splitlines()
    again = b'{"kind":"resumed","started_at":"t","udpbench":"0","command":[]}'
    lines = [header]
    for number in range(100):
        other = trial.replace(b'"repetition":1', b'"repetition":%d' % (number + 1))
        lines += [other, *[again] * 30]
    return b"\n".join(lines) + b"\n"


def _endless_repetitions(data: bytes) -> bytes:
    """Return a header alone, of trials without end."""
    header = json.loads(data.splitlines()[0])
    (of,) = header["experiments"]
    of["repetitions"] = 10_000
    of["points"] = [{**of["points"][0], "point": f"p{number}"} for number in range(160)]
    return json.dumps(header).encode() + b"\n"


def _trials(data: bytes, count: int, values: Sequence[int]) -> list[bytes]:
    """Return the records of a run's only trial again and again, at points a=1 and so on."""
    lines = []
    for value in values:
        plain = json.loads(data.splitlines()[1])
        plain["record"]["trial"]["point"] = f"a={value}"
        line = json.dumps(plain).encode()
        lines += [line.replace(b'"repetition": 1', b'"repetition": %d' % n) for n in range(count)]
    return lines


def _of_points(data: bytes, values: Sequence[int]) -> Any:
    """Return a run's header with other points."""
    header = json.loads(data.splitlines()[0])
    (of,) = header["experiments"]
    of["points"] = [{**of["points"][0], "point": f"a={value}"} for value in values]
    return header


def _pairs_of_trials(data: bytes) -> bytes:
    """Return a run of two points, of which each trial is compared with each 256 times."""
    header = _of_points(data, (1, 2))
    sides = [{"metric": "received_packets", "point": f"a={n}", "factor": 1.0} for n in (1, 2)]
    header["experiments"][0]["expect"] = [
        {"text": "x", "left": sides[0], "op": ">=", "right": {**sides[1], "factor": n / 10**4}}
        for n in range(EXPECT_MAX)
    ]
    return b"\n".join([json.dumps(header).encode(), *_trials(data, 200, (1, 2))]) + b"\n"


def _two_runs(at: Path) -> Work:
    """Write two runs of 600 trials each of the same point."""
    path = run_folder(at) / "run.jsonl"
    data = path.read_bytes()
    header = json.dumps(_of_points(data, (1,))).encode()
    path.write_bytes(b"\n".join([header, *_trials(data, 600, (1,))]) + b"\n")
    (at / "run" / "series.jsonl").write_bytes(b"")
    shutil.copytree(at / "run", at / "other")
    return commands(("compare", "run", "other"))


def _many_answers(data: bytes) -> bytes:
    """Return a header alone, whose expectations are compared at each of its points."""
    header = _of_points(data, range(500))
    header["experiments"][0]["expect"] = [
        {
            "text": f"{number}",
            "left": {"factor": 1.0, "metric": "delivered_pps", "point": None},
            "op": ">",
            "right": {"factor": 1.0 + number, "metric": "delivered_pps", "point": "a=1"},
        }
        for number in range(EXPECT_MAX)
    ]
    return json.dumps(header).encode() + b"\n"


def _unfinished(data: bytes, place: tuple[Any, ...], value: str) -> bytes:
    """Return a run that lacks trials and could be resumed, with another value in its header."""
    lab = json.dumps(load_lab("local").text)
    data = with_value(data, (0, "experiments", 0, "repetitions"), "9")
    return with_value(with_value(data, (0, "lab_text"), lab), (0, *place), value)


def _late_millisecond(at: Path) -> Work:
    """Write a load of which one millisecond was counted, a day after its start."""
    run_folder(at)
    for name, place, value in (
        ("run.jsonl", (1, "record", "overhead_ns"), f'{{"measured":{DAY_NS}}}'),
        ("series.jsonl", (0, "samples", 0, "worker"), '"left.sender0"'),
        ("series.jsonl", (0, "samples", 0, "first_ms"), "86399000"),
        ("series.jsonl", (0, "samples", 0, "packets_per_ms"), f"[1{',0' * 998},1]"),
    ):
        path = at / "run" / name
        path.write_bytes(with_value(path.read_bytes(), place, value))
    return commands(("report", "--format", "html", "--out", "out", "run"))


MEASURED = (1, "record", "phases", 0)
RIGHT_FACTS = (1, "record", "facts", "right")
MANY = 2048
"""CPUs of a host, which all counters and processes name."""


def _with_values(places: dict[tuple[Any, ...], Any], data: bytes) -> bytes:
    for place, value in places.items():
        data = with_value(data, place, json.dumps(value))
    return data


def _many(_: object = None) -> dict[tuple[Any, ...], Any]:
    """Return a host of many CPUs on which no worker is pinned."""
    cpus = [*range(MANY)]
    queues = {f"{cpu}": [cpu] for cpu in cpus}
    irqs = {f"{cpu}": 4 for cpu in cpus}
    counters = {f"cpu.{cpu}.idle_ns": cpu for cpu in cpus}
    counters |= {f"interrupt.4.cpu{cpu}": cpu for cpu in cpus}
    process = {"name": "p", "cpu_ns": 10**8, "whose": "other"}
    facts = {"cpus": cpus, "siblings": queues, "queue_cpus": queues, "queue_irqs": irqs}
    return {
        **{(*RIGHT_FACTS, key): value for key, value in facts.items()},
        (*MEASURED, "stats", 1, "cpu"): None,
        (*MEASURED, "before", "right", "counters"): counters,
        (*MEASURED, "after", "right", "counters"): dict.fromkeys(counters, 10**9),
        (*MEASURED, "after", "right", "processes"): [{**process, "pid": cpu} for cpu in cpus],
    }


def _named_strangely(name: str) -> dict[tuple[Any, ...], Any]:
    """Return counters whose numbers are none."""
    names = ("cpu.{}.idle_ns", "cpu.{}.user_ns", "interrupt.4.cpu{}", "interrupt.{}.cpu0")
    names += ("qstats.receive0.rx-{}.packets", "qdisc.receive0.tx_queue_{}.packets")
    counters = {each.format(name): 1 for each in names}
    return {
        (*RIGHT_FACTS, "queue_irqs"): {"0": 4},
        (*MEASURED, "before", "right", "counters"): counters,
        (*MEASURED, "after", "right", "counters"): dict.fromkeys(counters, 2),
    }


def _numbered() -> Iterator[tuple[str, dict[tuple[Any, ...], Any]]]:
    """Yield what has many numbers, and numbers that are none."""
    yield "many-cpus", _many()
    for label, name in (("word", "abc"), ("digits", "9" * 5000), ("arabic", "٣")):
        yield f"counters-{label}", _named_strangely(name)
        for key, value in (("queue_cpus", [0]), ("queue_irqs", 4), ("siblings", [0])):
            yield f"{_named(key)}-{label}", {(*RIGHT_FACTS, key): {name: value}}
        process = {"pid": 1, "name": "p", "cpu_ns": 10**8, "whose": "run", "by_cpu_ns": {name: 5}}
        yield f"by-cpu-{label}", {(*MEASURED, "after", "right", "processes"): [process]}


def _several_cpus(number: int) -> list[int]:
    """Return one of many sets of CPUs that have one in common."""
    return [0, 1 + number % 4000, *([4001 + number // 4000] if number >= 4000 else [])]


def _cpu_sets() -> dict[tuple[Any, ...], Any]:
    """Return queues and processes of 5,000 different sets of CPUs each."""
    process = {"name": "p", "cpu_ns": 10**8, "whose": "other"}
    processes = [{**process, "pid": n + 10, "cpus": _several_cpus(n)} for n in range(5000)]
    return {
        (*RIGHT_FACTS, "queue_cpus"): {str(n): _several_cpus(n) for n in range(5000)},
        (*MEASURED, "after", "right", "processes"): processes,
    }


def _worker_days() -> dict[tuple[Any, ...], Any]:
    """Return 4,000 readers that read for a day, of a load that a sender offered."""
    times = {"first_ns": 5_001_000_000, "last_ns": DAY_NS}
    stats = {"role": "receiver", "cpu": 0, "socket_inodes": [], "cpus_seen": [0], "buffer_bytes": 1}
    reads = [
        dict.fromkeys(("read_packets", "received_packets"), int(n % 4 == 0)) for n in range(4000)
    ]
    workers = [
        {**stats, "worker": f"right.receiver{n}", "counts": {**each, **times}}
        for n, each in enumerate(reads)
    ]
    sent = {"attempted_packets": 1000, "sent_packets": 1000, **times}
    sender = {"worker": "left.sender0", "role": "sender", "cpu": 1, "cpus_seen": [1]}
    workers += [{**stats, **sender, "counts": sent}]
    return {
        (*MEASURED, "stats"): workers,
        (1, "record", "overhead_ns"): {"measured": DAY_NS},
    }


def _words() -> dict[tuple[Any, ...], Any]:
    """Return two hosts with 40,000 different words each."""
    return {
        (1, "record", "facts", host, "environment"): {
            "offloads": " ".join(f"{host}{n}" for n in range(40_000))
        }
        for host in ("left", "right")
    }


def _findings() -> dict[tuple[Any, ...], Any]:
    """Return 30,000 different findings, half of them only counted."""
    kinds = ("note", "warning")
    findings = [{"severity": kinds[n % 2], "what": f"w{n}", "where": "x"} for n in range(30_000)]
    return {(1, "record", "findings"): findings}


def _large_run(places: Callable[[], dict[tuple[Any, ...], Any]], at: Path) -> Work:
    path = run_folder(at) / "run.jsonl"
    _written(path, partial(_with_values, places()), path.read_bytes())
    return commands(("show", "run"), ("report", "--format", "html", "--out", "out", "run"))


def _rounds(at: Path) -> Work:
    """Write 60,000 counters that were read sixty times."""
    counters = {f"x.{n}": 1 for n in range(60_000)}
    places = {(*MEASURED, edge, "right", "counters"): counters for edge in ("before", "after")}
    path = run_folder(at) / "run.jsonl"
    _written(path, partial(_with_values, places), path.read_bytes())
    clocks = [10**9 * n for n in range(1, 61)]
    hosts = ("left", "right", "machine")
    looks = [{"host": h, "clock_ns": ns, "counters": {}} for ns in clocks for h in hosts]
    series = at / "run" / "series.jsonl"
    series.write_bytes(with_value(series.read_bytes(), (0, "snapshots"), json.dumps(looks)))
    return commands(("show", "--json", "run"))


LARGE = {
    "cpu-sets": _cpu_sets,
    "worker-days": _worker_days,
    "words": _words,
    "findings": _findings,
}
"""What a host or a file may say in half a megabyte."""


def _no_folder(make: Callable[[Path], None], at: Path) -> Work:
    misplaced(make, at / "run")
    return commands(*LOOKS)


def runs() -> Iterator[tuple[str, Case]]:
    """Yield every case of a run folder."""
    for name, places in PLACES.items():
        for number, place in enumerate(places):
            key = "-".join(map(str, place[1:]))
            for index, (label, value) in enumerate(VALUES.items()):
                if (index + number) % 3 == 0:  # each value and each place, not each pair
                    change = partial(with_value, place=place, value=value)
                    yield f"run-{key}-{label}", partial(_changed_run, name, change)
        for label, bytes_change in BYTES.items():
            yield f"run-{name[:3]}-{label}", partial(_changed_run, name, bytes_change)
        for make in NO_FILES:
            label = f"run-{name[:3]}-{make.__name__}"
            yield label, partial(_misplaced_run, name, make)
    for label, change in {
        "sessions": _sessions,
        "repetitions": _endless_repetitions,
        "answers": _many_answers,
        "pairs": _pairs_of_trials,
        "folder-nul": partial(_unfinished, place=("working_folder",), value='"/a\\u0000b"'),
        "path-long": partial(
            _unfinished, place=("experiments", 0, "path"), value=f'"/{"x" * 5000}"'
        ),
        "lab-items": partial(
            _unfinished, place=("lab_text",), value=json.dumps("sender: [" + "a," * 330_000 + "]")
        ),
        "no-blocks": partial(with_value, place=(0, "experiments", 0, "compare"), value=NO_BLOCKS),
    }.items():
        yield f"run-{label}", partial(_changed_run, "run.jsonl", change)
    for label, places in _numbered():
        change = partial(_with_values, places)
        yield f"run-{label}", partial(_changed_run, "run.jsonl", change)
    for label, large in LARGE.items():
        yield f"run-{label}", partial(_large_run, large)
    yield "run-rounds", _rounds
    yield "run-late-millisecond", _late_millisecond
    yield "run-two-of-many-trials", _two_runs
    for make in NO_FILES:
        yield f"run-as-{make.__name__}", partial(_no_folder, make)


# --- reports ----------------------------------------------------------------------------------------


def page(data: bytes, at: Path) -> Path:
    """Write a page with data, compressed, in its link."""
    address = HEAD.encode() + base64.b64encode(data)
    link = b'<a id="%s" download="d" href="%s">data</a>' % (LINK.encode(), address)
    path = at / "report.html"
    path.write_bytes(b"<!doctype html><html><body>" + link + b"</body></html>")
    return path


def _frames_of(path: Path) -> list[int]:
    return said(lambda: read_frames(path))


def said(work: Callable[[], object]) -> list[int]:
    """Return the exit code with which a command would end, its error printed."""
    import sys
    import warnings

    warnings.simplefilter("ignore")
    try:
        work()
    except UdpbenchError as error:
        print(str(error), file=sys.stderr)
        return [error.exit_code]
    return [0]


def _plain_report(at: Path) -> bytes:
    from udpbench.records.reader import read_run

    address = packed([read_run(run_folder(at))])
    return gzip.decompress(base64.b64decode(address.removeprefix(HEAD)))


REPORT_PLACES: tuple[tuple[Any, ...], ...] = (
    (0, "schema"),
    (0, "run"),
    (0, "trials"),
    (0, "searches"),
    (0, "experiments"),
    (0, "trials", 0, "values"),
    (0, "trials", 0, "queues"),
    (0, "trials", 0, "findings"),
    (0, "trials", 0, "repetition"),
    (0, "trials", 0, "delivered_pps"),
    (0, "trials", 0, "ledger"),
)


def _report_value(place: tuple[Any, ...], value: str, at: Path) -> Work:
    data: Any = json.loads(_plain_report(at))
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = "@here@"
    text = json.dumps(data).replace('"@here@"', value)
    return partial(_frames_of, page(gzip.compress(text.encode(), 1), at))


def _report_bytes(change: Callable[[bytes], bytes], at: Path) -> Work:
    return partial(_frames_of, page(gzip.compress(change(_plain_report(at))), at))


def _report_page(change: Callable[[bytes], bytes], at: Path) -> Work:
    path = page(gzip.compress(_plain_report(at)), at)
    _written(path, change, path.read_bytes())
    return partial(_frames_of, path)


def _bomb(at: Path, filling: bytes, size_bytes: int) -> Work:
    plain = b"[" + filling * (size_bytes // len(filling)) + b"0]"
    return partial(_frames_of, page(gzip.compress(plain, 1), at))


def _tags(text: bytes, at: Path) -> Work:
    path = at / "report.html"
    path.write_bytes(text * (4 * MIB // len(text)))
    return partial(_frames_of, path)


def _no_report(make: Callable[[Path], None], at: Path) -> Work:
    make(at / "report.html")
    return partial(_frames_of, at / "report.html")


def _wide(at: Path) -> Work:
    """Make a report in which each of a thousand trials sweeps ten keys of its own."""
    data: Any = json.loads(_plain_report(at))
    (trial,) = data[0]["trials"]
    data[0]["trials"] = [
        {**trial, "values": {f"k{number}.{n}": "1" for n in range(10)}} for number in range(1000)
    ]
    return partial(_frames_of, page(gzip.compress(json.dumps(data).encode(), 1), at))


def reports() -> Iterator[tuple[str, Case]]:
    """Yield every case of a page with embedded data."""
    for number, place in enumerate(REPORT_PLACES):
        for index, (label, value) in enumerate(VALUES.items()):
            if (index + number) % 5 == 0:
                name = f"report-{'-'.join(map(str, place[1:]))}-{label}"
                yield name, partial(_report_value, place, value)
    for label, change in BYTES.items():
        yield f"report-data-{label}", partial(_report_bytes, change)
        yield f"report-page-{label}", partial(_report_page, change)
    for label, filling in {
        "lists": b"[],",
        "objects": b"{},",
        "texts": b'"aa",',
        "spaces": b" ",
    }.items():
        yield f"report-bomb-{label}", partial(_bomb, filling=filling, size_bytes=100 * MIB)
    yield "report-bomb-long", partial(_bomb, filling=b" ", size_bytes=1000 * MIB)
    for label, text in {
        "open": b"<a ",
        "id": b"udpbench-data<",
        "tag": b'<a id="udpbench-data">',
        "comment": b"<!--",
    }.items():
        yield f"report-tags-{label}", partial(_tags, text)
    for make in NO_FILES:
        yield f"report-as-{make.__name__}", partial(_no_report, make)
    yield "report-wide", _wide


# --- pages ------------------------------------------------------------------------------------------

TEXTS: dict[str, str] = {
    "lines": "- {a: 1, b: [x, 'y']}  # z\n" * 50_000,
    "to-the-left": "\u05d0 " * MIB,
    "no-blank": "W" * MIB,
    "breaks": "a," * MIB,
    "tabs": "\u05d0\t" * MIB,
}
PAGES = ("report", "--format", "pdf,png", "--out", "out", "run")
MANY = 5000
TEXT_PLACES: tuple[tuple[Any, ...], ...] = (
    (0, "experiments", 0, "text"),
    (0, "udpbench"),
    (0, "lab_text"),
    (0, "experiments", 0, "question"),
    (1, "record", "facts", "left", "host"),
    (1, "record", "facts", "left", "kernel"),
)


def _paged_text(place: tuple[Any, ...], text: str, at: Path) -> Work:
    return _paged(partial(with_value, place=place, value=json.dumps(text)), at)


def _paged(change: Callable[[bytes], bytes], at: Path) -> Work:
    path = run_folder(at) / "run.jsonl"
    _written(path, change, path.read_bytes())
    return commands(PAGES)


def _paged_points(name: str, count: int, at: Path) -> Work:
    """Write a run of many points, each with a ledger."""
    points = [paced(point=f"{name}={number}") for number in range(count)]
    records = [record(of=point) for point in points]
    stored(at / "run", records, experiment(points=points))
    return commands(PAGES)


def _paged_experiments(at: Path) -> Work:
    """Write a run of many experiments."""
    declared = [
        experiment(name=f"e{number}", text=TEXTS["lines"][: 27 * 180]) for number in range(300)
    ]
    stored(at / "run", [], *declared)
    return commands(PAGES)


def _paged_failures(at: Path) -> Work:
    """Write a run of which every trial failed in another way."""
    points = [paced(point=f"size={number},x={number}") for number in range(MANY)]
    records = [failed("HostError", f"a b {number}", of=of) for number, of in enumerate(points)]
    stored(at / "run", records, experiment(points=points))
    return commands(PAGES)


def _paged_changes(at: Path) -> Work:
    """Write a trial that changed many settings."""
    changes = tuple(Change(Setting("sysctl", f"net.x{n}", n), 0, n) for n in range(4 * MANY))
    stored(at / "run", [replace(record(), changes={"right": changes})])
    return commands(PAGES)


def pages() -> Iterator[tuple[str, Case]]:
    """Yield every case of pages as PDF and PNG."""
    yield "pages-points", partial(_paged_points, "size", 450)
    yield "pages-experiments", _paged_experiments
    yield "pages-failures", _paged_failures
    yield "pages-changes", _paged_changes
    for number, place in enumerate(TEXT_PLACES):
        for index, (label, text) in enumerate(TEXTS.items()):
            if (index + number) % 2 == 0:
                yield f"pages-{place[-1]}-{label}", partial(_paged_text, place, text)
    for label, text in TEXTS.items():
        yield f"pages-name-{label}", partial(_paged_points, text[:100_000], 20)


# --- stores -----------------------------------------------------------------------------------------


def store_file(at: Path) -> Path:
    """Write a store of one run and return its file."""
    (name,) = write_runs([run_folder(at)], at / "store", campaign="c", pair="p")
    return at / "store" / name


def _read_store(path: Path) -> list[int]:
    def work() -> None:
        trials = read_runs(path)
        beside(trials)
        differing_facts(trials)

    shown = commands(("history", str(path)), ("history", "--json", str(path)))()
    return [*said(work), *shown]


def _store_column(column: str, value: Any, rows: int, at: Path) -> Work:
    path = store_file(at)
    table = pq.read_table(path, partitioning=None).slice(0, 1)
    if callable(value):
        table = value(table)
    elif rows > 1:
        # A column of few bytes, however many rows it has.
        same = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [value])
        table = pa.table(dict.fromkeys(("run", "experiment", "point", "started_at", column), same))
    else:
        field = table.schema.get_field_index(column)
        kind = table.schema.field(field).type if isinstance(value, (float, str)) else None
        kind = pa.map_(pa.string(), pa.string()) if column == "values" else kind
        table = table.set_column(field, column, pa.array([value], kind))
    pq.write_table(table, path)
    return partial(_read_store, at / "store")


def _store_bytes(change: Callable[[bytes], bytes], at: Path) -> Work:
    path = store_file(at)
    _written(path, change, path.read_bytes())
    return partial(_read_store, at / "store")


def _no_store(make: Callable[[Path], None], at: Path) -> Work:
    misplaced(make, store_file(at))
    return partial(_read_store, at / "store")


def _linked(at: Path) -> Work:
    """Make two links to the folder that they are in: 2^40 ways to one file."""
    store_file(at)
    for name in ("a", "b"):
        (at / "store" / "campaign=c" / name).symlink_to(".")
    return partial(_read_store, at / "store")


def _with_table(table: Callable[[], pa.Table], at: Path) -> Work:
    pq.write_table(table(), store_file(at), compression="zstd", use_dictionary=False)
    return partial(_read_store, at / "store")


def _one_trial(kind: str, keys: pa.Array, items: pa.Array) -> pa.Table:
    return pa.table({kind: pa.MapArray.from_arrays([0, len(keys)], keys, items)})


TABLES: dict[str, Callable[[], pa.Table]] = {
    "long-text": lambda: pa.table({"question": ["x" * 200 * MIB]}),
    "entries": lambda: _one_trial(
        "ledger", pa.repeat("k", 8 * MIB), pa.repeat(pa.scalar(0, pa.int64()), 8 * MIB)
    ),
    "points": lambda: pa.table(
        {"point": [f"{n}" for n in range(100_000)], "experiment": ["e"] * 100_000}
    ),
    "trials-of-a-day": lambda: pa.table(
        {
            "point": pa.repeat("p", 200_000),
            "experiment": pa.repeat("e", 200_000),
            "started_at": [f"{n}" for n in range(200_000)],
            "valid": pa.repeat(True, 200_000),
            "delivered_pps": pa.repeat(5.0, 200_000),
        }
    ),
}


def _pairs_of_hosts(at: Path) -> Work:
    """Make a hundred pairs, each with two thousand facts that no other has."""
    file = store_file(at)
    table = pq.read_table(file, partitioning=None)
    for number in range(100):
        facts = json.dumps({"left": {f"f{number}.{n}": n for n in range(2000)}})
        field = table.schema.get_field_index("hosts")
        of_pair = table.set_column(field, "hosts", pa.array([facts] * len(table)))
        folder = file.parents[2] / f"pair=p{number}" / file.parent.name
        folder.mkdir(parents=True)
        pq.write_table(of_pair, folder / "x.parquet")
    return commands(("report", "--out", "out", "store"))


def _days(at: Path) -> Work:
    """Make a point that was measured on five thousand days."""
    file = store_file(at)
    for number in range(5000):
        day = f"day={2000 + number // 336}-{1 + number // 28 % 12:02d}-{1 + number % 28:02d}"
        folder = file.parents[1] / day
        folder.mkdir(exist_ok=True)
        os.link(file, folder / "x.parquet")
    return partial(_read_store, at / "store")


def stores() -> Iterator[tuple[str, Case]]:
    """Yield every case of a store."""
    yield "store-linked", _linked
    yield "store-days", _days
    yield "store-hosts", _pairs_of_hosts
    for label, table in TABLES.items():
        yield f"store-{label}", partial(_with_table, table)
    hosts = {name: text for name, text in VALUES.items() if len(text) < 10 * MIB}
    for label, text in hosts.items():
        yield f"store-hosts-{label}", partial(_store_column, "hosts", text, 1)
    odd: dict[str, Any] = {
        "rate-as-list": ("delivered_pps", [[[1.0]]], 1),
        "rate-infinite": ("delivered_pps", float("inf"), 1),
        "rate-nan": ("delivered_pps", float("nan"), 1),
        "point-escapes": ("point", "\x1b[2J</script>", 1),
        "values-twice": ("values", [("a", "1"), ("a", "2")], 1),
        "repeated-texts": ("question", "x" * MIB, 5000),
        "many-rows": ("question", "x", 2_000_000),
        "less": ("point", lambda table: table.drop_columns(["point", "run"]), 1),
        "started-null": ("started_at", lambda table: table.drop_columns(["started_at"]), 3),
    }
    for label, (column, value, rows) in odd.items():
        yield f"store-{label}", partial(_store_column, column, value, rows)
    for label, change in BYTES.items():
        yield f"store-{label}", partial(_store_bytes, change)
    for make in NO_FILES:
        yield f"store-as-{make.__name__}", partial(_no_store, make)


# --- definitions ------------------------------------------------------------------------------------

WHY = "question: Why?\n"
MANY_POINTS = (
    f"sweep: {{send.batch: {[*range(1, 65)]}, traffic.flows.from: {[*range(20_000, 20_064)]}}}\n"
)
DEFINITIONS = {
    "laughs": "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(30)) + WHY,
    "anchor": WHY + "a: &a {b: *a}\n",
    "merge": WHY + "send: {<<: {batch: 2}}\n",
    "tag": WHY + "a: !!python/object/apply:os.system [id]\n",
    "deep-flow": WHY + "a: " + "[" * 100_000,
    "deep-block": WHY + "".join(f"{' ' * n}a:\n" for n in range(600)),
    "deep-maps": WHY + "a: " + "{a: " * 50_000,
    "variants": WHY + "variants:\n" + "".join(f"  v{n}: {{send.batch: 1}}\n" for n in range(4000)),
    "variants-more": WHY
    + "variants:\n"
    + "".join(f"  v{n}: {{send.batch: 1}}\n" for n in range(9000)),
    "variant-keys": WHY + f"variants: {{v: {{{','.join(f'a.b{n}: 1' for n in range(9000))}}}}}\n",
    "points": WHY
    + "sweep:\n"
    + "".join(
        f"  {key}: [{','.join(map(str, range(1, 1001)))}]\n"
        for key in ("send.batch", "receive.batch")
    ),
    "repetitions": WHY
    + f"repetitions: 10000\nsweep: {{send.batch: [{','.join(map(str, range(1, 1000)))}]}}\n",
    "swept-values": WHY + f"sweep: {{send.batch: [{','.join(map(str, range(30000)))}]}}\n",
    "swept-keys": WHY + "sweep:\n" + "".join(f"  a.b{n}: [1]\n" for n in range(9000)),
    "unknown-keys": WHY + "".join(f"key{n}: 1\n" for n in range(5000)),
    "same-key": WHY * 9000,
    "many-keys-and-points": WHY
    + "settings:\n  sender:\n    sysctl:\n"
    + "".join(f"      net.core.x{n}: 1\n" for n in range(5000))
    + f"sweep: {{send.batch: [{','.join(map(str, range(1, 1001)))}]}}\n",
    "swept-payload": WHY
    + "traffic: {payload: {file: big.bin}, rate: 1kpps}\nreceive: {command: [./a]}\n"
    + MANY_POINTS,
    "swept-settings": WHY
    + "settings:\n  sender:\n    sysctl:\n"
    + "".join(f"      net.core.x{n}: 1\n" for n in range(120))
    + MANY_POINTS,
    "swept-long-keys": WHY
    + "sweep:\n"
    + "".join(
        f"  ? settings.sender.sysctl.net/a{n}/{'y' * 3000}\n  : [1{', 2' * (n < 12)}]\n"
        for n in range(60)
    ),
    "compared-keys": WHY
    + "compare: {a: naive, b: other, metric: delivered_pps}\nsweep:\n"
    + "".join(f"  settings.receiver.sysctl.net.core.a{n}: [1]\n" for n in range(64)),
    "misspelt-points": WHY
    + f"sweep: {{settings.receiver.sysctl.net.core.{'ab' * 90}: [{','.join(map(str, range(500)))}]}}\n"
    + "expect:\n"
    + "".join(f"  - received_packets[{'ba' * 90}={n}] > 1\n" for n in range(65)),
    "long-size": WHY + f"traffic: {{size: {'9' * 4000}B}}\n",
    "long-number": WHY + f"traffic: {{size: {'9' * 200_000}}}\n",
    "exponent": WHY + "duration: 1e400s\n",
    "float": WHY + "duration: 1e400\n",
    "nan": WHY + "duration: .nan\n",
    "infinite": WHY + "duration: .inf\n",
    "huge-duration": WHY + f"duration: {'9' * 300}h\n",
    "long-ratio": WHY + f"search: {{loss: {'9' * 3000}%}}\n",
    "escape": 'question: "\\UFFFFFFFF"\n',
    "surrogate": 'question: "\\ud800"\n',
    "control": 'question: "\\x1b[2J\\0"\n',
    "script": "question: </script><script>alert(1)</script>\n",
    "list": "- question: a\n",
    "scalar": "question\n",
    "documents": WHY + "---\n" + WHY,
    "null": WHY + "send:\n",
    "wrong-types": WHY
    + "traffic: [1]\nsend: 5\nreceive: [x]\nsweep: 3\nvariants: [a]\nexpect: {a: b}\n",
    "key-as-list": WHY + "? [a, b]\n: c\n",
    "self": WHY + "extends: hostile.yaml\n",
    "payload-self": WHY + "traffic: {payload: {file: hostile.yaml}}\n",
    "payload-device": WHY + "traffic: {payload: {file: /dev/zero}}\n",
    "payload-nul": WHY + 'traffic: {payload: {file: "a\\0b"}}\n',
    "payloads": WHY + "traffic: {payload: [" + "{file: big.bin}," * 8000 + "]}\n",
    "expectations": WHY + "expect:\n" + "  - received_packets > 0\n" * 5000,
    "long-expectation": WHY + 'expect: ["' + "(" * 4000 + '"]\n',
    "long-line": WHY + "# " + "x" * 250_000 + "\n",
    "large": WHY + "# x\n" * 100_000,
}
LABS = {
    "addresses": "receiver: {connect: namespace, interface: r}\n"
    "sender:\n  connect: namespace\n  interface: s\n  addresses:\n"
    + "".join(f"  - fd00:0:0:0:{n:x}::1-ffff/64\n" for n in range(3000)),
    "no-hosts": "sender: []\nreceiver: []\n",
    "wrong": "sender: 5\nreceiver: {}\n",
    "many-hosts": "sender:\n" + "  - {connect: {ssh: a}, interface: e}\n" * 4000,
    "escape": 'sender: {connect: {ssh: "a\\x1b"}, interface: "\\x1b[2J"}\n',
    "huge": "sender: {connect: namespace, cpus: 0-999999999}\nreceiver: {connect: namespace}\n",
    "settings": "settings: " + "{a: " * 20 + "1" + "}" * 20 + "\n",
    "option": "sender: {connect: {ssh: -oProxyCommand=x}}\n",
}


def _planned(words: tuple[str, ...]) -> list[int]:
    from udpbench.control import plan

    plan.rehearse = lambda *_: ()  # makes namespaces
    return commands(words)()


def _definition(text: str, at: Path) -> Work:
    (at / "hostile.yaml").write_text(text)
    (at / "big.bin").write_bytes(bytes(65_507))
    return partial(_planned, ("plan", "hostile.yaml"))


def _definition_bytes(change: Callable[[bytes], bytes], at: Path) -> Work:
    _written(at / "hostile.yaml", change, (WHY + "sweep: {send.batch: [1, 2]}\n").encode())
    return partial(_planned, ("plan", "hostile.yaml"))


def _no_definition(make: Callable[[Path], None], at: Path) -> Work:
    make(at / "hostile.yaml")
    return partial(_planned, ("plan", "hostile.yaml"))


def _lab(text: str, at: Path) -> Work:
    (at / "lab.yaml").write_text(text)
    (at / "good.yaml").write_text(WHY)
    return partial(_planned, ("plan", "good.yaml", "--lab", "lab.yaml"))


def _no_lab(make: Callable[[Path], None], at: Path) -> Work:
    make(at / "lab.yaml")
    (at / "good.yaml").write_text(WHY)
    return partial(_planned, ("plan", "good.yaml", "--lab", "lab.yaml"))


def definitions() -> Iterator[tuple[str, Case]]:
    """Yield every case of an experiment or a lab."""
    for label, text in DEFINITIONS.items():
        yield f"plan-{label}", partial(_definition, text)
    for label, text in LABS.items():
        yield f"lab-{label}", partial(_lab, text)
    for label, change in BYTES.items():
        yield f"plan-{label}-bytes", partial(_definition_bytes, change)
    for make in NO_FILES:
        yield f"plan-as-{make.__name__}", partial(_no_definition, make)
        yield f"lab-as-{make.__name__}", partial(_no_lab, make)


# --- answers of agents ------------------------------------------------------------------------------


def _answer(body: bytes, _: Path) -> Work:
    return partial(answered, body)


def agents() -> Iterator[tuple[str, Case]]:
    """Yield every answer of a hostile agent."""
    for label, value in VALUES.items():
        yield f"answer-{label}", partial(_answer, b'{"id":%ID,"result":' + value.encode() + b"}")
    for label, value in VALUES.items():
        yield (
            f"answer-error-{label}",
            partial(_answer, b'{"id":%ID,"error":' + value.encode() + b"}"),
        )
    for label in ("infinite", "digits", "negative", "escapes", "deep"):
        body = b'{"id":%ID,"clock_ns":' + VALUES[label].encode() + b',"result":null}'
        yield f"answer-clock-{label}", partial(_answer, body)
    counters = json.dumps({f"a.{n}": 1 for n in range(COUNTERS_MAX + 1)})
    snapshot = f'{{"host":"left","clock_ns":1,"counters":{counters}}}'
    yield "answer-counters", partial(_answer, f'{{"id":%ID,"result":{snapshot}}}'.encode())
    look = '{"snapshot":{"host":"left","clock_ns":1,"counters":{}},"interfaces":[],"sockets":[],'
    look += '"counts":{"abc":{}}}'
    yield "answer-cookies", partial(_answer, f'{{"id":%ID,"result":{look}}}'.encode())
    for label, body in {
        "id-list": b'{"id":[%ID]}',
        "id-object": b'{"id":{}}',
        "nothing": b"",
        "text": b'"%ID"',
        "not-utf-8": b'{"id":%ID,"result":"\xff"}',
        "nul": b'{"id":%ID,\0}',
        "half": b'{"id":%ID,"res',
    }.items():
        yield f"answer-{label}", partial(_answer, body)


# --- recordings ------------------------------------------------------------------------------------

FLIGHTS = {
    "counters": (9000, 2500, 0),
    "counters-more": (100_000, 2, 0),
    "counters-ever-new": (0, 20, 9000),
}
"""Label → counters of the first look, looks after it, and new counters in each."""


def _flight(first: int, looks: int, new: int, at: Path) -> Work:
    """Write looks of which each stands for all counters before it, however short its line is."""
    lines = ['{"schema":1}']
    for number in range(looks + 1):
        names = range(number * new, number * new + new) if number else range(first)
        counters = {f"{number if new else 0:x}.{each:x}": 0 for each in names}
        snapshot = {"host": "h", "clock_ns": number * 10**9, "counters": counters}
        seen = {"snapshot": snapshot, "interfaces": [], "sockets": []}
        space = {"netns": 1, "name": "host", "look": seen}
        survey = {"wall_ns": 1_764_115_200 * 10**9 + number * 10**9, "spaces": [space]}
        lines.append(json.dumps({"look" if number else "whole": survey, "facts": {}}))
    (at / "flight").mkdir()
    path = at / "flight" / "looks-0000000001-1764115200000.jsonl"
    path.write_text("\n".join([*lines, ""]))
    return commands(("show", "flight"))


def _flight_of_incidents(number: int, at: Path) -> Work:
    """Write two looks between which each of so many namespaces loses, and all settings change."""
    counted = ("snmp.Udp.InErrors", "snmp.Udp.RcvbufErrors", "snmp.Ip.InReceives")
    lines = ['{"schema":1}']
    for second in range(2):
        spaces = []
        for each in range(1, number):
            counters = dict.fromkeys(counted, 5 * second)
            snapshot = {"host": "h", "clock_ns": second * 10**9, "counters": counters}
            seen = {"snapshot": snapshot, "interfaces": [], "sockets": []}
            spaces.append({"netns": each, "name": f"{each}", "look": seen})
        also = {
            "settings": {f"s{each}": "ab"[second] for each in range(1000)},
            "cpu_time": {f"{each} a": 10**9 for each in range(1000)},
        }
        survey = {"wall_ns": (1_764_115_200 + second) * 10**9, "spaces": spaces, **also}
        lines.append(json.dumps({"look" if second else "whole": survey, "facts": {}}))
    (at / "flight").mkdir()
    path = at / "flight" / "looks-0000000001-1764115200000.jsonl"
    path.write_text("\n".join([*lines, ""]))
    return commands(("show", "flight"))


def flights() -> Iterator[tuple[str, Case]]:
    """Yield every recording that stands for more than it holds."""
    yield "flight-incidents", partial(_flight_of_incidents, 1000)
    for label, (first, looks, new) in FLIGHTS.items():
        yield f"flight-{label}", partial(_flight, first, looks, new)


CASES: dict[str, Case] = dict(
    (*runs(), *reports(), *stores(), *definitions(), *agents(), *pages(), *flights())
)


def content_bytes(at: Path) -> int:
    """Return the uncompressed size of what a case wrote; only files that are read count."""
    files = [path for path in at.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(path.stat().st_size for path in files if path.stat().st_size < 2**32)


def emptied(at: Path) -> Path:
    """Return an empty folder."""
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()
    return at

"""The run folder: what is written is read, whatever happened in between."""

from __future__ import annotations

import io
import json
import os
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from udpbench.control.phase import path_plan
from udpbench.control.trial_state import late
from udpbench.definition.load import load_experiments
from udpbench.errors import RecordError, StoreError
from udpbench.host_settings import Ethtool, Ntuple, Settings, VethPair
from udpbench.json_lines import (
    MOST_LEVELS,
    MOST_LINE_BYTES,
    Room,
    open_held,
    open_regular,
    parsed_bytes,
    read_lines,
)
from udpbench.model.host import Change, Facts, Setting
from udpbench.model.limits import EXPECT_MAX, PAIRS_MAX, RAW_NS
from udpbench.model.record import (
    RECORD_SCHEMA,
    Finding,
    FlowStats,
    Phase,
    RecordedError,
    Sample,
    Snapshot,
    TrialRecord,
    WorkerStats,
)
from udpbench.model.work import FlowSpec, WorkerSpec
from udpbench.printable import printable
from udpbench.records import lines, run
from udpbench.records.folders import last_run, new_folder
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, SERIES_FILE, Ending, RunHeader
from udpbench.records.writer import RunWriter
from udpbench.units import Rate

EXPERIMENTS = tuple(load_experiments(["smoke", "drops/small-buffer"]))
HEADER = RunHeader(
    udpbench="0.1.0",
    started_at="2026-11-21T08:00:00.000+00:00",
    command=("udpbench", "run", "smoke"),
    seed=7,
    lab_name="local",
    lab_text="# a lab – with a dash\n",
    experiments=EXPERIMENTS,
)
ENDING = Ending("2026-11-21T08:00:09+00:00", "complete")


def record(samples: int = 3) -> TrialRecord:
    """Return a record that uses every kind of field."""
    trial = replace(EXPERIMENTS[1].points[0], values={"send.batch": 4, "send.pace": "spin"})
    trial = replace(trial, traffic=replace(trial.traffic, rate=Rate(packets_per_s=40_000)))
    flow = FlowSpec(0, "10.0.0.1", 65400, "10.0.0.2", 4321)
    facts = Facts(
        host="left",
        hostname="löwe",
        kernel="6.18",
        boot_id="b",
        python="3.11",
        cpus=(0, 1),
        cpu_model=None,
        numa_nodes={"0": (0, 1)},
        siblings={"0": (0,)},
        interface="send0",
        driver=None,
        mac=None,
        mtu=None,
        addresses=("10.0.0.1/24",),
        rx_queues=0,
        tx_queues=None,
        queue_cpus={"0": (1,)},
        limits={"net.core.rmem_max": 212992},
        capabilities={"net_admin": True},
    )
    counts = {"sent_packets": 2**63, "first_ns": 0}
    return TrialRecord(
        trial=trial,
        status="failed",
        started_at="2026-11-21T08:00:01+00:00",
        built_in_lab=True,
        error=RecordedError("WorkerFailed", "signal 9", "left"),
        facts={"left": facts},
        changes={"left": (Change(Setting("qdisc", "send0", {"tbf": {"rate_bps": 1}}), None, [1]),)},
        workers=(WorkerSpec("sender", "left", 0, 1, (flow,), trial.traffic, trial.send),),
        phases=(
            Phase(
                "measured",
                2**32 - 1,
                {"left": 10**15},
                {"left": Snapshot("left", 1, {"snmp.Udp.InErrors": 0})},
                {},
                (WorkerStats("left.sender0", "sender", None, counts, cpus_seen=(1,)),),
                {"left": (FlowStats(0, 5), FlowStats(1, 5, 0))},
            ),
        ),
        series=tuple(Sample("left.sender0", n, counts) for n in range(samples)),
        motion=(Snapshot("left", 2, {"snmp.Udp.InErrors": 1}), Snapshot("left", 3, {})),
        findings=(Finding("note", "odd", value="3"),),
        overhead_ns={"facts": 0},
    )


def written(folder: Path, *records: TrialRecord, ending: Ending | None = ENDING) -> Path:
    """Write a run and return its folder."""
    writer = RunWriter.create(folder, HEADER)
    for record in records:
        writer.write(record)
    if ending is not None:
        writer.finish(ending)
    return folder


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Header, records with their series, and ending are equal, every type and field of them."""
    run = read_run(written(tmp_path / "r", record(), record(0)))
    assert (HEADER, (record(), record(0)), ENDING, ()) == (
        run.header,
        run.records,
        run.ending,
        run.findings,
    )


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the kinds of the lines that are parsed and then looked at, as they are read."""
    kinds: list[str] = []
    plainly = lines.object_in

    def parse(number: int, line: bytes, room: Room) -> dict[str, Any]:
        parsed = plainly(number, line, room)
        kinds.append(str(parsed.get("kind", "series")))
        return parsed

    monkeypatch.setattr(lines, "object_in", parse)
    return kinds


def test_a_plain_trial_is_parsed_and_validated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at each of its names took most of the time of reading a run; tabs are of sysctls."""
    sysctl = Change(Setting("sysctl", "net.ipv4.udp_mem", "1\t2"), "3\t4", '"5"\\')
    plain = replace(record(), changes={"left": (sysctl,)})
    written(tmp_path, plain)
    kinds = looked_at(monkeypatch)
    assert (plain,) == read_run(tmp_path).records
    assert ["header", "ending"] == kinds


@pytest.mark.parametrize("name", ["a\tb", "\x7f", "\x85", "\u202e", "\x1b[2J", "\ue000", "\ud800"])
def test_a_trial_with_an_odd_name_is_looked_at(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is written: as an escape, or as it is."""
    odd = replace(record(), overhead_ns={name: 1})
    for ascii_only in (True, False):
        folder = written(tmp_path / str(ascii_only), odd)
        lines = [json.loads(line) for line in (folder / RUN_FILE).read_bytes().splitlines()]
        lines[1]["record"]["overhead_ns"] = {name: 1}
        text = "".join(f"{json.dumps(line, ensure_ascii=ascii_only)}\n" for line in lines)
        (folder / RUN_FILE).write_bytes(text.encode(errors="surrogatepass"))
        kinds = looked_at(monkeypatch)
        if ascii_only or name != "\ud800":
            assert [printable(name, keep="")] == [*read_run(folder).records[0].overhead_ns]
            assert "trial" in kinds
        else:
            with pytest.raises(RecordError):
                read_run(folder)


@pytest.mark.parametrize("value", ["1e400", "[" * 65 + "]" * 65])
def test_an_absurd_value_of_any_kind_is_reported(tmp_path: Path, value: str) -> None:
    """A setting may be anything else."""
    file = written(tmp_path, record()) / RUN_FILE
    whole = file.read_text()
    assert '"after":[1]' in whole
    file.write_text(whole.replace('"after":[1]', f'"after":{value}'))
    with pytest.raises(RecordError, match="the file is damaged"):
        read_run(tmp_path)


def test_settings_are_stored_as_they_were_set(tmp_path: Path) -> None:
    """In the header and in a record; what was left out is not there."""
    link, rule = VethPair(queues="auto", rate_bps=10**9), Ntuple(port=4321, queue=0)
    block = Settings(link=link, sysctl={"a.b": 1, "c": "1\t2"}, ethtool=Ethtool(ntuple=[rule]))
    trial_record = record()
    trial_record = replace(
        trial_record, trial=replace(trial_record.trial, settings={"receiver": block})
    )
    folder = written(tmp_path / "r", trial_record)
    header, line = [json.loads(line) for line in (folder / RUN_FILE).read_text().splitlines()][:2]
    assert {
        "receiver": {
            "link": {"queues": "auto", "rate_bps": 10**9},
            "sysctl": {"a.b": 1, "c": "1\t2"},
            "ethtool": {"ntuple": [{"port": 4321, "queue": 0}]},
        }
    } == line["record"]["trial"]["settings"]
    assert [{}, {}] == [point["settings"] for point in header["experiments"][1]["points"]]
    assert trial_record.trial.settings == read_run(folder).records[0].trial.settings


def test_a_run_killed_before_its_first_trial_is_readable(tmp_path: Path) -> None:
    """It has a header, no records and no ending."""
    run = read_run(written(tmp_path, ending=None))
    assert (HEADER, (), None) == (run.header, run.records, run.ending)


def test_every_record_is_in_the_file_before_the_next_begins(tmp_path: Path) -> None:
    """Whoever reads beside the writer sees each record as soon as write has returned."""
    writer = RunWriter.create(tmp_path, HEADER)
    results = []
    for _ in range(3):
        writer.write(record())
        results.append(len(read_run(tmp_path).records))
    assert [1, 2, 3] == results


@pytest.mark.parametrize("cut", [1, 100, 2000])
def test_a_kill_in_the_middle_of_a_write_costs_that_line_alone(tmp_path: Path, cut: int) -> None:
    """The torn line is left out and told; what stands before it is whole."""
    file = written(tmp_path, record(), record(), ending=None) / RUN_FILE
    os.truncate(file, file.stat().st_size - cut)
    run = read_run(tmp_path)
    assert ((record(),), None) == (run.records, run.ending)
    assert [f"{file}:3"] == [finding.where for finding in run.findings]
    assert "the last line is torn" in str(run.findings[0])


def test_a_torn_series_is_reported_and_its_record_is_read(tmp_path: Path) -> None:
    """A kill while a series was written leaves no record of that trial."""
    written(tmp_path, record(), ending=None)
    with (tmp_path / SERIES_FILE).open("a") as file:
        file.write('{"sequence":1,"sampl')
    run = read_run(tmp_path)
    assert ((record(),), 1) == (run.records, len(run.findings))


def test_series_of_several_lines_are_joined(tmp_path: Path) -> None:
    """A long series may be written in parts."""
    written(tmp_path, record(1))
    more = {"worker": "left.sender0", "clock_ns": 9, "counts": {}}
    with (tmp_path / SERIES_FILE).open("a") as file:
        file.write(json.dumps({"sequence": 0, "samples": [more]}) + "\n")
    assert [0, 9] == [sample.clock_ns for sample in read_run(tmp_path).records[0].series]


def test_a_series_may_be_streamed_while_it_grows(tmp_path: Path) -> None:
    """Parts are on the disk before the record, come back in order, and are written once."""
    first, second = record(7), record(3)
    writer = RunWriter.create(tmp_path, HEADER)
    writer.write(second)
    assert ((), ()) == writer.streamed()
    writer.stream(first.series[:4], ())
    writer.stream(first.series[4:6], first.motion[:1])
    assert (first.series[:6], first.motion[:1]) == writer.streamed()
    writer.write(first)
    writer.stream(second.series, second.motion)
    writer.write(second)
    assert ((), ()) == writer.streamed()
    writer.finish(ENDING)
    assert (second, first, second) == read_run(tmp_path).records


def test_a_run_killed_while_it_streamed_is_readable(tmp_path: Path) -> None:
    """What was streamed of a trial without a record is left out."""
    writer = RunWriter.create(tmp_path, HEADER)
    writer.write(record())
    writer.stream(record(9).series, ())
    assert (record(),) == read_run(tmp_path).records


def test_a_file_is_no_place_for_a_run(tmp_path: Path, golden: Golden) -> None:
    """And is not taken for a run."""
    (tmp_path / "file").touch()
    with golden.raises(RecordError):
        RunWriter.create(tmp_path / "file", HEADER)


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path, golden: Golden) -> None:
    """Two runs at once, or one after the other, never share a file."""
    written(tmp_path)
    with golden.raises(RecordError):
        RunWriter.create(tmp_path, HEADER)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\n",
        b"[1]\n",
        b'{"kind":"trial"}\n',
        b'{"kind":"header","schema":99,"udpbench":"9.0"}\n',
        b'{"kind":"header","schema":1}\n',
    ],
)
def test_what_is_no_run_is_reported(tmp_path: Path, content: bytes, golden: Golden) -> None:
    """Each message names the file and the line."""
    (tmp_path / RUN_FILE).write_bytes(content)
    (tmp_path / SERIES_FILE).write_bytes(b"")
    with golden.raises(RecordError) as caught:
        read_run(tmp_path)
    assert str(tmp_path / RUN_FILE) in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "poem"},
        {"kind": "trial", "sequence": 0, "record": {}},
        {"kind": "ending", "status": "happy"},
    ],
)
def test_a_damaged_line_is_reported(
    tmp_path: Path, line: dict[str, object], golden: Golden
) -> None:
    """Damage in the middle of a file is no torn line and not tolerated."""
    file = written(tmp_path, ending=None) / RUN_FILE
    file.write_bytes(file.read_bytes() + json.dumps(line).encode() + b"\n")
    with golden.raises(RecordError):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"duration_ns":5000000000', f'"duration_ns":{2**62}'),
        ('"workers":1', '"workers":1000000'),
        ('"rx_queues":0', '"rx_queues":"0"'),
        ('"rx_queues":0', '"rx_queues":1000000'),
        ('"first_ns":0', f'"first_ns":{2**64}'),
        ('"first_ns":0', '"first_ns":0.0'),
        ('"built_in_lab":true', '"built_in_lab":1'),
        ('"sequence":0', '"sequence":"0"'),
        ('"sequence":0', f'"sequence":{2**70}'),
        ('"sequence":0', '"sequence":-2'),
        ('"values":{', '"values":{' + ",".join(f'"k{n}":1' for n in range(257)) + ","),
    ],
)
def test_a_number_that_can_not_be_is_reported(
    tmp_path: Path, old: str, new: str, golden: Golden
) -> None:
    """Somebody else's folder is no reason for work without end."""
    file = written(tmp_path, record()) / RUN_FILE
    header, line, ending = file.read_text().splitlines()
    assert old in line
    file.write_text("\n".join((header, line.replace(old, new), ending, "")))
    with golden.raises(RecordError):
        read_run(tmp_path)


BLOCKS = [{"a": "a", "b": "b", "metric": "delivered_pps", "margin": 0.1, "blocks": [9, 1]}]
SIDE = {"factor": 1.0, "metric": "delivered_pps", "point": None}
EXPECTED = {"text": "delivered_pps > 1", "left": SIDE, "op": ">", "right": {"factor": 1.0}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("working_folder", "/a\0b"),
        ("lab_path", "lab.yaml\nrun folder: x"),
        ("path", "/" + "x" * 1000),
        ("repetitions", 10_000),
        ("compare", BLOCKS),
        ("compare", [{**BLOCKS[0], "blocks": []}]),
        ("compare", [{**BLOCKS[0], "blocks": [1]}] * (PAIRS_MAX + 1)),
        ("expect", [EXPECTED] * (EXPECT_MAX + 1)),
        ("compare", [{**BLOCKS[0], "metric": f"m{n}", "blocks": [1]} for n in range(10)]),
        ("expect", [EXPECTED] * 10),
    ],
)
def test_a_header_that_can_not_be_is_reported(
    tmp_path: Path, key: str, value: object, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its paths are shown, and its trials are counted, before there is any."""
    monkeypatch.setattr(run, "TRIALS_MAX", 9_999)
    monkeypatch.setattr(run, "ANSWERS_MAX", 9)
    file = written(tmp_path) / RUN_FILE
    header, *rest = file.read_text().splitlines()
    plain = json.loads(header)
    of = plain if key in plain else plain["experiments"][0]
    assert key in of
    of[key] = value
    file.write_text("\n".join((json.dumps(plain), *rest, "")))
    with golden.raises(RecordError):
        read_run(tmp_path)


def test_a_run_that_could_not_be_read_is_not_begun(tmp_path: Path, golden: Golden) -> None:
    """A folder may have any name."""
    header = replace(HEADER, working_folder="/a\nb")
    with golden.raises(RecordError):
        RunWriter.create(tmp_path / "run", header)
    assert not (tmp_path / "run").exists()


def test_a_finding_keeps_its_kind_and_an_older_run_has_it_in_its_text(tmp_path: Path) -> None:
    """Runs before the key say only by their text that the controller was slow."""
    slow, other = late(path_plan(()), 7000), Finding("warning", "slow", "the controller was slow: ")
    run = written(tmp_path / "run", replace(record(), findings=(slow, other)))
    lines = (run / RUN_FILE).read_text()
    older = lines.replace(',"kind":"timing"', "").replace(',"kind":""', "")
    assert older.count('"kind"') == lines.count('"kind"') - 2
    (run / RUN_FILE).write_text(older)
    (read,) = read_run(run).records
    assert (slow, other) == read.findings
    assert ("timing", "") == tuple(each.kind for each in read.findings)


def test_packets_of_every_millisecond_are_of_a_load_of_a_minute(
    tmp_path: Path, golden: Golden
) -> None:
    """A longer one has ranges of them: a day would have 86 million."""
    of = replace(record().trial, duration_ns=RAW_NS)
    series = (Sample("left.sender0", 1, {}, first_ms=0, packets_per_ms=(1,)),)
    read_run(written(tmp_path / "minute", replace(record(), trial=of, series=series)))
    longer = replace(record(), trial=replace(of, duration_ns=RAW_NS + 1), series=series)
    with golden.raises(RecordError):
        read_run(written(tmp_path / "longer", longer))


@pytest.mark.parametrize(
    "line",
    [
        b"x" * (MOST_LINE_BYTES + 1),
        b"[" * (MOST_LEVELS + 1),
        b'{"a":1e400}',
        b'{"a":-Infinity}',
        b"[" + b"[]," * 2**20 + b"[]]",
    ],
)
def test_a_line_that_means_endless_memory_is_reported(
    tmp_path: Path, line: bytes, golden: Golden
) -> None:
    """Neither its length nor what it would become is ever in memory."""
    file = written(tmp_path, ending=None) / RUN_FILE
    file.write_bytes(file.read_bytes() + line + b"\n")
    with golden.raises(RecordError):
        read_run(tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, golden: Golden) -> None:
    """Even if it takes no room on the disk."""
    os.truncate(written(tmp_path) / SERIES_FILE, 2**40)
    with golden.raises(RecordError):
        read_run(tmp_path)


def test_a_file_that_grows_while_it_is_read_is_read_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever appends as fast as it is read keeps nobody busy."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"{}\n")
    monkeypatch.setattr("udpbench.json_lines.MOST_BYTES", 30)

    def follow() -> None:
        with file.open("ab", 0) as more:
            for _ in zip(read_lines(file, Room()), range(1000), strict=False):
                more.write(b"{}\n")

    with pytest.raises(OSError, match="larger than 0MiB"):
        follow()
    assert file.stat().st_size <= 2 * 30 + 3


class Followed(io.BufferedReader):
    """A file to whose last line its writer adds the rest as soon as it was read."""

    def readline(self, size: int | None = -1) -> bytes:
        """Return a line; then there is more."""
        line = super().readline(size)
        if line and not line.endswith(b"\n"):
            with Path(f"/proc/self/fd/{self.fileno()}").readlink().open("ab") as more:
                more.write(b": 1}\n{}\n")
        return line


def test_a_line_that_is_written_while_it_is_read_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rest is no line of its own, and none too long."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{}\n{"a"')
    opened = Followed(io.FileIO(file))
    monkeypatch.setattr("udpbench.json_lines.open_regular", lambda *_: opened)
    assert [(1, {}, 3), (2, None, 4)] == [*read_lines(file, Room())]


@pytest.mark.parametrize("name", [RUN_FILE, SERIES_FILE])
def test_a_link_in_a_run_folder_is_not_followed(tmp_path: Path, name: str, golden: Golden) -> None:
    """It may lead to a run that is private, of which a report would be made beside it."""
    folder = written(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    assert read_run(folder).header == read_run(tmp_path / "link").header
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with golden.raises(RecordError):
        read_run(folder)


@pytest.mark.parametrize("path", ["/dev/ptmx", "/proc/self/maps", "/sys/kernel/uevent_seqnum"])
def test_what_is_no_file_of_a_disk_is_not_opened(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a terminal makes another, and reading /proc/kmsg takes the kernel's log away."""
    real_open, opened = os.open, []

    def noted(name: str | Path, flags: int, **place: int | None) -> int:
        opened.append((str(name), bool(flags & os.O_PATH)))
        return real_open(name, flags, **place)  # type: ignore[arg-type]

    monkeypatch.setattr("udpbench.json_lines.os.open", noted)
    with pytest.raises(OSError, match=r"not a regular file|a file of the kernel"):
        open_regular(Path(path))
    assert [(path, True)] == opened


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the descriptor by which it is opened."""
    (tmp_path / "x").write_text("")
    held = os.open(tmp_path / "x", os.O_PATH)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied", f"/proc/self/fd/{held}")

    monkeypatch.setattr("udpbench.json_lines.os.open", refuse)
    with pytest.raises(PermissionError) as refused:
        open_held(held, tmp_path / "x")
    os.close(held)
    assert str(tmp_path / "x") == refused.value.filename


def test_lines_that_together_take_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the estimate says so, and the memory of this process, too."""
    taken = iter([0, 0, 10**6])
    monkeypatch.setattr("udpbench.json_lines._resident_bytes", lambda: next(taken))
    monkeypatch.setattr("udpbench.json_lines.ROOM_BYTES", 1000)
    monkeypatch.setattr("udpbench.json_lines.LOOK_BYTES", 0)
    room = Room()
    for _ in range(4):
        room.hold(b"[1,2,3]", parsed_bytes(b"[1,2,3]"))
    with pytest.raises(ValueError, match="it would take more memory than 3 times its size"):
        room.hold(b"[1,2,3]", parsed_bytes(b"[1,2,3]"))


@pytest.mark.parametrize("name", ["nothing-here", "run.jsonl"])
def test_a_folder_without_a_run_is_reported(tmp_path: Path, name: str, golden: Golden) -> None:
    """A folder that is missing and a file in its place give a message, not a traceback."""
    (tmp_path / "run.jsonl").write_text("")
    with golden.raises(RecordError):
        read_run(tmp_path / name)


def test_a_disk_that_is_full_is_reported(tmp_path: Path, golden: Golden) -> None:
    """The message names the trial that is lost, the folder, the reason and what to do."""
    writer = RunWriter.create(tmp_path, HEADER)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._series_fd)
    os.close(full)
    with golden.raises(StoreError):
        writer.write(replace(record(), status="done"))
    with golden.raises(StoreError):
        writer.write(record())


def test_a_folder_that_is_deleted_under_way_is_noticed(tmp_path: Path, golden: Golden) -> None:
    """At the next record, with what went along; a folder that was moved has all that it had."""
    writer = RunWriter.create(tmp_path / "run", HEADER)
    writer.write(record())
    writer.stream(record(3).series, ())
    (tmp_path / "run").rename(tmp_path / "aside")
    with golden.raises(StoreError):
        writer.write(record())
    shutil.rmtree(tmp_path / "aside")
    assert 3 == len(writer.streamed()[0])
    with golden.raises(StoreError):
        writer.write(record())
    with golden.raises(StoreError):
        writer.finish(ENDING)


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path, golden: Golden) -> None:
    """A file in the way is named with the reason."""
    (tmp_path / "file").write_text("")
    with golden.raises(RecordError):
        RunWriter.create(tmp_path / "file" / "run", HEADER)
    with golden.raises(RecordError):
        new_folder(tmp_path / "file", "run")


def test_new_folders_are_unique_and_plain(tmp_path: Path) -> None:
    """Two runs within one second get two folders; a name is cleaned of what paths mean."""
    names = [new_folder(tmp_path, "a/b c").name for _ in range(3)]
    assert 3 == len(set(names))
    assert all("-a-b-c" in name for name in names)
    assert new_folder(tmp_path, "../..").parent == tmp_path


def test_the_last_run_is_the_one_begun_last(tmp_path: Path) -> None:
    """Whatever the folders are called; folders without a run do not count."""
    for name, second in (("z", 1), ("a", 3), ("m", 2)):
        header = replace(HEADER, started_at=f"2026-11-21T08:00:0{second}+00:00")
        RunWriter.create(tmp_path / name, header)
    (tmp_path / "zz").mkdir()
    assert tmp_path / "a" == last_run(tmp_path)


def test_a_run_of_others_is_not_the_last(tmp_path: Path) -> None:
    """Nor one whose time is none; of a line without end the beginning is read."""
    header = replace(HEADER, started_at="2026-11-21T08:00:00+00:00", lab_text="x" * 2**17)
    RunWriter.create(tmp_path / "mine", header)
    for name, begun in (("z", "9999"), ("others", "9999-11-21T08:00:00+00:00")):
        RunWriter.create(tmp_path / name, replace(HEADER, started_at=begun))
    (tmp_path / "others").chmod(0o777)
    assert tmp_path / "mine" == last_run(tmp_path)
    (tmp_path / "sparse").mkdir()
    os.truncate(os.open(tmp_path / "sparse" / RUN_FILE, os.O_CREAT | os.O_WRONLY), 2**36)
    tracemalloc.start()
    assert tmp_path / "mine" == last_run(tmp_path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**20


@pytest.mark.parametrize("name", [RUN_FILE, "series.jsonl"])
def test_what_might_never_end_is_not_read(tmp_path: Path, name: str, golden: Golden) -> None:
    """Neither a pipe, for whose writer one would wait, nor a device behind a link."""
    folder = written(tmp_path / "run", ending=None)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/null")):
        (folder / name).unlink()
        make(folder / name)
        with golden.raises(RecordError):
            read_run(folder)
    assert folder == last_run(tmp_path)


def test_no_run_at_all_is_reported(tmp_path: Path, golden: Golden) -> None:
    """The message says where was looked."""
    with golden.raises(RecordError):
        last_run(tmp_path)


def test_a_run_of_schema_1_has_its_faults_as_losses(tmp_path: Path) -> None:
    """The trial's, the phase's, the names of those who sent them, and a sweep over them."""
    done = record()
    lost = (WorkerStats("left.loss_rx_xdp", "sender", None, {"sent_packets": 3}),)
    done = replace(
        done,
        trial=replace(done.trial, losses={"rx_xdp": 3}, values={"losses.rx_xdp": 3}),
        phases=(replace(done.phases[0], losses=lost),),
    )
    written(tmp_path, done)
    file = tmp_path / RUN_FILE
    old = file.read_bytes().replace(b'"schema":2', b'"schema":1')
    old = old.replace(b'"losses', b'"faults').replace(b".loss_", b".fault_")
    file.write_bytes(old)
    assert 2 == old.count(b'"faults":{"rx_xdp":3}') + old.count(b".fault_")
    (read,) = read_run(tmp_path).records
    assert replace(done, schema=1) == read


def test_the_schema_is_the_models() -> None:
    """A reader knows exactly the schema that the writer writes."""
    assert RECORD_SCHEMA == HEADER.schema == record().schema

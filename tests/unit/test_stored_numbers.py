"""Numbers of stored trials: however a file writes them, they are those of the trial."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_records import looked_at, record, written

from udpbench.errors import RecordError
from udpbench.json_lines import Room
from udpbench.model.record import Histogram, Snapshot, TrialRecord
from udpbench.records.reader import read_run
from udpbench.records.run import RUN_FILE, SERIES_FILE

FIRST, SECOND = {"snmp.Udp.InErrors": 0, "a.}": 3}, {"snmp.Udp.InErrors": 2**63}
DELAYS, PACING = Histogram(((0, 7), (300, 10**17)), 3), Histogram(((300, 2),))


def counted() -> TrialRecord:
    """Return a record of two phases, the second of which begins as the first ends."""
    plain = record()
    (phase,) = plain.phases
    stats = replace(
        phase.stats[0], histograms={"pacing": PACING, "delay": DELAYS, "stack": Histogram()}
    )
    edges = [
        {host: Snapshot(host, at, counters) for host in ("left", "right")}
        for at, counters in enumerate(({"snmp.Udp.InErrors": 1}, SECOND, {}))
    ]
    warmup = replace(phase, name="warmup", before=edges[0], after=edges[1])
    whole = replace(phase, before=edges[1], after=edges[2], stats=(stats,), losses=(stats,))
    return replace(plain, phases=(warmup, whole))


def rewritten(folder: Path, change: Callable[[Any], str]) -> Path:
    """Write the lines of a stored run again."""
    file = folder / RUN_FILE
    header, *lines = file.read_text().splitlines()
    texts = [header, *(change(json.loads(line)) for line in lines)]
    file.write_text("".join(f"{text}\n" for text in texts))
    return folder


def compact(plain: Any, **how: Any) -> str:
    """Return JSON as a run has it."""
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False, **how)


def test_a_trial_is_read_without_looking_at_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two phases have in common is there once."""
    written(tmp_path, counted(), counted())
    kinds = looked_at(monkeypatch)
    run = read_run(tmp_path)
    assert ["header", "ending"] == kinds
    assert (counted(), counted()) == run.records
    (warmup, measured), (_, again) = (each.phases for each in run.records)
    assert warmup.after["left"].counters is measured.before["right"].counters
    pairs = [phase.stats[0].histograms["delay"].counts[1] for phase in (measured, again)]
    assert pairs[0] is pairs[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: json.dumps(plain, ensure_ascii=False),
        lambda plain: compact(plain, sort_keys=True),
        lambda plain: compact(plain).replace('"counters":{"', '"counters": {"', 1),
        lambda plain: compact(plain).replace('"counts":[[', '"counts": [[', 1),
        lambda plain: compact({"x": {"counters": {}}, **plain}),
        lambda plain: compact({"x": {"counts": [[1, 2]]}, **plain}),
    ],
    ids=["spaces", "sorted", "odd-counters", "odd-counts", "other-counters", "other-counts"],
)
def test_a_trial_written_otherwise_is_read_as_well(
    tmp_path: Path, change: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other programs write JSON, and with a key that nobody knows; its names are not looked at."""
    folder = rewritten(written(tmp_path, counted()), change)
    kinds = looked_at(monkeypatch)
    assert (counted(),) == read_run(folder).records
    assert "trial" not in kinds


def test_a_counter_whose_name_ends_a_block_is_read_as_well(tmp_path: Path) -> None:
    """As that of a firewall's target may."""
    (first, second) = (odd := counted()).phases
    odd = replace(odd, phases=(first, replace(second, after={"left": Snapshot("left", 9, FIRST)})))
    assert (odd,) == read_run(written(tmp_path, odd)).records


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[300,2]", "[300,02]"),
        ("[300,2]", "[300,2.5]"),
        ("[300,2]", "[300]"),
        ("[300,2]", '[300,"2"]'),
        ("[300,2]", f"[300,{2**64}]"),
        ('"snmp.Udp.InErrors":1}', '"snmp.Udp.InErrors":"1"}'),
        ('"snmp.Udp.InErrors":1}', f'"snmp.Udp.InErrors":{2**64}}}'),
        ('"snmp.Udp.InErrors":1}', '"snmp.Udp.InErrors":1'),
    ],
)
def test_a_damaged_number_is_reported(tmp_path: Path, old: str, new: str) -> None:
    """Wherever it lies."""
    file = written(tmp_path, counted()) / RUN_FILE
    whole = file.read_text()
    assert old in whole
    file.write_text(whole.replace(old, new))
    with pytest.raises(RecordError, match=r"run\.jsonl:2: .*the file is damaged"):
        read_run(tmp_path)


def test_a_large_number_is_read_as_well(tmp_path: Path) -> None:
    """It has more digits than a count."""
    folder = rewritten(
        written(tmp_path, counted()),
        lambda plain: compact(plain).replace("[300,2]", f"[300,{10**18}]"),
    )
    stats = read_run(folder).records[0].phases[1].stats[0]
    assert Histogram(((300, 10**18),)) == stats.histograms["pacing"]


def test_more_numbers_than_there_is_room_for_are_not_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted before they are read."""
    written(tmp_path, counted())
    kinds = looked_at(monkeypatch)
    held: list[int] = []
    monkeypatch.setattr(Room, "hold", lambda _self, _text, cost_bytes: held.append(cost_bytes))
    monkeypatch.setattr("udpbench.records.lines.AT_ONCE_BYTES", 0)
    assert (counted(),) == read_run(tmp_path).records
    assert ["header", "trial", "ending", "series"] == kinds
    assert min(held) > 0


def test_a_series_of_many_packets_is_as_it_was(tmp_path: Path) -> None:
    """Each number of packets is there once."""
    plain = counted()
    series = tuple(replace(each, packets_per_ms=(3, 999, 40_000)) for each in plain.series)
    many = replace(plain, series=series)
    (read,) = read_run(written(tmp_path, many)).records
    assert many == read
    assert read.series[0].packets_per_ms[1] is read.series[1].packets_per_ms[1]


@pytest.mark.parametrize("new", ['"sequence":-2', '"sequence":"0"', '"sequence":true'])
def test_a_damaged_number_of_a_series_is_reported(tmp_path: Path, new: str) -> None:
    """As that of a trial."""
    file = written(tmp_path, counted()) / SERIES_FILE
    whole = file.read_text()
    assert '"sequence":0' in whole
    file.write_text(whole.replace('"sequence":0', new))
    with pytest.raises(RecordError, match=r"series\.jsonl:1: .*the file is damaged"):
        read_run(tmp_path)

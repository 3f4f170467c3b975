"""CPU time in figures and in files for other programs: the numbers that are drawn and written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis import sampled
from analysis.build import experiment, trial
from analysis.sampled import QUIET
from golden import Golden

from report.stored import printed, stored
from udpbench.cpu_stages import STAGES
from udpbench.errors import InputError
from udpbench.judged_run import Chapter, chapters_of, judged
from udpbench.model.experiment import Experiment, PointPair
from udpbench.model.record import TrialRecord
from udpbench.report import document
from udpbench.report.cpu_figure_data import OTHER_STAGES, cost_bars, flames
from udpbench.report.figures.cpu_figures import draw_costs, draw_flame, style_of
from udpbench.report.figures.style import styled
from udpbench.report.json_output import as_json
from udpbench.report.tables import parts


def chapter(*records: TrialRecord, of: Experiment | None = None) -> Chapter:
    """Return the one chapter of an experiment with these trials."""
    (only,) = judged([of if of is not None else experiment()], records)
    return only


def test_a_bar_for_each_end_adds_up_to_what_a_packet_costs() -> None:
    """Its stages in the packets' order; small ones are together."""
    few = sampled.record(sampled.Seen(0, 20, ("udp_rcv", "__napi_poll"), 5), busy_ms=805)
    bars = cost_bars(chapter(few))
    assert ["all #1 sender", "all #1 receiver"] == [bar.name for bar in bars]
    assert ["rx_poll", "rx_ip", OTHER_STAGES, "rx_read", "rx_application"] == [
        stage for stage, _ in bars[1].parts
    ]
    assert 805_000 == pytest.approx(sum(ns for _, ns in bars[1].parts))


def test_without_samples_nothing_is_drawn() -> None:
    """Nor is a struck end, whose numbers nobody may read."""
    plain = sampled.record()
    (phase,) = plain.phases
    silent = chapter(replace(plain, phases=(replace(phase, cpu_samples={}),)))
    assert ((), ()) == (cost_bars(silent), flames(silent))
    (bar,) = cost_bars(chapter(sampled.record(busy_ms=1800)))
    assert "all #1 sender" == bar.name


def test_functions_lie_below_their_stage_and_end() -> None:
    """From the anchor that begins the stage, as wide as their share; each within its caller."""
    (flame,) = flames(chapter(sampled.record()))
    boxes = {(box.depth, box.name): box for box in flame.boxes}
    assert 8 / 9 == pytest.approx(boxes[0, "receiver"].width)
    assert 3 / 9 == pytest.approx(boxes[1, "rx_read"].width)
    assert 300 * 10**6 == boxes[2, "udp_recvmsg"].ns
    for box in flame.boxes:
        assert box.depth == 0 or any(
            above.depth == box.depth - 1
            and above.left - 1e-9 <= box.left
            and box.left + box.width <= above.left + above.width + 1e-9
            for above in flame.boxes
        )


def test_figures_show_their_values_under_the_pointer(tmp_path: Path) -> None:
    """Also of stages of another version, and of other programs."""
    with styled():
        for drawn, texts in (
            (draw_costs(cost_bars(chapter(sampled.record()))), ("rx_read 300 000 ns",)),
            (draw_flame(flames(chapter(sampled.record()))[0]), ("udp_recvmsg: 33.33 %, 300 ms",)),
        ):
            drawn.savefig(tmp_path / "figure.svg")
            text = (tmp_path / "figure.svg").read_text()
            assert [True] * len(texts) == [each in text for each in texts]
    assert 1 == len({style_of("[hog]"), style_of("unknown")})
    assert len(STAGES) == len({style_of(stage) for stage in STAGES})


@pytest.mark.parametrize("form", ["folded", "speedscope"])
def test_stacks_have_all_of_the_time(form: str, tmp_path: Path) -> None:
    """Each chain with its nanoseconds, below trial, end and stage."""
    run = stored(tmp_path / "run", [sampled.record()])
    (file,) = document.write([run], tmp_path, [form])
    if form == "folded":
        lines = [line.rpartition(" ") for line in file.read_text().splitlines()]
        times = {chain: int(ns) for chain, _, ns in lines}
        chain = "example#1;receiver;rx_ip;napi_threaded_poll;__napi_poll;ip_rcv"
        assert 200 * 10**6 == times[chain]
        assert 900 * 10**6 == sum(times.values())
        return
    data: dict[str, Any] = json.loads(file.read_text())
    assert ["example#1 receiver", "example#1 sender"] == [p["name"] for p in data["profiles"]]
    assert [800 * 10**6, 100 * 10**6] == [sum(p["weights"]) for p in data["profiles"]]
    for profile in data["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert max(map(max, profile["samples"])) < len(data["shared"]["frames"])
        assert profile["endValue"] == sum(profile["weights"])


def test_a_name_of_a_foreign_run_is_no_line_of_its_own(tmp_path: Path) -> None:
    """Such as a function's, in a file of a line for each chain."""
    seen = sampled.Seen(0, sampled.NAPI.pid, ("ip_rcv\nx;y 1", "__napi_poll"), 5)
    (file,) = document.write(
        [stored(tmp_path / "run", [sampled.record(seen)])], tmp_path, ["folded"]
    )
    lines = file.read_text().splitlines()
    assert 1 == sum("ip_rcv\\nx:y 1 " in line for line in lines)
    assert all(line.startswith("example#1;") for line in lines)


def test_a_run_without_samples_has_no_stacks(tmp_path: Path, golden: Golden) -> None:
    """The error says how to get them."""
    with golden.raises(InputError):
        document.write([stored(tmp_path / "run")], tmp_path, ["speedscope"])


def test_a_narrow_terminal_cuts_no_cell_of_the_table(tmp_path: Path) -> None:
    """Headings that are wider than their column wrap instead, and the point keeps its name."""
    (shown,) = chapters_of(stored(tmp_path, [sampled.record()]))
    text = printed(*parts(shown, 80), width=80)
    table = text.partition("CPU time per packet")[2].splitlines()
    row = next(line.split() for line in table if "rx_application" in line)
    assert ["receiver", "rx_application", "200", "000"] == row[:4]
    assert any(line.split()[:3] == ["all", "#1", "sender"] for line in table)
    assert ["point", "end", "stage", "packet", "low", "ns"] == table[2].split()[:6]


def test_stages_that_differ_are_shown_below_the_comparison(tmp_path: Path) -> None:
    """In terminal and JSON, of points that were sampled in six blocks."""
    pair = PointPair("a", "b", "cpu_ns", 0.03, (6,))
    whole = experiment(points=[trial("a"), trial("b")], compare=(pair,))
    records = []
    for repetition in range(1, 8):
        more = 20 + repetition
        slower = sampled.Seen(0, 20, ("udp_rcv", "__napi_poll"), more)
        idle = QUIET[4]._replace(count=1200 - more)
        for point, record in (
            ("a", sampled.record()),
            ("b", sampled.record(slower, seen=(*QUIET[:4], idle, *QUIET[5:]), busy_ms=800 + more)),
        ):
            records.append(replace(record, trial=trial(point, repetition)))
    run = stored(tmp_path, records, whole)
    (shown,) = chapters_of(run)
    text = printed(*parts(shown, 120), width=120)
    assert "CPU time by stage: what differs" in text
    (change,) = as_json(run)["experiments"][0]["stage_changes"]
    assert ("rx_udp", 24_000) == (change["stage"], pytest.approx(change["change_ns"]))

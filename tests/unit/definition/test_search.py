"""The key ``search``: its defaults and presets, what it refuses and where, and its metric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from golden import Golden

from udpbench.definition.load import load_experiments
from udpbench.errors import InputError
from udpbench.model.experiment import PointPair, Search, SearchRange, Side
from udpbench.model.limits import SECOND_NS
from udpbench.units import Rate


def write(folder: Path, text: str) -> str:
    """Return the name of an experiment's file with a text below its question."""
    file = folder / "found.yaml"
    file.write_text(f"question: How many?\n{text}")
    return str(file)


def test_the_defaults_and_what_may_be_set(tmp_path: Path) -> None:
    """Two goals, the sender as the limit, one repetition; or as written."""
    (plain,) = load_experiments([write(tmp_path, "search: {}\n")])
    assert (Search(), 1, True) == (plain.points[0].search, plain.repetitions, plain.searched)
    text = "search: {loss: 0.5%, rate: {from: 2kpps, to: 1Mpps}, precision: 2%, trial: 2s,"
    text += " time: 10s, exceed: 0%, within: 2min, confirm: 30s}\nrepetitions: 3\n"
    (full,) = load_experiments([write(tmp_path, text)])
    expected = Search(
        (0.005,),
        SearchRange(Rate(2000), Rate(1_000_000)),
        0.02,
        2 * SECOND_NS,
        10 * SECOND_NS,
        0.0,
        120 * SECOND_NS,
        30 * SECOND_NS,
    )
    assert (expected, 3) == (full.points[0].search, full.repetitions)


@pytest.mark.parametrize(
    ("preset", "goals", "trial_s", "time_s", "exceed"),
    [
        ("rfc2544", (0.0,), 60, 60, 0.0),
        ("csit", (0.0, 0.005), 1, 21, 0.5),
        ("quick", (0.001,), 0.5, 2.5, 0.5),
    ],
)
def test_a_word_stands_for_a_search(
    tmp_path: Path,
    preset: str,
    goals: tuple[float, ...],
    trial_s: float,
    time_s: float,
    exceed: float,
) -> None:
    """In the file, or by --set."""
    (written,) = load_experiments([write(tmp_path, f"search: {preset}\n")])
    (overridden,) = load_experiments([write(tmp_path, "search: {}\n")], [f"search={preset}"])
    search = written.points[0].search
    assert search is not None
    assert search == overridden.points[0].search
    assert (goals, trial_s * 1e9, time_s * 1e9, exceed) == (
        search.goals,
        search.trial_ns,
        search.time_ns,
        search.exceed,
    )


def test_a_key_that_is_set_leaves_the_others_of_a_word(tmp_path: Path) -> None:
    """As in a map: the advice to raise a search's time is to change that alone."""
    file = write(tmp_path, "search: quick\n")
    (plain,), (longer,) = (load_experiments([file], sets) for sets in ([], ["search.within=3min"]))
    before, now = plain.points[0].search, longer.points[0].search
    assert before is not None
    assert replace(before, within_ns=180 * SECOND_NS) == now
    (swept,) = load_experiments(
        [write(tmp_path, "search: quick\nsweep: {search.time: [3s, 5s]}\n")]
    )
    assert [before.loss] * 2 == [point.search and point.search.loss for point in swept.points]


REFUSED = {
    "a goal above the precision": "search:\n  loss: [0, 2%]\n",
    "from above to": "search:\n  rate: {from: 2Mpps, to: 1Mpps}\n",
    "a rate": "traffic: {rate: 10kpps}\nsearch: quick\n",
    "a count": "traffic: {count: 10}\nsearch: quick\n",
    "tcp": "traffic: {protocol: tcp}\nsearch: quick\n",
    "a duration": "search: quick\nduration: 5s\n",
    "losses": "search: quick\nlosses: {udp_rcvbuf: 5}\n",
    "a fault": "search: quick\nreceive: {fault: {worker: 1, after: 100ms, does: hang}}\n",
    "no reader": "search: quick\nreceive: {workers: 0}\n",
    "bits of nothing": "traffic: {size: 0B}\nreceive: {read: copy}\nsearch: {rate: {to: 1Mbps}}\n",
    "fewer than workers": "search: {rate: {from: 1pps}}\nsend: {workers: 2}\n"
    "traffic: {flows: {from: 1-2}}\n",
    "a short time": "search: {trial: 5s, time: 2s}\n",
    "a short limit": "search: {within: 2s}\n",
    "an unknown word": "search: quik\n",
    "an unknown key": "search: {los: 1%}\n",
    "a goal of all": "search: {loss: 100%}\n",
    "no share": "search: {exceed: many}\n",
    "no goal": "search: {loss: []}\n",
    "a goal twice": "search: {loss: [0, 0%]}\n",
    "too many goals": "search: {precision: 90%, loss: [1%, 2%, 3%, 4%, 5%, 6%, 7%, 8%, 9%]}\n",
    "a swept goal": "search: quick\nsweep: {search.loss: [0%, 0.1%]}\n",
    "a goal of a variant": "variants: {a: {search: quick}, b: {search: csit}}\n",
    "a point without": "variants: {a: {search: quick}, b: {send.batch: 2}}\n",
    "another metric": "search: quick\nexpect: [delivered_pps > 1kpps]\n",
    "another metric to compare": "search: quick\nsweep: {send.batch: [1, 2]}\n"
    "compare: {a: batch=1, b: batch=2, metric: loss_ratio}\n",
    "an unknown goal": "search: quick\nexpect: ['throughput_pps[loss=1%] > 1kpps']\n",
    "a goal that is none": "search: quick\nexpect: ['throughput_pps[loss=little] > 1kpps']\n",
    "its metric without it": "expect: [throughput_pps > 1kpps]\n",
}


def test_what_contradicts_a_search_is_refused_with_its_line(tmp_path: Path, golden: Golden) -> None:
    """Each before any host is asked."""
    messages = []
    for text in REFUSED.values():
        with pytest.raises(InputError) as caught:
            load_experiments([write(tmp_path, text)])
        messages.append(str(caught.value).replace(str(tmp_path), "FOLDER"))
    golden.check(messages)


def test_a_goal_is_named_in_the_brackets_of_its_metric(tmp_path: Path) -> None:
    """Beside a point or alone; a comparison without a metric is of the headline."""
    text = "search: {loss: [0, 0.1%]}\nsweep: {receive.batch: [1, 64]}\nrepetitions: 6\nexpect:\n"
    text += "  - throughput_pps[loss=0.1%,batch=64] > 1.1 * throughput_pps[batch=1]\n"
    text += "  - throughput_pps[loss=0] > 1kpps\ncompare: {a: batch=1, b: batch=64}\n"
    (experiment,) = load_experiments([write(tmp_path, text)])
    first, second = experiment.expect
    assert Side(1.0, "throughput_pps[loss=0.1%]", "batch=64") == first.left
    assert Side(1.1, "throughput_pps", "batch=1") == first.right
    assert Side(1.0, "throughput_pps[loss=0%]", None) == second.left
    assert (PointPair("batch=1", "batch=64", "throughput_pps", 0.03),) == experiment.compare


def test_keys_other_than_the_goals_may_be_swept(tmp_path: Path) -> None:
    """Each point is searched in its own way."""
    (experiment,) = load_experiments(
        [write(tmp_path, "search: {}\nsweep: {search.trial: [1s, 2s], send.batch: [1, 2]}\n")]
    )
    lengths = [trial.search.trial_ns for trial in experiment.points if trial.search is not None]
    assert [SECOND_NS] * 2 + [2 * SECOND_NS] * 2 == lengths

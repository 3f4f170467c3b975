"""The key ``cpu_time``, and stages of the CPUs in expectations and comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import Golden

from udpbench.definition.load import load_experiments
from udpbench.errors import InputError
from udpbench.model.experiment import PointPair, Side


def write(folder: Path, text: str) -> str:
    """Return the name of an experiment's file with a text below its question."""
    file = folder / "cost.yaml"
    file.write_text(f"question: What does it cost?\n{text}")
    return str(file)


def test_stages_are_named_in_the_brackets_of_the_metric(tmp_path: Path) -> None:
    """Beside a point or alone, in expectations and in comparisons; sampling is off by default."""
    text = "cpu_time: true\nsweep: {traffic.size: [64B, 128B]}\nrepetitions: 6\nexpect:\n"
    text += "  - cpu_ns[stage=rx_netfilter,size=64B] < 100ns\n  - cpu_ns[stage=rx_ip] < 1us\n"
    text += "  - cpu_ns[size=64B] < 1.1 * cpu_ns[size=128B]\n"
    text += "compare: {a: size=64B, b: size=128B, metric: 'cpu_ns[stage=rx_copy]'}\n"
    (experiment,) = load_experiments([write(tmp_path, text)])
    first, second, third = experiment.expect
    assert Side(1.0, "cpu_ns[stage=rx_netfilter]", "size=64B") == first.left
    assert (Side(1.0, "cpu_ns[stage=rx_ip]", None), Side(1000.0)) == (second.left, second.right)
    assert Side(1.1, "cpu_ns", "size=128B") == third.right
    pair = PointPair("size=64B", "size=128B", "cpu_ns[stage=rx_copy]", 0.03)
    assert (pair,) == experiment.compare
    node = "cpu_time: true\nexpect: ['cpu_ns[stage=router1.fwd_netfilter,size=64B] < 1us']\n"
    (of_node,) = load_experiments([write(tmp_path, f"{node}sweep: {{traffic.size: [64B]}}\n")])
    assert Side(1.0, "cpu_ns[stage=router1.fwd_netfilter]", "size=64B") == of_node.expect[0].left
    assert [True, True] == [trial.cpu_time for trial in experiment.points]
    (plain,) = load_experiments([write(tmp_path, "")])
    assert not plain.points[0].cpu_time


REFUSED = (
    "expect: ['cpu_ns[stage=rx_ip] < 1us']\n",
    "cpu_time: true\nexpect: ['cpu_ns[stage=rx_netfiltre] < 1us']\n",
    "cpu_time: true\nexpect: ['cpu_ns[stage=rx_ip,stage=rx_udp] < 1us']\n",
    "cpu_time: true\nexpect: ['cpu_ns[stage=router1.fwd] < 1us']\n",
    "cpu_time: true\nexpect: ['delivered_pps[stage=rx_ip] > 1kpps']\n",
    "cpu_time: often\n",
    (
        "cpu_time: true\nsweep: {send.batch: [1, 2]}\n"
        "compare: {a: batch=1, b: batch=2, metric: 'cpu_ns[stage=rx]'}\n"
    ),
)


def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, golden: Golden) -> None:
    """A stage that does not exist, and CPU time without samples."""
    messages = []
    for text in REFUSED:
        with pytest.raises(InputError) as caught:
            load_experiments([write(tmp_path, text)])
        messages.append(str(caught.value).replace(str(tmp_path), "FOLDER"))
    golden.check(messages)

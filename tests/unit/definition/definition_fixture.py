"""How the tests of definitions load a text: as a file of a folder of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from udpbench.definition import load
from udpbench.errors import InputError
from udpbench.model.experiment import Trial
from udpbench.model.host import Facts


def write(folder: Path, text: str, name: str = "x.yaml") -> str:
    """Write a definition and return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def refused(*texts: str, sets: tuple[str, ...] = ()) -> list[str]:
    """Return the messages by which an experiment is refused; a question is put in front."""
    write(Path.cwd(), "question: Why?\n" + "\n".join(texts) + "\n")
    with pytest.raises(InputError) as caught:
        load.load_experiments(["x.yaml"], sets)
    return str(caught.value).splitlines()


def loaded(*texts: str, sets: tuple[str, ...] = ()) -> Any:
    """Return the experiment of a text; a question is put in front."""
    write(Path.cwd(), "question: Why?\n" + "\n".join(texts) + "\n")
    return load.load_experiments(["x.yaml"], sets)[0]


def facts(host: str, cpus: tuple[int, ...] = (0, 1), **changes: Any) -> Facts:
    """Return the facts of a host on a machine with these CPUs."""
    known = Facts(
        host=host,
        hostname="here",
        kernel="6.18",
        boot_id="b",
        python="3.11",
        cpus=cpus,
        cpu_model=None,
        numa_nodes={"0": cpus},
        siblings={str(cpu): (cpu,) for cpu in cpus},
        interface="x0",
        driver="veth",
        mac=None,
        mtu=1500,
        addresses=(),
        rx_queues=1,
        tx_queues=1,
        queue_cpus={},
        limits={},
        capabilities={},
    )
    return replace(known, **changes)


def both(cpus: tuple[int, ...] = (0, 1), **changes: Any) -> dict[str, Facts]:
    """Return facts of both hosts of the small lab."""
    return {name: facts(name, cpus, **changes) for name in ("sender", "receiver")}


def trial(**parts: Any) -> Trial:
    """Return the one trial of an experiment given as data."""
    return load.load_experiment_data({"question": "x", **parts}, "x").points[0]

"""The index of experiments/README.md, made from the files themselves.

``python tests/unit/definition/experiments_index.py`` writes it; a test holds the file equal to it.
"""

from __future__ import annotations

from pathlib import Path

from udpbench import units
from udpbench.definition import load, shipped
from udpbench.model.experiment import Experiment, HostNeeds, Needs

README = Path(__file__).resolve().parents[3] / "experiments" / "README.md"
BEGIN, END = "<!-- index: made by experiments_index.py -->\n", "<!-- end of index -->\n"


def index() -> str:
    """Return the tables of all shipped experiments, one for each folder."""
    names = shipped.shipped_names()
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    return "\n".join(_table(folder, inside) for folder, inside in sorted(folders.items()))


def _table(folder: str, names: list[str]) -> str:
    lines = [f"### {folder}/\n"] if folder else []
    lines += ["| name | asks | takes | needs |", "|---|---|---|---|"]
    for name in names:
        (experiment,) = load.load_experiments([name])
        cells = (f"`{name}`", experiment.question, takes(experiment), needs(experiment))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def takes(experiment: Experiment) -> str:
    """Return how many trials there are and how long each sends; preparing comes on top."""
    trials = len(experiment.points) * experiment.repetitions
    lengths = []
    if experiment.searched:
        searches = f"{trials} search{'es' if trials > 1 else ''}"
        limits = {units.format_duration(p.search.within_ns) for p in experiment.points if p.search}
        return f"{searches} of at most {' or '.join(sorted(limits))}"
    for point in experiment.points:
        traffic = point.traffic
        length = units.format_duration(point.duration_ns + point.warmup_ns)
        if traffic.count_packets is not None:
            length = f"{units.format_count(traffic.count_packets)} packets"
        lengths.append(length)
    return f"{trials} × {' or '.join(dict.fromkeys(lengths))}"


def needs(experiment: Experiment) -> str:
    """Return what every point needs, else each variant's needs behind its name."""
    texts = {point.variant or point.point: _needs(point.needs) for point in experiment.points}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)


def _needs(needed: Needs) -> str:
    parts = [] if needed.lab is None else ["a built-in lab" if needed.lab else "real hosts"]
    for role, host in (("sender", needed.sender), ("receiver", needed.receiver)):
        text = ", ".join(_host(host))
        parts += [f"{role} with {text}"] if text else []
    return "; ".join(parts)


def _host(needed: HostNeeds) -> list[str]:
    counted = (
        (needed.cpus, "CPU"),
        (needed.rx_queues, "RX queue"),
        (needed.nodes, "NUMA node"),
    )
    parts = [f"{n} {what}{'s' if n > 1 else ''}" for n, what in counted if n is not None]
    if needed.smt is not None:
        parts.append("SMT" if needed.smt else "no SMT")
    if needed.rings is not None:
        parts.append("rings to set" if needed.rings else "no rings to set")
    return parts


def with_index(text: str) -> str:
    """Return a README with the index put in anew."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + index() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    README.write_text(with_index(README.read_text()))

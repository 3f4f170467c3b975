"""A campaign in a folder of its own: two experiments on lab files, and an engine that is a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from udpbench.campaign.cells import Cell, cells_of, load_labs
from udpbench.campaign.conduct import News
from udpbench.definition.load import load_experiments

LAB = """\
sender: [{connect: namespace, interface: send0, addresses: [192.168.254.30/24]}]
receiver: [{connect: namespace, interface: receive0, addresses: [192.168.254.1-20/24]}]
"""
EXPERIMENTS = {"first": "question: First?\n", "second": "question: Second?\n"}


def write_files(folder: Path, pairs: Sequence[str] = ("rack1", "rack2")) -> None:
    """Write two experiments, and a lab file for each pair."""
    for name, text in EXPERIMENTS.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "racks").mkdir(exist_ok=True)
    for pair in pairs:
        (folder / "racks" / f"{pair}.yaml").write_text(LAB)


def cells(*sets: str, pairs: Sequence[str] = ("rack1", "rack2")) -> list[Cell]:
    """Return the cells of the experiments in the working folder on these pairs."""
    experiments = load_experiments([f"{name}.yaml" for name in EXPERIMENTS], sets)
    return cells_of(experiments, load_labs([f"racks/{pair}.yaml" for pair in pairs]))


def answered(
    code: int = 0, reason: str = "", chosen: bool = True, **files: bytes
) -> dict[str, Any]:
    """Return what a worker returns of a cell."""
    return {"exit_code": code, "reason": reason, "chosen": chosen, "files": files}


@dataclass
class ListEngine:
    """Ends a placed cell at the next question for news, as ``ends`` says; None: it goes on."""

    ends: Callable[[str], News | None] = lambda cell: News(cell, result=answered())
    served: Callable[[str], bool] = lambda _: True
    placed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    withdrawn: bool = False

    def serves(self, pair: str) -> bool:
        """Return what ``served`` says."""
        return self.served(pair)

    def how_to_serve(self, pair: str) -> str:
        """Return a line to type."""
        return f"start a worker for {pair}"

    def place(self, pair: str, task: Mapping[str, Any]) -> None:
        """Note it; a cell is of the pair for which it is placed."""
        assert task["folder"].startswith(f"{pair}/")
        self.placed.append(task["folder"])
        self.waiting.append(task["folder"])

    def news(self, wait_s: float) -> Sequence[News]:
        """End what ends, without a wait."""
        assert wait_s > 0
        news = [each for each in map(self.ends, self.waiting) if each is not None]
        for each in news:
            if each.result is not None or each.lost:
                self.waiting.remove(each.cell)
        return news

    def forget(self, cell: str) -> None:
        """Note it."""
        self.forgotten.append(cell)

    def withdraw(self) -> None:
        """Note it."""
        self.withdrawn = True

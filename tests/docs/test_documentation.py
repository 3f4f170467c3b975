"""Documentation is executed: what it shows is loaded, and run where this machine allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from udpbench.definition.load import load_experiments

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    (udpbench .*?)(?:\s+#.*)?$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
CHECKS = ("lint", "types", "unit", "agent", "native", "lab", "docs", "bench")


def yaml_blocks() -> list[tuple[str, str]]:
    """Return page name and text of every YAML block that is a whole experiment."""
    return [
        (page.name, block)
        for page in PAGES
        for block in YAML_BLOCK.findall(page.read_text())
        if re.search(r"^question:", block, re.MULTILINE)
    ]


@pytest.mark.parametrize(("page", "block"), yaml_blocks())
def test_an_experiment_that_a_page_shows_loads(page: str, block: str, tmp_path: Path) -> None:
    """A reader who copies the block has a valid experiment."""
    file = tmp_path / "mine.yaml"
    file.write_text(block)
    (experiment,) = load_experiments([str(file)])
    assert experiment.points


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names something that exists."""
    broken = [to for to in LINK.findall(page.read_text()) if not (page.parent / to).exists()]
    assert [] == broken


def test_every_verb_is_in_the_readme() -> None:
    """No verb of the command line is left for the reader to find."""
    helped = subprocess.run(
        [sys.executable, "-m", "udpbench", "--help"], capture_output=True, text=True, check=True
    )
    verbs = re.findall(r"^  ([a-z]+)  ", helped.stdout, re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert len(verbs) >= 6
    assert [] == [verb for verb in verbs if f"udpbench {verb}" not in readme]


def test_every_check_by_name_is_in_contributing() -> None:
    """Whoever changes the project finds the name of every check."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert [] == [check for check in CHECKS if check not in page]


@pytest.mark.lab
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """The block that follows the README's experiment works as it stands, in its order."""
    if os.geteuid() != 0:
        if os.environ.get("UDPBENCH_REQUIRE_LAB"):
            pytest.fail("the lab is required here, and needs root")
        pytest.skip("the built-in lab needs root: sudo python3 noxfile.py docs")
    readme = (ROOT / "README.md").read_text()
    (block,) = (text for name, text in yaml_blocks() if name == "README.md")
    (tmp_path / "mine.yaml").write_text(block)
    commands = COMMAND.findall(readme)
    assert len(commands) >= 3
    for command in commands:
        words = [sys.executable, "-m", *command.split()]
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert 0 == done.returncode, f"{command}\n{done.stdout}\n{done.stderr}"

"""Documentation is executed: what it shows is loaded, and run where this machine allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from busy import ended_well, run_of
from sampled import sampled
from typer.testing import CliRunner

from udpbench.analysis.doctor import READINESS
from udpbench.commands.command_line import app
from udpbench.definition.load import load_experiments, schema
from udpbench.errors import PRECEDENCE, YES
from udpbench.model.limits import LEDGER_STAGES, SYSCTLS
from udpbench.setting_kinds import SETTING_KINDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    ((?:udpbench|pytest) .*?)(?:\s+# (.*))?$", re.MULTILINE)
NAMED_BLOCK = re.compile(r"^```(?:yaml|python)\n(# (\S+)\n.*?)^```", re.MULTILINE | re.DOTALL)
PLUGIN = [] if "udpbench" in entry_points(group="pytest11").names else ["-pudpbench.pytest_plugin"]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
KERNEL_FACT = re.compile(r"docs/kernel\.md,\s+([\w\s]+)")
OLDEST = (5, 4)
"""The oldest Linux of which nothing is missing that udpbench needs (docs/kernel.md, Older kernels)."""
RELEASE = re.compile(
    r"(?:Linux|since|before|until|and) (\d)\.(\d+)(?!\w|\.\d)|RELEASE = \((\d), (\d+)\)"
)
KERNEL_ROW = re.compile(r"^\| (\d)\.(\d+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
PLUGIN_SOURCE = ROOT / "udpbench" / "pytest_plugin.py"
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


def test_every_fact_of_the_kernel_that_code_cites_is_written_down() -> None:
    """By the heading under which it stands."""
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "kernel.md").read_text(), re.MULTILINE)
    cited = {
        " ".join(heading.split())
        for files in ("udpbench/**/*.py", "tests/agent/**/*.py", "native/*.[ch]")
        for file in ROOT.glob(files)
        for heading in KERNEL_FACT.findall(file.read_text())
    }
    assert sorted(headings) == sorted(cited)


def test_every_feature_of_a_later_kernel_has_a_row() -> None:
    """Which says what happens below, and names each file that asks for it; and no row is stale."""
    page = (ROOT / "docs" / "kernel.md").read_text().partition("## Older kernels")[2]
    rows = {
        (int(major), int(minor), file)
        for major, minor, files, below in KERNEL_ROW.findall(page.partition("\n## ")[0])
        for file in re.findall(r"`(\w+)`", files)
        if below.strip()
    }
    asked = [
        *ROOT.glob("udpbench/agent/**/*.py"),
        *ROOT.glob("native/**/*.[ch]"),
        *ROOT.glob("udpbench/analysis/ledger/*.py"),
        ROOT / "udpbench/drivers.py",
        ROOT / "udpbench/ways.py",
        ROOT / "udpbench/definition/binding/requirements.py",
    ]
    mentioned = {
        (*release, file.stem)
        for file in asked
        for match in RELEASE.finditer(file.read_text())
        if (release := tuple(int(n) for n in match.groups() if n)) > OLDEST
        and "Linux 6.18" not in match[0]  # of that kernel's own doing, not of a feature
    }
    assert sorted(mentioned) == sorted(rows)


def test_every_verb_is_in_the_first_experiment() -> None:
    """No verb of the command line is left for the reader to find."""
    page = (ROOT / "docs" / "first-experiment.md").read_text()
    assert len(verbs()) >= 6
    assert [] == [verb for verb in verbs() if f"udpbench {verb}" not in page]


def test_the_readme_links_to_every_page() -> None:
    """The rest is one click away."""
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    assert [] == [
        page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in linked
    ]


def test_every_page_is_in_the_menu_of_the_site() -> None:
    """``noxfile.py site`` refuses a page that is in none."""
    menu = (ROOT / "mkdocs.yml").read_text()
    assert [] == [name for page in PAGES if (name := str(page.relative_to(ROOT))) not in menu]


def test_the_readme_counts_the_stages() -> None:
    """As many as the ledger has."""
    assert f" one of {len(LEDGER_STAGES)} stages" in (ROOT / "README.md").read_text()


def test_every_check_by_name_is_in_contributing() -> None:
    """Whoever changes the project finds the name of every check."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert [] == [check for check in CHECKS if check not in page]


def test_every_key_is_documented() -> None:
    """No key that a file may have is left for the reader to find in the schema."""
    page = (ROOT / "docs" / "experiments.md").read_text()
    spans = re.findall(r"`([^`\n]+)`", page)
    known = {word for span in spans for word in re.findall(r"[a-z0-9][a-z0-9_-]*", span)}
    assert len(keys_of(schema())) > 100
    assert [] == sorted(keys_of(schema()) - known)


def test_every_sysctl_that_may_be_set_is_documented() -> None:
    """Beside those of the network, which the page names as a whole."""
    page = (ROOT / "docs" / "settings.md").read_text()
    assert [] == [name for name in ("net.*", *SYSCTLS) if f"`{name}`" not in page]


def test_the_kinds_of_setting_are_documented() -> None:
    """The page's table is that of the leaf, row by row."""
    page = (ROOT / "docs" / "settings.md").read_text()
    rows = [
        f"| `{kind.name}` | {kind.scope} | `{kind.target}` | {kind.value} | {kind.meaning} |\n"
        for kind in SETTING_KINDS.values()
    ]
    assert f"|---|---|---|---|---|\n{''.join(rows)}\n" in page


def keys_of(part: Any) -> set[str]:
    """Return every key that a part of a JSON Schema lets a file have."""
    if isinstance(part, list):
        return {key for item in part for key in keys_of(item)}
    if not isinstance(part, dict):
        return set()
    keys = set(part["properties"]) if isinstance(part.get("properties"), dict) else set()
    return keys.union(*(keys_of(item) for item in part.values()))


def test_every_option_and_verb_is_in_the_page_of_commands() -> None:
    """Each verb's options in its own section, and no other."""
    page = (ROOT / "docs" / "commands.md").read_text()
    section = re.compile(r"^### udpbench (\w+)[^\n]*\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
    sections = dict(section.findall(page))
    for verb in verbs():
        assert f"`udpbench {verb}" in page
        below = re.findall(r"^  ([a-z]+)  ", helped(verb).partition("Commands:")[2], re.MULTILINE)
        texts = "".join(helped(*words) for words in [[verb], *([verb, each] for each in below)])
        options = set(re.findall(r"^  (--[a-z-]+)", texts, re.MULTILINE)) - {"--help"}
        named = set(re.findall(r"`(--[a-z-]+)", sections.get(verb, ""))) - {"--no-report"}
        assert (verb, options) == (verb, named)


def test_every_exit_code_is_in_the_page_of_commands() -> None:
    """And which of several a run ends with."""
    page = (ROOT / "docs" / "commands.md").read_text()
    assert sorted((YES, *PRECEDENCE)) == [
        int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)
    ]
    first, second, *others = PRECEDENCE
    text = ", ".join(str(code) for code in others)
    assert f"{first} outranks {second}, then {text}." in page


def test_every_check_of_doctor_is_in_the_page_of_commands() -> None:
    """In the row of its severity."""
    page = (ROOT / "docs" / "commands.md").read_text()
    for check in READINESS:
        rows = re.findall(rf"^\| {check.severity}.*", page, re.MULTILINE)
        assert f"`{check.name}`" in "".join(rows)


def test_every_option_of_the_plugin_is_in_its_page() -> None:
    """Options and ini keys, as the plugin asks pytest for them."""
    pattern = re.compile(r"--udpbench-[a-z]+|udpbench_(?:files|wait|baseline|margin)\b")
    page = set(pattern.findall((ROOT / "docs" / "pytest.md").read_text()))
    ours = re.findall(r'"(--udpbench-[a-z]+|udpbench_[a-z]+)",', PLUGIN_SOURCE.read_text())
    options = {"--udpbench-lab", "--udpbench-out", "--udpbench-baseline", "--udpbench-margin"}
    ini = {"udpbench_files", "udpbench_wait", "udpbench_baseline", "udpbench_margin"}
    assert options | ini == set(ours)
    assert set(ours) == page


def test_the_picture_of_the_way_has_every_stage() -> None:
    """The packet's way is whole, and each of its stages is explained."""
    stages = (ROOT / "docs" / "ledger.md").read_text()
    section = stages.partition("## The packet's way")[2].partition("## ")[0]
    assert [] == [stage for stage in LEDGER_STAGES if not re.search(rf"\b{stage}\b", section)]
    assert [] == [stage for stage in LEDGER_STAGES if f"`{stage}`" not in stages]


def helped(*words: str) -> str:
    """Return what the program says of itself, or of a verb."""
    return CliRunner().invoke(app, [*words, "--help"], catch_exceptions=False).output


def verbs() -> list[str]:
    """Return the verbs of the command line."""
    return re.findall(r"^  ([a-z]+)  ", helped(), re.MULTILINE)


@pytest.mark.lab
@pytest.mark.parametrize(
    ("page", "count"),
    sampled(
        [
            ("docs/first-experiment.md", 1),
            ("docs/first-experiment.md", None),
            ("docs/pytest.md", None),
        ],
        [("docs/first-experiment.md", 1)],
    ),
)
def test_a_new_user_can_follow_the_page(page: str, count: int | None, tmp_path: Path) -> None:
    """Files as they are shown, then the commands in their order, each with the exit code it says."""
    if os.geteuid() != 0:
        if os.environ.get("UDPBENCH_REQUIRE_LAB"):
            pytest.fail("the lab is required here, and needs root")
        pytest.skip("the built-in lab needs root: sudo python3 noxfile.py docs")
    text = (ROOT / page).read_text()
    for block, name in NAMED_BLOCK.findall(text):
        (tmp_path / name).write_text(block)
    commands = COMMAND.findall(text)
    assert len(commands) >= 3
    for command, comment in commands[:count]:
        expected = re.match(r"exit (\d+)", comment)
        program, *words = command.split()
        plugin = PLUGIN if program == "pytest" else []
        done = subprocess.run(
            [sys.executable, "-m", program, *plugin, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        code = int(expected.group(1)) if expected is not None else 0
        well = done.returncode == code
        if words[:1] == ["run"] and code == 0:
            well = well or ended_well(done.returncode, run_of(done.stdout, tmp_path))
        assert well, f"{command}\n{done.stdout}\n{done.stderr}"

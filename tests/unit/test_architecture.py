"""The house plan as tests: who may import what, and what the leaves must run on."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from golden import Golden

import udpbench
from udpbench.control.deployment.bundle import exporter_files
from udpbench.protocol import AGENT_LEAVES

PACKAGE = Path(udpbench.__file__).parent
DESIGN = Path(__file__).resolve().parents[2] / "docs" / "design.md"
LEAVES = (
    "confinement",
    "differences",
    "cpu_lists",
    "cpu_stages",
    "drivers",
    "errors",
    "folder",
    "heap",
    "installation",
    "json_lines",
    "units",
    "frozen",
    "host_settings",
    "metrics",
    "model",
    "protocol",
    "parent_death",
    "printable",
    "setting_kinds",
    "text_tables",
    "ways",
)

# Room or module → (what it may import of udpbench, what it may import from outside the standard
# library). The longest matching name decides. docs/design.md says what each room is for.
RULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "confinement": (("parent_death",), ()),
    "cpu_lists": ((), ()),
    "cpu_stages": (("text_tables",), ()),
    "differences": (("units",), ()),
    "drivers": (("model",), ()),
    "errors": (("printable",), ()),
    "folder": ((), ()),
    "heap": ((), ()),
    "frozen": ((), ()),
    "installation": ((), ()),
    "json_lines": ((), ()),
    "parent_death": ((), ()),
    "printable": ((), ()),
    "units": (("errors",), ()),
    "host_settings": (("frozen", "units"), ()),
    "metrics": (("cpu_stages", "units"), ()),
    "model": (("errors", "frozen", "units", "host_settings", "metrics", "model"), ()),
    "model.limits": ((), ()),
    "model.experiment": (("frozen", "units", "host_settings", "metrics", "model.limits"), ()),
    "protocol": (("errors", "frozen", "json_lines", "units", "metrics", "model"), ()),
    "setting_kinds": (("cpu_lists", "model", "text_tables"), ()),
    "text_tables": ((), ()),
    "ways": (("model", "units"), ()),
    "flight": (LEAVES, ()),
    "export": (
        (
            *(*LEAVES, "analysis.watch", "control.agent_client", "control.wait"),
            *("agent.scrapes", "control.connections.local_agent", "export", "flight"),
        ),
        (),
    ),
    "export.exposition": ((*LEAVES, "analysis.watch", "export.surveys"), ("prometheus_client",)),
    "definition": ((*LEAVES, "definition"), ("yaml", "pydantic", "pydantic_core")),
    "definition.binding.flow_selection": ((*LEAVES, "definition"), ("scipy",)),
    "analysis": ((*LEAVES, "analysis"), ("MLRsearch", "numpy")),
    "analysis.comparison": (
        (*LEAVES, "analysis.comparison", "analysis.points"),
        (),
    ),
    "tuning": ((*LEAVES, "analysis", "tuning"), ()),
    "tuning.derived_points": ((*LEAVES, "analysis", "definition", "tuning"), ()),
    "tuning.recipe": ((*LEAVES, "definition.overrides", "tuning"), ()),
    "meanwhile": (("parent_death",), ()),
    "stored_numbers": (("json_lines", "model"), ()),
    "judged_trials": (("folder", "json_lines", "model"), ()),
    "records": (
        (*LEAVES, "judged_trials", "meanwhile", "records", "stored_numbers"),
        ("pydantic", "pydantic_core"),
    ),
    "judged_run": (
        (
            *(*LEAVES, "judged_trials", "meanwhile", "records", "analysis"),
            *("tuning.derived_points", "tuning.outcome", "tuning.tuner"),
        ),
        (),
    ),
    "report": (
        (
            *(*LEAVES, "meanwhile", "records", "analysis", "judged_run", "report"),
            "definition.published",
        ),
        ("rich", "pandas", "matplotlib", "typst", "numpy", "jinja2", "markupsafe"),
    ),
    "report.campaign": (
        (*LEAVES, "analysis", "report", "store"),
        ("markupsafe", "matplotlib", "pandas", "rich"),
    ),
    "agent": ((*LEAVES, "agent"), ()),
    "agent.install": ((), ()),
    "agent.host": ((*LEAVES, "agent.host"), ("psutil", "pyroute2")),
    "agent.host.own_python": (("agent.install",), ()),
    "agent.host.native": ((*LEAVES, "_native"), ()),
    "agent.settings": ((*LEAVES, "agent.host", "agent.settings"), ("pyroute2",)),
    "agent.counters": ((*LEAVES, "agent.host", "agent.counters"), ()),
    "agent.workers": ((*LEAVES, "agent.host", "agent.workers"), ()),
    "agent.workers.frame_receiver": ((*LEAVES, "agent.host", "agent.workers", "_native"), ()),
    "agent.workers.frame_sender": ((*LEAVES, "agent.host", "agent.workers", "_native"), ()),
    "agent.workers.loops": ((*LEAVES, "agent.host", "agent.workers", "_native"), ()),
    "agent.workers.memory": ((*LEAVES, "agent.host", "agent.workers", "_native"), ()),
    "agent.losses": ((*LEAVES, "agent.host", "agent.losses"), ()),
    "control": (
        (
            *LEAVES,
            "definition",
            "records",
            "analysis.judge",
            "analysis.comparison.comparisons",
            "analysis.delta",
            "analysis.ledger.ledger",
            "analysis.queue_counters",
            "analysis.result_tables",
            "analysis.watch",
            "analysis.search",
            "tuning.derived_points",
            "tuning.tuner",
            "control",
        ),
        (),
    ),
    "control.connections": ((*LEAVES, "control.connections", "control.wait"), ()),
    "control.connections.ssh": (
        (*LEAVES, "control.connections", "control.deployment.deployer"),
        ("paramiko",),
    ),
    "control.connections.known_hosts": (
        (*LEAVES, "control.connections.ssh_config"),
        ("paramiko",),
    ),
    "control.connections.ssh_config": (LEAVES, ("paramiko",)),
    "campaign": (
        (
            *LEAVES,
            "campaign",
            "control.wait",
            "definition.definition_changes",
            "definition.lab_rules",
            "definition.load",
            "records",
            "report.terminal",
        ),
        (),
    ),
    "campaign.bound_run": (("__main__", "parent_death"), ()),
    "campaign.campaign_view": ((*LEAVES, "campaign.conduct", "report.terminal"), ("rich",)),
    "campaign.dask_engine": ((*LEAVES, "campaign"), ("dask", "distributed")),
    "control.deployment": ((*LEAVES, "agent.install", "control.deployment"), ()),
    "control.deployment.wheels": (LEAVES, ("packaging",)),
    "control.deployment.deploy": ((*LEAVES, "control.connections", "control.deployment"), ()),
    "__main__": (("errors", "printable", "commands.command_line"), ("typer",)),
    "commands.command_line": (("commands.verbs", "installation"), ("typer",)),
    "commands.verbs": (("",), ("typer", "rich")),
    "commands.flight": ((*LEAVES, "analysis.watch", "flight"), ()),
    "commands.init": ((*LEAVES, "definition", "control"), ()),
    "commands.recorded_hosts": ((*LEAVES, "control"), ()),
    "commands.resume": ((*LEAVES, "definition", "control", "records", "tuning.derived_points"), ()),
    "commands.compare": (
        (*LEAVES, "definition", "records", "analysis", "judged_run", "report"),
        (),
    ),
    "commands.selftest": ((*LEAVES, "definition", "control", "records", "analysis"), ()),
    "store": (
        (*LEAVES, "records", "analysis", "report", "store"),
        ("jumpavg", "pandas", "pyarrow", "scipy"),
    ),
    "proven_kernels": ((*LEAVES, "agent.install"), ("pydantic",)),
    "gate": (
        (
            *(*LEAVES, "definition", "control", "records", "analysis", "judged_run", "report"),
            "proven_kernels",
        ),
        ("rich",),
    ),
    "client_gate": ((*LEAVES, "control", "records", "analysis", "gate"), ()),
    "pytest_plugin": (
        (
            *(*LEAVES, "definition", "control", "records", "analysis", "report"),
            *("client_gate", "gate"),
        ),
        ("pytest",),
    ),
    "": (("",), ()),
}


@cache
def modules() -> list[str]:
    """Return every module of the package by dotted name below it; the package itself is empty."""
    names = []
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        names.append(".".join(part for part in parts if part != "__init__"))
    return names


def source(module: str) -> Path:
    """Return the file of a module."""
    base = PACKAGE.joinpath(*module.split(".")) if module else PACKAGE
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@cache
def tree_of(module: str) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(source(module).read_text())


def rule(module: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rule of the longest name that the module is or lies in."""
    matches = [name for name in RULES if name and (module + ".").startswith(name + ".")]
    return RULES[max(matches, key=len, default="")]


@cache
def imports(tree: ast.Module) -> set[str]:
    """Return every absolute name imported anywhere in a tree, lazily or not."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room is entered"
            base = node.module or ""
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def violations(module: str, tree: ast.Module) -> list[str]:
    """Return what a module imports and its rule does not grant."""
    inside, outside = rule(module)
    wrong = []
    for name in sorted(imports(tree)):
        top, _, rest = name.partition(".")
        if top == "udpbench":
            granted = any(not room or (rest + ".").startswith(room + ".") for room in inside)
            granted = granted or rest == ""
        else:
            granted = top in outside or top in sys.stdlib_module_names
        if not granted:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_what_its_room_may(module: str) -> None:
    """Every import of every module is granted by the table."""
    assert [] == violations(module, tree_of(module))


@pytest.mark.parametrize(
    ("module", "code", "wrong"),
    [
        ("model", "import yaml", ["yaml"]),
        ("analysis.judge", "from udpbench.agent import serve", ["udpbench.agent.serve"]),
        ("control.run", "import udpbench.agent.serve", ["udpbench.agent.serve"]),
        ("control.run", "import paramiko", ["paramiko"]),
        ("agent.serve", "from udpbench import _native", ["udpbench._native"]),
        (
            "agent.host.facts",
            "import udpbench.agent.workers.loops",
            ["udpbench.agent.workers.loops"],
        ),
        ("agent.counters.parse", "import udpbench.agent.settings", ["udpbench.agent.settings"]),
        ("agent.serve", "def f():\n    import pydantic", ["pydantic"]),
    ],
)
def test_a_forbidden_import_is_found(module: str, code: str, wrong: list[str]) -> None:
    """The check itself fires, also on an import inside a function."""
    assert wrong == violations(module, ast.parse(code))


def loaded(start: str) -> set[str]:
    """Return all that an import of a module loads, but what functions import when they need it."""
    reached: set[str] = set()
    left = {start}
    while left:
        name = left.pop()
        reached.add(name)
        body = [
            node for node in tree_of(name).body if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        for path in imports(ast.Module(body, [])):
            inside = path.removeprefix("udpbench.")
            modules_of = {inside, inside.rpartition(".")[0]} & set(modules()) - {""}
            left |= (modules_of if inside != path else set()) - reached
            reached |= {path.partition(".")[0]} - {"udpbench"}
    return reached


SLOW = {
    "MLRsearch",
    "distributed",
    "matplotlib",
    "numpy",
    "pandas",
    "paramiko",
    "pyarrow",
    "pyroute2",
}
SLOW |= {"scipy", "typst"}
"""Packages whose import takes 50 ms or more, and up to a second."""


@pytest.mark.parametrize(
    "module", ["agent.serve", "agent.workers.process", "commands.command_line", "control.run"]
)
def test_what_starts_loads_no_slow_package(module: str) -> None:
    """A run reaches its first packet before it needs any of them."""
    assert set() == SLOW & loaded(module)
    assert "paramiko" in loaded("control.connections.ssh")


def cycles(trees: Mapping[str, ast.Module]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    uses = {
        module: {
            name
            for imported in imports(tree)
            for path in (imported.removeprefix("udpbench."),)
            for name in (path, path.rpartition(".")[0])
            if name in trees and name != module
        }
        for module, tree in trees.items()
    }
    reached = {module: set(used) for module, used in uses.items()}
    for middle in trees:
        for module in trees:
            if middle in reached[module]:
                reached[module] |= reached[middle]
    circles = {
        frozenset({other for other in reached[module] if module in reached[other]})
        for module in trees
        if module in reached[module]
    }
    return [set(circle) for circle in circles]


def test_no_modules_import_each_other() -> None:
    """A reader of one module never has to read it again to read another."""
    trees = {module: tree_of(module) for module in modules() if module}
    assert [] == cycles(trees)


def test_an_import_cycle_is_found() -> None:
    """Through another module, and inside a function, too."""
    texts = {
        "agent.a": "from udpbench.agent.b import f",
        "agent.b": "def f():\n    import udpbench.model",
        "model": "from udpbench.agent import a",
        "units": "import udpbench.model",
    }
    trees = {module: ast.parse(text) for module, text in texts.items()}
    assert [{"agent.a", "agent.b", "model"}] == cycles(trees)


EXPORTER = [path[len("udpbench/") : -len(".py")].replace("/", ".") for path in exporter_files()]


@pytest.mark.parametrize(
    "module",
    sorted(
        {
            *(*LEAVES, "pytest_plugin"),
            *(m for m in modules() if m.startswith("agent")),
            *(m for m in EXPORTER if not m.endswith("__init__")),
        }
    ),
)
def test_leaves_agent_and_exporter_parse_as_python_3_9(module: str) -> None:
    """No syntax newer than 3.9 stands where an old host must run it.

    pytest loads the plugin wherever udpbench is installed, on a host under test, too.
    """
    ast.parse(source(module).read_text(), feature_version=(3, 9))


def rooms_and_files() -> str:
    """Return the page of all files: of each room its modules, with their docstrings' sentence."""
    rooms: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.stem != "__init__":
            room = file.parent.relative_to(PACKAGE.parent).as_posix()
            sentence = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
            rooms.setdefault(room, []).append(
                f"| `{file.stem}` | {sentence.replace('|', chr(92) + '|')} |"
            )
    parts = (
        f"## {room}\n\n| file | is |\n|---|---|\n" + "\n".join(rows) for room, rows in rooms.items()
    )
    return (
        "# The files of each room\n\nWritten from their docstrings by `python3 noxfile.py messages`.\n\n"
        + "\n\n".join(parts)
        + "\n"
    )


def test_the_list_of_files_is_that_of_their_docstrings(golden: Golden) -> None:
    """docs/files.md has every module of every room, in its own words."""
    page = DESIGN.with_name("files.md")
    if golden.rewriting:
        page.write_text(rooms_and_files())
    assert page.read_text() == rooms_and_files()


LONGEST_LINES = 500


def reasonless(text: str) -> bool:
    """Return whether a file is long, and its docstring does not say why."""
    doc = ast.get_docstring(ast.parse(text)) or ""
    return text.count("\n") > LONGEST_LINES and "Long, because" not in " ".join(doc.split())


def test_a_long_file_says_why() -> None:
    """A file of more than 500 lines is either split, or a reader is told what holds it together."""
    texts = {name: source(name).read_text() for name in modules()}
    assert [] == [n for n, text in texts.items() if reasonless(text)]
    assert reasonless("x = 1\n" * 501)
    assert not reasonless('"""Long, because."""\n' + "x = 1\n" * 501)


def twice(names: list[str]) -> set[str]:
    """Return the names that are there more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


def public_classes(tree: ast.Module) -> list[str]:
    """Return the public classes of a module."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_a_name_stands_for_one_class() -> None:
    """A reader finds a class by its name alone; what is a module's subject, its folder says."""
    classes = [name for module in modules() for name in public_classes(tree_of(module))]
    assert set() == twice(classes)
    text = "class Record: ...\nclass _Own: ...\n"
    assert {"Record"} == twice(public_classes(ast.parse(text)) * 2)


def asked_sizes(tree: ast.Module) -> list[str]:
    """Return where a size is asked of the traffic itself."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "size_bytes"
        and ast.unparse(node.value).rpartition(".")[2] == "traffic"
    ]


def test_a_docstring_begins_with_what_it_describes() -> None:
    """A reader of the name alone knows what a description beginning with ``of`` is of."""
    folders = (PACKAGE, *(PACKAGE.parent / name for name in ("tests", "benchmarks", "native")))
    written = {path: path.read_text() for folder in folders for path in folder.rglob("*.py")}
    opening = '"' * 3 + "Of "
    assert [] == sorted(str(path) for path, text in written.items() if opening in text)


def test_only_the_datagrams_have_a_size() -> None:
    """Nothing relies on all datagrams being of one size: it asks for the longest, or the mean."""
    assert {} == {m: sizes for m in modules() if (sizes := asked_sizes(tree_of(m)))}
    assert ["trial.traffic.size_bytes"] == asked_sizes(ast.parse("f(trial.traffic.size_bytes)"))


def test_an_agent_splits_lines_at_newlines_alone() -> None:
    """Names that users give, which /proc prints as they are, may contain every other line end."""
    trees = {name: tree_of(name) for name in modules() if name.startswith("agent")}
    trees["forbidden"] = ast.parse("text.splitlines()")
    assert ["forbidden"] == [
        name
        for name, tree in trees.items()
        if any(isinstance(n, ast.Attribute) and n.attr == "splitlines" for n in ast.walk(tree))
    ]


EMPTY_NAMES = {"one", "found", "told", "made", "said", "wanted", "foreseen", "of"}


def empty_names(tree: ast.Module) -> set[str]:
    """Return the values and parameters whose name says nothing about them."""
    names = {
        node.arg if isinstance(node, ast.arg) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    return EMPTY_NAMES & names


def test_names_say_what_a_value_is() -> None:
    """No value is called ``found``, of what there may be two in a function."""
    trees = {name: tree_of(name) for name in modules()}
    assert {} == {name: names for name, tree in trees.items() if (names := empty_names(tree))}
    checks = [
        file for room in ("tests", "benchmarks") for file in (PACKAGE.parent / room).rglob("*.py")
    ]
    names = {file: empty_names(ast.parse(file.read_text())) - {"of"} for file in checks}
    assert {} == {file: some for file, some in names.items() if some}
    assert {"one", "of"} == empty_names(ast.parse("def f(of):\n    return [one for one in of]"))


def bound_twice(tree: ast.Module) -> set[str]:
    """Return the constants to which a module binds a second value: the first is not what it says."""
    names = [
        name.id
        for statement in tree.body
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        for name in ast.walk(statement)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id.isupper()
    ]
    return {name for name in names if names.count(name) > 1}


def test_a_constant_has_one_value() -> None:
    """The interval at which nodes in the middle are asked was ten times what its line says."""
    trees = {name: tree_of(name) for name in modules()}
    assert {} == {name: names for name, tree in trees.items() if (names := bound_twice(tree))}
    assert {"A"} == bound_twice(ast.parse("A, B = 1, 2\nA: int = 3"))


def test_the_build_id_covers_all_that_the_agent_imports() -> None:
    """A controller and an agent that differ in any file that both run refuse each other."""
    reached, left = set(), {name for name in modules() if name.startswith("agent")}
    while left:
        name = left.pop()
        reached.add(name)
        names = imports(tree_of(name))
        left |= {m for m in modules() for n in names if n.startswith(f"udpbench.{m}.") and m}
        left -= reached
    leaves = {name for name in reached if not name.startswith("agent")}
    assert set(AGENT_LEAVES) == leaves - {"_native"}


def test_rooms_have_empty_doors() -> None:
    """A room's ``__init__`` holds nothing: its door is one module."""
    for door in PACKAGE.rglob("*/__init__.py"):
        assert "" == door.read_text(), door

"""The house plan as tests: who may import what, and what the leaves must run on."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import udpbench

PACKAGE = Path(udpbench.__file__).parent
LEAVES = ("errors", "units", "model", "protocol")

# Room or module → (what it may import of udpbench, what it may import from outside the standard
# library). The longest matching name decides. docs/design.md shows the same table.
RULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "errors": ((), ()),
    "units": (("errors",), ()),
    "model": (("errors", "units"), ()),
    "protocol": (("errors", "units", "model"), ()),
    "definition": ((*LEAVES, "definition"), ("yaml", "pydantic", "pydantic_core")),
    "analysis": ((*LEAVES, "analysis"), ("numpy", "scipy")),
    "json_lines": (LEAVES, ("pydantic_core",)),
    "records": ((*LEAVES, "json_lines"), ("pydantic", "pydantic_core")),
    "report": (
        (*LEAVES, "records", "analysis", "report", "definition.published"),
        ("rich", "pandas", "matplotlib", "typst", "numpy"),
    ),
    "agent": ((*LEAVES, "agent"), ("psutil", "pyroute2")),
    "agent.loops": ((*LEAVES, "agent", "_native"), ("psutil", "pyroute2")),
    "agent.memory": ((*LEAVES, "agent", "_native"), ("psutil", "pyroute2")),
    "control": ((*LEAVES, "definition", "records", "analysis.judge", "control"), ()),
    "control.channel": (LEAVES, ()),
    "control.ssh": (
        (
            *LEAVES,
            *(f"control.{one}" for one in ("channel", "ssh_proxy", "ssh_streams", "ssh_target")),
        ),
        ("paramiko",),
    ),
    "control.ssh_streams": (LEAVES, ("paramiko",)),
    "control.ssh_proxy": (LEAVES, ()),
    "control.ssh_include": (LEAVES, ()),
    "control.ssh_target": ((*LEAVES, "control.ssh_include"), ("paramiko",)),
    "__main__": (("errors", "command_line"), ("typer",)),
    "command_line": (("",), ("typer", "rich")),
    "resume": ((*LEAVES, "definition", "control", "records"), ()),
    "gate": (
        (*LEAVES, "definition", "control", "records", "analysis", "report"),
        ("rich",),
    ),
    "pytest_plugin": (
        (*LEAVES, "definition", "control", "records", "analysis", "report", "gate"),
        ("pytest",),
    ),
    "": (("",), ()),
}


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


def rule(module: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rule of the longest name that the module is or lies in."""
    matches = [name for name in RULES if name and (module + ".").startswith(name + ".")]
    return RULES[max(matches, key=len, default="")]


def imports(tree: ast.Module) -> set[str]:
    """Return every absolute name imported anywhere in a tree, lazily or not."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room is entered"
            base = node.module or ""
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


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
    assert [] == violations(module, ast.parse(source(module).read_text()))


@pytest.mark.parametrize(
    ("module", "code", "wrong"),
    [
        ("model", "import yaml", ["yaml"]),
        ("analysis.judge", "from udpbench.agent import serve", ["udpbench.agent.serve"]),
        ("control.run", "import udpbench.agent.serve", ["udpbench.agent.serve"]),
        ("control.run", "import paramiko", ["paramiko"]),
        ("agent.serve", "from udpbench import _native", ["udpbench._native"]),
        ("agent.serve", "def f():\n    import pydantic", ["pydantic"]),
    ],
)
def test_a_forbidden_import_is_found(module: str, code: str, wrong: list[str]) -> None:
    """The check itself fires, also on an import inside a function."""
    assert wrong == violations(module, ast.parse(code))


@pytest.mark.parametrize(
    "module", [*LEAVES, "pytest_plugin", *(m for m in modules() if m.startswith("agent"))]
)
def test_leaves_and_agent_parse_as_python_3_9(module: str) -> None:
    """No syntax newer than 3.9 stands where an old host must run it.

    pytest loads the plugin wherever udpbench is installed, on a host under test, too.
    """
    ast.parse(source(module).read_text(), feature_version=(3, 9))


def test_rooms_have_empty_doors() -> None:
    """A room's ``__init__`` holds nothing: its door is one module."""
    for room in ("definition", "control", "agent", "analysis", "report"):
        assert "" == (PACKAGE / room / "__init__.py").read_text()

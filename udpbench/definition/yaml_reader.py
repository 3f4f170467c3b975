"""One YAML file as plain data with line numbers, or every reason why it is refused.

Strict on purpose: one document, text keys, no duplicates, no empty values, no tags, no anchors.
Of our keys it knows ``hex`` alone: its text is that of a file, so longer than others; not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from udpbench.definition.problems import KeyPath, Place, Tree, as_yaml, at, dotted, raise_all
from udpbench.errors import InputError, Problem
from udpbench.json_lines import open_regular
from udpbench.model.limits import MAX_PAYLOAD_BYTES
from udpbench.printable import printable

MAX_FILE_BYTES = 256 * 1024
MAX_TEXT_CHARACTERS = 2**21
"""Characters of a text in a run folder, which has payload files inlined: 4 s."""
MAX_VALUES = 2**15
"""Keys and values of a file: 3 s, and 40 MiB."""
MAX_DEPTH = 24
MAX_SCALAR_CHARACTERS = 4096
HEX = "hex"
MAX_HEX_CHARACTERS = 2 * MAX_PAYLOAD_BYTES
OBEYED = "contains a control character"


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: no ``off`` that reads as false, no ``1:30`` that reads as 90."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"-?(?:0|[1-9][0-9]{0,17})\Z"), list("-0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"-?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,17}\Z"),
    list("-0123456789"),
)


def read_text(path: Path, shown_as: str, folder_fd: int | None = None) -> str:
    """Return the text of a file; InputError if it is missing, too large or not UTF-8.

    With the descriptor of its folder, the file is looked up there.
    """
    place = Place(shown_as)
    if printable(path.name, keep="") != path.name:
        raise InputError([at(place, "", f"the file's name {OBEYED}", "", "rename the file")])
    try:
        with open_regular(path, folder_fd) as file:
            return decoded(file, shown_as)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        problem = at(place, "", f"cannot be read: {reason}", "", "name a YAML file")
        raise InputError([problem]) from error


def decoded(file: IO[bytes], shown_as: str) -> str:
    """Return the text of an open file; InputError if it is too large or not UTF-8."""
    place, raw = Place(shown_as), file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        limit = f"at most {MAX_FILE_BYTES // 1024}KiB"
        raise_all(
            [at(place, "", "the file is too large", limit, "is this an experiment or lab file?")]
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        what = "it is not UTF-8"
        problem = at(Place(shown_as, line), "", what, "", "save the file as UTF-8")
        raise InputError([problem]) from error


def parse(text: str, file: str) -> Tree:
    """Return the tree of ``survey``; InputError with every problem."""
    tree, problems = survey(text, file)
    raise_all(problems)
    return tree


def survey(text: str, file: str) -> tuple[Tree, list[Problem]]:
    """Return the one map that a YAML text holds, with the line of every key and list item.

    Problems with single keys are returned along with what can be read without them, so that all
    problems are reported at once. Raises InputError if nothing can be read.
    """
    problems = list(_refused_structure(text, file))
    raise_all(problems)
    node = yaml.compose(text, Loader=_Loader)
    if node is None:
        raise InputError([at(Place(file), "", "the file is empty", "", "see docs/experiments.md")])
    if not isinstance(node, yaml.MappingNode):
        place = Place(file, _line(node))
        raise InputError([at(place, "", "not a map of keys", "", "write question: … for example")])
    builder = _Builder(file)
    data = builder.plain(node, ())
    return Tree(data, Place(file), builder.places), builder.problems


def _line(node: yaml.Node | yaml.Event) -> int:
    return 1 if node.start_mark is None else int(node.start_mark.line) + 1


def parse_value(text: str, place: Place, key: str) -> Any:
    """Return the plain value of a piece of YAML from the command line."""
    tree = parse(f"value: {text}", str(place))
    if set(tree.data) != {"value"}:
        raise_all([at(place, key, "more than one value", value=as_yaml(text))])
    return tree.data["value"]


def _refused_structure(text: str, file: str) -> Iterator[Problem]:
    """Yield what must not be composed; works on events, as composing follows aliases."""
    depth = documents = values = 0
    if len(text) > MAX_TEXT_CHARACTERS:
        yield at(
            Place(file), "", "the text is too long", f"at most {MAX_TEXT_CHARACTERS} characters"
        )
        return
    try:
        for event in yaml.parse(text, Loader=_Loader):
            place = Place(file, _line(event))
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    yield at(place, "", "a second document begins", "one per file", "split it")
                    return
            elif isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    yield at(place, "", "nested too deeply", f"at most {MAX_DEPTH} levels")
                    return
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if isinstance(event, yaml.NodeEvent):
                values += 1
                if values > MAX_VALUES:
                    yield at(place, "", "too many keys and values", f"at most {MAX_VALUES}")
                    return
                yield from _refused_marks(event, place)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        next_step = "indent with spaces" if "\\t" in str(error.problem) else ""
        yield at(Place(file, line), "", f"invalid YAML: {error.problem}", "", next_step)
    except yaml.YAMLError as error:
        yield at(Place(file), "", f"invalid YAML: {str(error).splitlines()[0]}")
    except (ValueError, OverflowError):  # of chr(), for an escape such as "\UFFFFFFFF"
        yield at(Place(file), "", "invalid YAML: an escape that is no character of Unicode")


def _refused_marks(event: yaml.NodeEvent, place: Place) -> Iterator[Problem]:
    # An alias hides the meaning of a line, and aliases of aliases grow without bound.
    instead = "write the value in full, or use extends or variants"
    if isinstance(event, yaml.AliasEvent):
        yield at(place, "", "an alias is refused", "", instead, f"*{event.anchor}")
    elif event.anchor is not None:
        yield at(place, "", "an anchor is refused", "", instead, f"&{event.anchor}")
    tag = getattr(event, "tag", None)
    if tag is not None:
        yield at(place, "", "a tag is refused", "", "write plain YAML", as_yaml(tag))


class _Builder:
    """Turns composed nodes into plain data and remembers lines."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.places: dict[KeyPath, Place] = {}
        self.problems: list[Problem] = []

    def plain(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._map(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(child, (*path, i)) for i, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.places[path] = Place(self.file, _line(node))
        return self.plain(node, path)

    def _map(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = Place(self.file, _line(key_node))
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(at(place, dotted(path), "a key must be text"))
                continue
            key = key_node.value
            if self._is_long(key, path, place, MAX_SCALAR_CHARACTERS):
                continue
            if key in result:
                what = f"duplicate key, first on line {self.places[(*path, key)].line}"
                self.problems.append(at(place, dotted((*path, key)), what, "", "remove one"))
                continue
            self.places[(*path, key)] = place
            if printable(key, keep="") != key:
                self.problems.append(at(place, dotted((*path, key)), f"the key {OBEYED}"))
            value = self.plain(value_node, (*path, key))
            if value is not None:
                result[key] = value
        return result

    def _is_long(self, text: str, path: KeyPath, place: Place, most: int) -> bool:
        """Return whether a text is refused for its length, which is a problem."""
        if len(text) > most:
            value = None if most > MAX_SCALAR_CHARACTERS else as_yaml(text)
            limit = f"at most {most} characters"
            self.problems.append(at(place, dotted(path), "too long", limit, "", value))
        return len(text) > most

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        place = self.places.get(path, Place(self.file, _line(node)))
        most = MAX_HEX_CHARACTERS if path[-1:] == (HEX,) else MAX_SCALAR_CHARACTERS
        if self._is_long(node.value, path, place, most):
            return None
        kind = node.tag.rpartition(":")[2]
        if printable(node.value) != node.value:
            what, step = f"the value {OBEYED}", "remove it"
            self.problems.append(at(place, dotted(path), what, "", step, as_yaml(node.value)))
        if kind == "null":
            what = "the key has no value" if path and isinstance(path[-1], str) else "no value"
            step = "give one, or remove the key"
            self.problems.append(at(place, dotted(path), what, "", step))
            return None
        if kind == "bool":
            return node.value.lower() == "true"
        if kind == "int":
            return int(node.value)
        return float(node.value) if kind == "float" else node.value

"""Single values as users write them: parsed, range-checked, and described for the JSON Schema.

Knows neither keys nor their meaning; ``file_schema`` decides which leaf a key has. Long, because
each grammar stands beside the text that describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic_core import PydanticCustomError

from udpbench import units
from udpbench.definition import published
from udpbench.definition.elsewhere import elsewhere
from udpbench.definition.endpoints import (
    address_count,
    parse_cpus,
    parse_neighbour,
    parse_ports,
    parse_published,
    parse_published_port,
    parse_route,
    parse_to,
)
from udpbench.definition.problems import did_you_mean, similar
from udpbench.metrics import METRICS, goal_of, is_metric, with_goal
from udpbench.model.experiment import FEWEST_BLOCKS, LOOKS, MOST_BLOCKS, Answers
from udpbench.model.lab import INSIDE_NAME, SSH_CHARACTERS, SSH_SPEC, Connect
from udpbench.model.limits import (
    ID_BYTES,
    LEDGER_STAGES,
    MAX_PAYLOAD_BYTES,
    SECOND_NS,
    is_stage,
    sysctl_refusal,
)
from udpbench.units import Bytes, Count, Nanoseconds, Rate
from udpbench.ways import WAITS

T = TypeVar("T")
CPU_RELATIONS = ("same-cpu", "smt-sibling", "same-node", "other-node")
MAX_RATE = 10**12
LISTED = 8
GOALS_MAX = 8
"""Limit for one search: each costs trials of its own."""
_END = r"[0-9]{1,9}(?:\.[0-9]{1,9})?[A-Za-zµμ]{0,4}"
_RANGE = re.compile(rf"(?P<low>{_END}) ?(?:-|–|\.\.|to) ?(?P<high>{_END})\Z")
MAX_INTERFACE_CHARACTERS = 15
"""IFNAMSIZ less the NUL that ends it."""


def refusal(what: str, limit: str = "", next_step: str = "") -> PydanticCustomError:
    """Return the error of a leaf that refuses a value; ``file_schema`` adds the place."""
    context = {"what": what, "limit": limit, "next_step": next_step}
    return PydanticCustomError("refused", "{what}", context)


def refusal_parts(error: ValueError) -> tuple[str, str, str]:
    """Return what is wrong, limit and next step of a refusal."""
    context = dict(getattr(error, "context", None) or {})
    return context.get("what", str(error)), context.get("limit", ""), context.get("next_step", "")


@dataclass(frozen=True)
class Leaf:
    """How a value is written: fixed words, else whatever ``parse`` accepts."""

    schema: dict[str, Any]
    parse: Callable[[Any], Any] | None = None
    words: Mapping[Any, Any] = field(default_factory=dict)
    show: Callable[[Any], Any] = lambda value: value

    def read(self, value: Any) -> Any:
        """Return a written value as it is stored; raises the refusal."""
        # Data that did not come through our YAML reader may hold ``off`` as false.
        if value is False and "off" in self.words:
            value = "off"
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value in self.words:
            return self.words[value]
        if self.parse is None:
            known = [str(word) for word in self.words]
            _refuse_several(value, f"one of {', '.join(known)}")
            step = elsewhere(value) or similar(value, known) if isinstance(value, str) else ""
            raise refusal("unknown value", f"one of {', '.join(known)}", step)
        try:
            return self.parse(value)
        except PydanticCustomError as error:
            if not self.words:
                raise
            context = dict(error.context or {})
            words = ", ".join(str(word) for word in self.words)
            limit = f"{context['limit']}, or {words}" if context["limit"] else words
            raise refusal(context["what"], limit, context["next_step"]) from error

    def written(self, value: Any) -> Any:
        """Return a stored value as a user would write it."""
        for word, meaning in self.words.items():
            if meaning == value and type(meaning) is type(value):
                return word
        return self.show(value)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of what a user may write."""
        if not self.words:
            return dict(self.schema)
        words = {"enum": list(self.words)}
        return {"anyOf": [words, dict(self.schema)]} if self.parse is not None else words


def _refuse_several(value: Any, limit: str = "") -> None:
    """Refuse a list or a map; ``file_schema`` adds what to write instead."""
    if isinstance(value, (list, dict)):
        kind = "list" if isinstance(value, list) else "map"
        raise refusal(f"a {kind} instead of a single value", limit)


def _text(value: Any, limit: str = "") -> str:
    _refuse_several(value, limit)
    if isinstance(value, bool):
        raise refusal("true or false instead of another value", limit)
    return str(value)


def quantity(marker: Bytes | Nanoseconds | Count) -> Leaf:
    """Return the leaf of an integer with a unit and an inclusive range."""
    kinds: dict[type, tuple[Callable[[str], int], Callable[[int], str], str]] = {
        Bytes: (units.parse_bytes, units.format_bytes, r"^[0-9.]+ *([kKMGT]|[KMGT]i)?B$"),
        Nanoseconds: (
            units.parse_duration,
            units.format_duration,
            r"^[0-9.]+ *(ns|[u\u00b5\u03bc]s|ms|s|m|min|h)$",
        ),
        Count: (units.parse_count, units.format_count, r"^[0-9.]+ *[kKMGT]?$"),
    }
    parse, show, pattern = kinds[type(marker)]
    limit = f"{show(marker.low)} to {show(marker.high)}"

    def read(value: Any) -> int:
        text = _text(value, limit)
        try:
            number = parse(text)
        except ValueError as error:
            what, _, step = str(error).partition("; ")
            each = steps_of(text)
            if len(each) > 1:
                what = "a range instead of a single value"
                step = f"to try each, write [{', '.join(each)}] in a sweep"
            raise refusal(what, limit, step) from error
        if number < marker.low:
            raise refusal("below the range", limit)
        if number > marker.high:
            raise refusal("above the range", limit)
        return number

    text = {"type": "string", "pattern": pattern, "description": limit}
    if not isinstance(marker, Count):
        return Leaf(text, read, show=show)
    whole = {"type": "integer", "minimum": marker.low, "maximum": marker.high}
    return Leaf({"anyOf": [whole, text]}, read)


def steps_of(text: str) -> list[str]:
    """Return the values that a range may mean, shortened if long; any other text as it is.

    Of whole numbers each: ``1-4`` is 1, 2, 3, 4; of quantities doubled ones: ``8KiB..64KiB`` is
    8KiB, 16KiB, 32KiB, 64KiB.
    """
    match = _RANGE.match(text)
    if match is None:
        return [text]
    first, last = match.group("low", "high")
    if first.isdigit() and last.isdigit():
        low, high = int(first), int(last)
        steps = [str(number) for number in range(low, min(high, low + LISTED) + 1)]
    else:
        low, high, show = _ends(first, last)
        scaled = (low << place for place in range(LISTED + 1))
        steps = [show(number) for number in scaled if 0 < number < high]
        steps += [last] if 0 < low < high and len(steps) <= LISTED else []
    if high > low and steps[-1:] != [last]:
        steps[-1:] = ["…", last]
    return steps or [text]


def _ends(first: str, last: str) -> tuple[int, int, Callable[[int], str]]:
    """Return both ends of a range in a base unit, and how it is written; 0 and 0 if it has none."""
    for parse, show in (
        (units.parse_bytes, units.format_bytes),
        (units.parse_duration, units.format_duration),
        (units.parse_count, units.format_count),
        (_packets_per_s, lambda pps: units.format_rate(Rate(pps))),
    ):
        with suppress(ValueError):
            return parse(first), parse(last), show
    return 0, 0, str


def _packets_per_s(text: str) -> int:
    return units.parse_rate(text).packets_per_s or 0


def _parse(parse: Callable[[str], T], text: str, limit: str = "") -> T:
    """Return a parser's result; its ValueError ``what; step`` becomes a refusal."""
    try:
        return parse(text)
    except ValueError as error:
        what, _, step = str(error).partition("; ")
        raise refusal(what, limit, step) from error


def _rate(value: Any) -> Rate:
    limit = "above 0, to 1Tpps or 1Tbps"
    rate = _parse(units.parse_rate, _text(value, limit), limit)
    if not 0 < (rate.packets_per_s or rate.bits_per_s or 0) <= MAX_RATE:
        raise refusal("out of range", limit)
    return rate


def _bit_rate(value: Any) -> int:
    bits = _rate(value).bits_per_s
    if bits is None:
        raise refusal("a device's rate is in bits per second", "", "write for example 1Gbps")
    return bits


def _boolean(value: Any) -> bool:
    _refuse_several(value)
    if not isinstance(value, bool):
        raise refusal("neither true nor false", "", "write true or false")
    return value


def _cpus(value: Any) -> str:
    if isinstance(value, list) and value and all(type(cpu) is int for cpu in value):
        row = value == list(range(value[0], value[-1] + 1))
        text = f"{value[0]}-{value[-1]}" if row else ",".join(map(str, value))
        raise refusal("a list instead of a single value", "", f"write {text}")
    text = _text(value).replace(" ", "")
    _parse(parse_cpus, text)
    return text


def _parsed(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a leaf's parser from one of text that raises ValueError."""
    return lambda value: _parse(parse, _text(value))


def _checked(check: Callable[[str], Any]) -> Callable[[Any], str]:
    """Return a parser that keeps the text as written if ``check`` accepts it."""

    def read(value: Any) -> str:
        text = _text(value)
        _parse(check, text)
        return text

    return read


def _pattern(pattern: str, example: str) -> Leaf:
    compiled = re.compile(pattern + r"\Z")

    def read(value: Any) -> str:
        text = _text(value)
        if compiled.match(text) is None:
            raise refusal("not understood", "", f"write for example {example}")
        return text

    return Leaf({"type": ["string", "integer"]}, read)


def _wait(text: str) -> None:
    word, _, duration = text.partition(" ")
    timed = {row.name: row.example for row in WAITS if row.example}
    if word not in timed or not duration:
        examples = " or ".join(f"{name} {example}" for name, example in timed.items())
        raise ValueError(f"unknown value; or write for example {examples}")
    if not 0 < units.parse_duration(duration) <= 10**9:
        raise ValueError("out of range; above 0s, to 1s")


def _levels(classes: Mapping[str, tuple[int, int]]) -> Callable[[str], None]:
    def check(text: str) -> None:
        word, _, level = text.partition(" ")
        known = ", ".join(f"{name} {low} to {high}" for name, (low, high) in classes.items())
        if word not in classes or re.match(r"-?\d{1,3}\Z", level, re.ASCII) is None:
            raise ValueError(f"unknown value; or write {known}")
        low, high = classes[word]
        if not low <= int(level) <= high:
            raise ValueError(f"out of range; {word} takes {low} to {high}")

    return check


def _sysctl_name(value: Any) -> str:
    text = _text(value)
    if re.match(r"[a-z][a-z0-9_-]*((\.[A-Za-z0-9_-]+)+|(/(?!\.)[^\s/]+)+)\Z", text) is None:
        step = "write for example net.core.rmem_max, or net/ipv4/conf/eth0.100/rp_filter"
        raise refusal("not the name of a sysctl", "", step)
    allowed = sysctl_refusal(text)
    if allowed is not None:
        raise refusal("this sysctl may not be set", allowed, "omit it")
    return text


def _interface(value: Any) -> str:
    text = _text(value)
    limit = "letters, digits, . _ - and at most 15 characters, the first a letter or a digit"
    if re.match(r"[A-Za-z0-9][\w.-]*\Z", text, re.ASCII) is None:
        raise refusal("not the name of an interface", limit, "write for example eth3")
    if len(text) > MAX_INTERFACE_CHARACTERS:
        what = f"{len(text)} characters are too many for an interface"
        raise refusal(what, limit, "see its name in `ip link` there")
    return text


def _connect(value: Any) -> Connect:
    """Return how a host is reached from ``{ssh: bench@left, become: sudo, python: /opt/…}``.

    Or from ``{netns: blue}``, ``{ssh: left, netns: blue}``, ``{container: web}``.
    """
    known = ("ssh", "become", "python", "netns")
    if not isinstance(value, dict):
        raise refusal("unknown value", "{ssh: …}, {netns: …} or {container: …}")
    for by in ("container", "netns"):
        if by in value and (by == "container" or "ssh" not in value):
            return _inside(value, by)
    for key, text in value.items():
        if key not in known:
            ways = (*known, "container")
            raise refusal(f"unknown key {key}", "", did_you_mean(str(key), ways))
        if not isinstance(text, str) or not re.match(r"[^\s-]\S{0,255}\Z", text):
            raise refusal(f"{key} is not a single word", "", f"write {key}: …")
    if "ssh" not in value:
        raise refusal("ssh is missing", "", "add ssh: user@host, netns: NAME or container: NAME")
    if SSH_SPEC.match(value["ssh"]) is None:
        raise refusal("ssh is not [user@]host[:port]", SSH_CHARACTERS, "write ssh: bench@left")
    if value.get("become", "sudo") != "sudo":
        raise refusal("become must be sudo", "sudo", "or omit it")
    name = _inside_name(value, "netns") if "netns" in value else None
    return Connect("ssh", value["ssh"], value.get("become"), value.get("python"), name)


def _inside(value: dict[Any, Any], by: Literal["netns", "container"]) -> Connect:
    """Return how a namespace of this machine that is there already is reached."""
    if len(value) > 1:
        others = ", ".join(str(key) for key in value if key != by)
        raise refusal(f"{others} beside {by}", f"{by} alone", f"remove {others}")
    return Connect(by, name=_inside_name(value, by))


def _inside_name(value: dict[Any, Any], by: str) -> str:
    """Return the name of a namespace, which meets a command."""
    if not isinstance(value[by], str) or INSIDE_NAME.match(value[by]) is None:
        limit = "letters, digits and . _ -, a letter or digit in front, at most 128"
        raise refusal(f"{by} is not a name", limit, f"write {by}: … as it is listed")
    return str(value[by])


def _interfaces(value: Any) -> tuple[str, str]:
    """Return the interface by which packets come in, and that by which they leave."""
    example = "write {in: eth0, out: eth1}"
    if not isinstance(value, dict) or {*value} != {"in", "out"}:
        raise refusal("not a pair of interfaces", "in and out", example)
    come, leave = _interface(value["in"]), _interface(value["out"])
    if come == leave:
        raise refusal("both are the same interface", "two interfaces", example)
    return come, leave


def _node_addresses(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses of each of a node's interfaces."""
    example = "write {in: 192.168.254.1/24, out: 192.168.253.1/24}"
    if not isinstance(value, dict) or {*value} != {"in", "out"}:
        raise refusal("not addresses of both interfaces", "in and out", example)
    sides = []
    for texts in (value["in"], value["out"]):
        listed = texts if isinstance(texts, list) else [texts]
        sides.append(tuple(_one_address(text) for text in listed))
    return sides[0], sides[1]


def _one_address(value: Any) -> str:
    if NAMED["address"].read(value) != value or address_count(value) != 1:
        raise refusal("a range of addresses", "an address", "write one")
    return str(value)


def sysctl_value(value: Any) -> int | str:
    """Return what to write to a sysctl: an integer, or text with tabs between several numbers.

    The kernel prints vectors such as net.ipv4.udp_mem with tabs (kernel/sysctl.c:proc_put_char).
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = _text(value)
    if re.match(r"[0-9.]+\s*([kKMGT]|[KMGT]i)?B\Z", text):
        return quantity(Bytes(0, 2**63 - 1)).read(value) or 0
    if re.match(r"[0-9.]+\s*([kmg]|[kmgt]i?b)\Z", text, re.IGNORECASE):
        raise refusal("not a size", "", "write 64MiB for example, or just the number")
    parts = text.split()
    if not parts:
        raise refusal("no value", "", "write what the kernel would print")
    if len(parts) > 1 and all(re.match(r"-?\d+\Z", part, re.ASCII) for part in parts):
        return "\t".join(parts)
    return int(text) if re.match(r"-?\d{1,18}\Z", text, re.ASCII) else text.strip()


def _margin(value: Any) -> float:
    limit = "above 0, below 100%"
    ratio = _parse(units.parse_ratio, _text(value, limit), limit)
    if not 0 < ratio < 1:
        raise refusal("out of range", limit, "write for example 3%")
    return ratio


def _share(value: Any) -> float:
    limit = "at least 0%, below 100%"
    text = _text(value, limit)
    try:
        ratio = units.parse_ratio(text)
    except ValueError as error:
        what, _, step = str(error).partition("; ")
        raise refusal(what, limit, step) from error
    if not 0 <= ratio < 1:
        raise refusal("out of range", limit, "write for example 0.1%")
    return ratio


def _loss_goals(value: Any) -> tuple[float, ...]:
    """Return one goal or several; each may be written once."""
    written = value if isinstance(value, list) else [value]
    goals = tuple(_share(each) for each in written)
    if not goals:
        raise refusal("the list is empty", "", "name at least one share, such as 0.1%")
    if len(set(goals)) < len(goals):
        raise refusal("duplicate goal", "", "name each once")
    if len(goals) > GOALS_MAX:
        raise refusal(f"{len(goals)} goals are too many", f"at most {GOALS_MAX}", "name fewer")
    return goals


def _command(value: Any) -> tuple[str, ...]:
    """Return a program and its arguments; text is refused, because no shell would read it."""
    if isinstance(value, str):
        step = f"write [{', '.join(value.split())}]; for a shell [sh, -c, …]"
        raise refusal("text instead of a list", "", step)
    if not isinstance(value, list) or not value:
        raise refusal("not a command", "", 'write for example [./server, --port, "4321"]')
    words = tuple(_text(word) for word in value)
    if not words[0].strip() or any("\0" in word for word in words):
        limit = "words without NUL, the first not empty"
        raise refusal("not a command", limit, "name the program first")
    return words


def _payload(value: Any) -> tuple[str, ...]:
    """Return datagrams as hexadecimal; ``payloads`` has read the files by now."""
    example = 'write for example {hex: "00ff"}, {file: query.bin}, or a list of such'
    entries = value if isinstance(value, list) else [value]
    if not entries or any(not isinstance(e, dict) or list(e) != ["hex"] for e in entries):
        raise refusal("not a payload", "", example)
    return tuple(_hex(entry["hex"]) for entry in entries)


def _answers(value: Any) -> Answers:
    """Return how a map says that answers are identified."""
    example = "write for example {id_at: 0} or {id_at: 0, timeout: 1s}"
    if not isinstance(value, dict) or not {"id_at"} <= set(value) <= {"id_at", "timeout"}:
        raise refusal("not a way to identify answers", "", example)
    timeout = units.format_duration(Answers.timeout_ns)
    written = {"timeout": timeout, **value}
    markers: dict[str, Count | Nanoseconds] = {
        "id_at": Count(0, MAX_PAYLOAD_BYTES - ID_BYTES),
        "timeout": Nanoseconds(10**6, 10 * SECOND_NS),
    }
    parts = []
    for key, marker in markers.items():
        try:
            parts.append(quantity(marker).read(written[key]))
        except PydanticCustomError as error:
            what, limit, _ = refusal_parts(error)
            raise refusal(f"{key}: {written[key]}: {what}", limit, example) from error
    return Answers(*parts)


def _hex(value: Any) -> str:
    limit, step = f"1 B to {MAX_PAYLOAD_BYTES} B", 'two digits a byte, in quotes: "00ff"'
    # Without quotes 1e3 is a number, and 0102 may be one.
    if not isinstance(value, str):
        raise refusal(f"hex: {value} is not text", limit, step)
    try:
        content = bytes.fromhex(value)
    except ValueError as error:
        raise refusal("not hexadecimal", limit, step) from error
    if not 1 <= len(content) <= MAX_PAYLOAD_BYTES:
        raise refusal(f"a datagram of {len(content)} B", limit, step)
    return content.hex()


def _user(value: Any) -> str:
    text = _text(value)
    if text in ("root", "0"):
        limit = "never root"
        step = "name an ordinary user, who may bind ports below 1024 here, too"
        raise refusal("a program is not run as root", limit, step)
    if re.match(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\Z", text) is None:
        raise refusal("not the name of a user", "", "write for example nobody")
    return text


def _blocks(value: Any) -> tuple[int, ...]:
    limit = f"{FEWEST_BLOCKS} to {MOST_BLOCKS}"
    text = _text(value, limit)
    if re.match(r"\d{1,4}\Z", text, re.ASCII) is None:
        raise refusal("not a number of blocks", limit)
    if not FEWEST_BLOCKS <= int(text) <= MOST_BLOCKS:
        raise refusal("out of range", limit)
    return (int(text),)


def _metric(value: Any) -> str:
    text, known = _text(value), (*METRICS, *LEDGER_STAGES)
    if is_stage(text):
        return text
    name, goal = goal_of(text)
    if is_metric(text):
        return with_goal(name, goal)
    if text not in known:
        raise refusal("unknown metric", "", did_you_mean(text, known))
    return text


def _source(value: Any) -> str:
    text = str(_STUDY_FIGURE.read(value))
    step = published.unknown(text)
    if step is not None:
        raise refusal("unknown published figure", "", step)
    return text


def _words(*words: str) -> dict[str, str]:
    return {word: word for word in words}


_SHARE = {"type": ["string", "number"]}
_BLOCKS = {"type": "integer", "minimum": FEWEST_BLOCKS, "maximum": MOST_BLOCKS}
_DATAGRAM = {
    "type": "object",
    "properties": {"hex": {"type": "string"}, "file": {"type": "string"}},
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}
_BOTH = {"type": "object", "required": ["in", "out"]}
_STRING = {"type": ["string", "integer"]}
_STUDY_FIGURE = _pattern(r"[a-z0-9-]+/[a-z0-9-]+", "cloudflare-2015/naive")
_UNTIMED = tuple(row.name for row in WAITS if not row.example)
_IO_LEVELS = {"best-effort": (0, 7), "realtime": (0, 7)}

# Leaves with a grammar of their own, by the name of a plain text field or of a Named marker.
NAMED: dict[str, Leaf] = {
    "cpus": Leaf(_STRING, _cpus, _words("lab", "any", *CPU_RELATIONS)),
    "cpu_list": Leaf(_STRING, _cpus),
    "link_cpus": Leaf(_STRING, _cpus, _words("lab")),
    "cpu_tuple": Leaf(_STRING, lambda value: parse_cpus(_cpus(value))),
    "source_ports": Leaf(_STRING, _checked(parse_ports)),
    "to": Leaf({"type": "string"}, _checked(parse_to)),
    "published_port": Leaf({"type": "string"}, _checked(parse_published_port)),
    "published": Leaf({"type": "string"}, _checked(parse_published)),
    "wait": Leaf({"type": "string"}, _checked(_wait), _words(*_UNTIMED)),
    "priority": Leaf(
        {"type": "string"},
        _checked(_levels({"nice": (-20, 19), "fifo": (1, 99)})),
        _words("normal"),
    ),
    "io_priority": Leaf(
        {"type": "string"}, _checked(_levels(_IO_LEVELS)), _words("normal", "idle")
    ),
    "path": _pattern(r"/[^\0]{1,1000}", "/var/log/udpbench.log"),
    "command": Leaf(
        {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1},
        _command,
        show=list,
    ),
    "answers": Leaf(
        {
            "type": "object",
            "properties": {"id_at": {"type": "integer"}, "timeout": {"type": "string"}},
            "required": ["id_at"],
            "additionalProperties": False,
        },
        _answers,
        words={"count": Answers()},
        show=lambda answers: {
            "id_at": answers.id_at,
            "timeout": units.format_duration(answers.timeout_ns),
        },
    ),
    "payload": Leaf(
        {"anyOf": [_DATAGRAM, {"type": "array", "items": _DATAGRAM, "minItems": 1}]},
        _payload,
        show=lambda payload: [{"hex": text} for text in payload],
    ),
    "ready": _pattern(r".*\S.*", "listening"),
    "user": Leaf({"type": "string"}, _user),
    "unit": _pattern(r"[A-Za-z0-9:_.@\\-]{1,255}", "unbound.service"),
    "folder": _pattern(r"/[^\0]{0,1000}", "/opt/server"),
    "steering": _pattern(r"/[^\0]{1,1000}", "/sys/fs/bpf/steering"),
    "question": _pattern(r"[\s\S]*\S[\s\S]*", "Does pinning help?"),
    "source": Leaf(dict(_STUDY_FIGURE.schema), _source),
    "extends": _pattern(r".*\S.*", "01-naive-and-pinned.yaml"),
    "name": _pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", "left"),
    "interface": Leaf({"type": "string"}, _interface),
    "address": Leaf({"type": "string"}, _checked(address_count)),
    "neighbour": Leaf({"type": "string"}, _parsed(parse_neighbour)),
    "route": Leaf({"type": "string"}, _parsed(parse_route)),
    "governor": _pattern(r"[a-z_]{1,32}", "performance"),
    "hash_fields": _pattern(r"[mvtsdfnrc]{1,9}", "sdfn"),
    "indirection": _pattern(r"default|equal [1-9]\d{0,3}|weight( \d{1,4})+", "equal 2"),
    "optional_path": _pattern(r"[A-Za-z0-9_.-]+", "ethtool.rx-flow-hash"),
    "expectation": _pattern(r".*\S.*", "delivered_pps[two] > delivered_pps[one]"),
    "point": _pattern(r".*\S.*", "naive"),
    "metric": Leaf(
        {
            "anyOf": [
                {"enum": [*METRICS, *LEDGER_STAGES]},
                {"pattern": r"\[loss="},
                {"pattern": r"^[A-Za-z0-9][A-Za-z0-9_-]*\.fwd_"},
            ]
        },
        _metric,
    ),
    "margin": Leaf({"type": ["string", "number"]}, _margin, show=units.show_share),
    "share": Leaf(_SHARE, _share, show=units.show_share),
    "loss_goals": Leaf(
        {"anyOf": [_SHARE, {"type": "array", "items": _SHARE}]},
        _loss_goals,
        show=lambda goals: [units.show_share(goal) for goal in goals],
    ),
    "blocks": Leaf(_BLOCKS, _blocks, {f"{LOOKS[0]}-{LOOKS[-1]}": LOOKS}),
    "feature": _pattern(r"[a-z0-9_-]{1,64}", "rx-gro"),
    "driver": _pattern(r"[a-z0-9_-]{1,64}", "ice"),
    "kernel": _pattern(r"\d{1,4}\.\d{1,4}(\.\d{1,4})?\+", "6.1+"),
    "sysctl_name": Leaf({"type": "string"}, _sysctl_name),
    "stage": Leaf({}, words=_words(*LEDGER_STAGES)),
    "interfaces": Leaf(
        {**_BOTH, "additionalProperties": {"type": "string"}},
        _interfaces,
        show=lambda pair: {"in": pair[0], "out": pair[1]},
    ),
    "node_addresses": Leaf(
        _BOTH,
        _node_addresses,
        words={"existing": ((), ())},
        show=lambda sides: {"in": list(sides[0]), "out": list(sides[1])},
    ),
    "connect": Leaf(
        {
            "type": "object",
            "anyOf": [{"required": [by]} for by in ("ssh", "netns", "container")],
            "additionalProperties": {"type": "string"},
        },
        _connect,
        {word: Connect(word) for word in ("namespace", "local")},
    ),
    "sysctl": Leaf({"type": ["string", "integer"]}, sysctl_value),
    "bit_rate": Leaf({"type": "string", "pattern": r"^[0-9.]+ *[kKMGT]?bps$"}, _bit_rate),
    "rate": Leaf(
        {"type": "string", "pattern": r"^[0-9.]+ *[kKMGT]?[pb]ps$"}, _rate, show=units.format_rate
    ),
}
BOOLEAN = Leaf({"type": "boolean"}, _boolean)

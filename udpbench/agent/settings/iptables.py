"""udpbench's rules in iptables and ip6tables, with either backend.

Read by iptables-save without a table name: naming a table makes the legacy backend create it, with
hooks that every packet passes. Other rules and policies are never changed.
"""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Union

from udpbench.agent.host import programs
from udpbench.agent.host.files import lines_of
from udpbench.agent.host.system import Host
from udpbench.agent.settings.rules import MARK, Rule

LOCK_WAIT_S = 5
"""Wait for another program that is changing rules (iptables -w)."""
PROGRAMS = {"ipv4": "iptables", "ipv6": "ip6tables"}
NFT_FAMILIES = {"ipv4": "ip", "ipv6": "ip6"}
JUMPS = {"accept": ["-j", "ACCEPT"], "drop": ["-j", "DROP"], "notrack": ["-j", "CT", "--notrack"]}
NO_TABLE = ("Table does not exist", "TABLE_ADD failed (Operation not supported)")
"""What the variants say, legacy and nf_tables, of a kernel without tables for them."""
_COUNTED = re.compile(r"\[(\d+):\d+\] (-A .*)")
_FLAGS = ("--notrack",)


@dataclass(frozen=True)
class Saved:
    """One rule listed by iptables-save."""

    table: str
    words: tuple[str, ...]
    packets: int

    @property
    def comment(self) -> str:
        """Its comment; empty if none."""
        words = self.words
        return words[words.index("--comment") + 1] if "--comment" in words else ""


def program(family: str) -> str:
    """Return the program for a family, ipv4 or ipv6."""
    return PROGRAMS[family]


def read(host: Host, rule: Rule) -> Union[bool, str, None]:
    """Return true if the rule exists, its text if it was modified, else None."""
    own = _own(_save(host, rule.family), rule)
    altered = [saved.words for saved in own if _options(saved.words) != _options(_spec(rule))]
    return shlex.join(altered[0]) if altered else True if own else None


def insert(host: Host, rule: Rule) -> None:
    """Put the rule at the head of its chain."""
    spec = _spec(rule)
    _change(host, rule, ["-I", spec[1], "1", *spec[2:]])


def delete(host: Host, rule: Rule) -> None:
    """Delete the rule as listed."""
    for saved in _own(_save(host, rule.family), rule):
        _change(host, rule, ["-D", *saved.words[1:]])


def packets(host: Host, family: str) -> dict[str, int]:
    """Return the packets counted by each udpbench rule, by target."""
    counts: dict[str, int] = {}
    for saved in _saved(_save(host, family)):
        if saved.comment.startswith(MARK):
            target = saved.comment[len(MARK) :]
            counts[target] = counts.get(target, 0) + saved.packets
    return counts


def by_hand(rule: Rule, there: bool) -> list[str]:
    """Return the command that inserts or deletes the rule."""
    spec = _spec(rule)
    words = ["-I", spec[1], "1", *spec[2:]] if there else ["-D", *spec[1:]]
    return [program(rule.family), "-t", _table(rule), *words]


def _table(rule: Rule) -> str:
    return "raw" if rule.raw else "filter"


def _spec(rule: Rule) -> list[str]:
    port = ["-p", "udp", "-m", "udp", "--dport", str(rule.port)]
    comment = ["-m", "comment", "--comment", rule.comment]
    return ["-A", rule.chain.upper(), *port, *comment, *JUMPS[rule.verdict]]


def _change(host: Host, rule: Rule, words: list[str]) -> None:
    lock = ["-w", str(LOCK_WAIT_S)]
    name, table = program(rule.family), _table(rule)
    try:
        programs.output(host, name, *lock, "-t", table, *words)
    except OSError as error:
        if any(text in str(error) for text in NO_TABLE):
            what = f"this kernel has no table {table} for {name}"
            step = (
                f"load its module, or choose the other variant: update-alternatives --config {name}"
            )
            raise OSError(errno.ENOPKG, f"{what}; {step}") from error
        raise


def _save(host: Host, family: str) -> str:
    return programs.output(host, f"{program(family)}-save", "-c")


def _saved(text: str) -> Iterator[Saved]:
    table = ""
    for line in lines_of(text):
        if line.startswith("*"):
            table = line[1:]
        counted = _COUNTED.match(line)
        if counted is not None:
            yield Saved(table, tuple(shlex.split(counted.group(2))), int(counted.group(1)))


def _own(text: str, rule: Rule) -> list[Saved]:
    place = (_table(rule), rule.comment)
    return [saved for saved in _saved(text) if (saved.table, saved.comment) == place]


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return a rule's options in normal form; a negation is kept and therefore differs."""
    listed = list(words)
    if listed[-2:] == ["-j", "NOTRACK"]:  # how 1.4 lists it
        listed[-1:] = ["CT", "--notrack"]
    options: dict[str, str] = {}
    while listed:
        option = listed.pop(0)
        value = "" if option in _FLAGS or not listed else listed.pop(0)
        if option != "-m":
            options[option] = value
    return options

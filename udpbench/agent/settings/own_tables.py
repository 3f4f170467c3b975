"""Tables of nft that are udpbench's alone, each with a chain: replaced as a whole, or deleted."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any

from udpbench.agent.host import programs
from udpbench.agent.host.system import Host
from udpbench.agent.settings.nft import change

FAMILY = "inet"


def rules_of(host: Host, table: str) -> list[dict[str, Any]]:
    """Return the rules of a table; OSError ENOPKG if nft is not installed."""
    try:
        listed = programs.ruleset(host)
    except OSError as error:
        if error.errno == errno.ENOPKG:
            raise OSError(errno.ENOPKG, "nft is not installed; install it on the node") from error
        raise
    rules = (item["rule"] for item in listed if "rule" in item)
    return [rule for rule in rules if (rule["family"], rule["table"]) == (FAMILY, table)]


def replace_table(
    host: Host, table: str, chain: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]
) -> None:
    """Replace a table by one with a chain of these rules; without rules it is deleted."""
    place = {"family": FAMILY, "table": table}
    add = {"add": {"table": {"family": FAMILY, "name": table}}}
    commands: list[dict[str, Any]] = [add, {"delete": add["add"]}]
    if rules:
        named = {**place, "policy": "accept", **chain}
        commands += [add, {"add": {"chain": named}}]
        commands += [{"add": {"rule": {**place, "chain": chain["name"], **rule}}} for rule in rules]
    change(host, commands)


def match(left: dict[str, Any], op: str, right: Any) -> dict[str, Any]:
    """Return a comparison of a rule."""
    return {"match": {"op": op, "left": left, "right": right}}

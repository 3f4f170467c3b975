"""The verb ``schema``."""

from __future__ import annotations

from udpbench.commands.verbs.output import print_json


def schema() -> None:
    """Print the JSON Schema of experiment and lab files."""
    from udpbench.definition.load import schema as json_schema

    print_json(json_schema())

"""The verb ``schema``."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of experiment and lab files."""
    import json

    from udpbench.definition.load import schema as json_schema

    print(json.dumps(json_schema(), indent=2))

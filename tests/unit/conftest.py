"""What the unit tests share: the command line, which is parsed from its functions once."""

from __future__ import annotations

from functools import cache

import typer.main

typer.main.get_command = cache(typer.main.get_command)  # 25 ms for each of hundreds of calls

"""Builds ``udpbench._native``: cffi in API mode, one abi3 extension for Python 3.9 and later.

The declarations are the very text of the headers that udpbench.h includes, so that the compiler
checks every one of them.
``UDPBENCH_SANITIZE=address,undefined`` in the environment builds it with those sanitizers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI


def sanitizer_flags() -> list[str]:
    """Return what compiler and linker need for the sanitizers asked for, if any."""
    sanitizers = os.environ.get("UDPBENCH_SANITIZE", "")
    if not sanitizers:
        return []
    return [
        f"-fsanitize={sanitizers}",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
        "-g",
    ]


# setuptools runs this file without a name of its own, from the project's root.
NATIVE = Path("native")
HEADER = NATIVE / "udpbench.h"
BOUNDARY = re.findall(r'^#include "(.+)"', HEADER.read_text(encoding="utf-8"), re.MULTILINE)
DECLARATIONS = "".join((NATIVE / name).read_text(encoding="utf-8") for name in BOUNDARY)
COMPILED = sorted(str(file) for file in NATIVE.rglob("*.c"))
OPTIONS = ("-O2", "-std=gnu11", "-fvisibility=hidden")

ffibuilder = FFI()
ffibuilder.cdef(DECLARATIONS)
ffibuilder.set_source(
    "udpbench._native",
    '#include <stdint.h>\n#include "udpbench.h"',
    sources=COMPILED,
    depends=sorted(str(file) for file in NATIVE.rglob("*.h")),
    include_dirs=["native"],
    py_limited_api=True,
    extra_compile_args=[*OPTIONS, *sanitizer_flags()],
    extra_link_args=sanitizer_flags(),
)

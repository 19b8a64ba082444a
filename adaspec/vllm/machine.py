"""This machine's name in traces and cost files."""

from __future__ import annotations

import contextlib
import importlib
import platform
import re
from pathlib import Path

from adaspec.vllm.patching import CORES


def hardware() -> str:
    """The device that models run on: a GPU's name, or the processor and its usable cores."""
    with contextlib.suppress(ImportError, NotImplementedError):
        engine = importlib.import_module("vllm.platforms").current_platform
        # torch is not asked for the name, because that would start CUDA in a process that has
        # still to fork.
        if not engine.is_cpu():
            return str(engine.get_device_name())
    processor = platform.processor() or platform.machine() or "of an unknown kind"
    with contextlib.suppress(OSError):
        said = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if named := re.search(r"^model name\s*:(.*\S)", said, re.MULTILINE):
            processor = " ".join(named[1].split())
    return f"CPU {processor}, {CORES} cores"

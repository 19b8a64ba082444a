"""This machine's name in traces and cost files."""

from __future__ import annotations

import importlib
import platform
from pathlib import Path

from adaspec.vllm.patching import CORES


def hardware() -> str:
    """The device that models run on: a GPU's name, or the processor and its usable cores."""
    try:
        engine = importlib.import_module("vllm.platforms").current_platform
        # torch is not asked for the name, because that would start CUDA in a process that has
        # still to fork.
        if not engine.is_cpu():
            return str(engine.get_device_name())
    except (ImportError, NotImplementedError):
        pass
    return f"CPU {_processor()}, {CORES} cores"


def _processor() -> str:
    """The processor's model name according to the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine() or "of an unknown kind"

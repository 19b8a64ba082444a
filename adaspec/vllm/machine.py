"""This machine: its name in traces and profiles, and its own profiles, where servers find them.

A profile is a cost file for a target, a drafter (or none) and a kind of hardware. Its name is made
from these three, so that profiles are never confused.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import platform
import re
from pathlib import Path

from adaspec.cost.load import FitReport, load_cost, save_cost
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError, CostError
from adaspec.vllm.patching import CORES

FOLDER_VARIABLE = "ADASPEC_DATA_DIR"
"""The environment variable that names a folder to use instead of `~/.local/share/adaspec`."""

_COUNTS = ("1x", "one")
"""Words in a device's name that only count devices."""

log = logging.getLogger("vllm.adaspec")


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


def same_hardware(measured_on: str, device: str) -> bool:
    """Whether every word of the first name, except counts, is in the second.

    For example, `1x NVIDIA H100` matches `NVIDIA H100 80GB HBM3`, but not another NVIDIA card.
    """
    return _words(measured_on) <= _words(device)


def _words(name: str) -> set[str]:
    return {word for word in name.lower().replace(",", " ").split() if word not in _COUNTS}


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


def profiles_folder() -> Path:
    """The folder of kept profiles, which may not exist yet."""
    configured = os.environ.get(FOLDER_VARIABLE)
    if configured:
        return Path(configured) / "profiles"
    try:
        shared = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    except RuntimeError as error:
        raise CostError(
            f"profiles have no folder, since this user has no home: name one in ${FOLDER_VARIABLE}"
        ) from error
    return Path(shared) / "adaspec" / "profiles"


def profile_path(target: str, drafter: str | None, hardware: str) -> Path:
    """The file for the profile of a target, a drafter and a kind of hardware."""
    parts = [identity(target), "" if drafter is None else identity(drafter), hardware]
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()
    legible = re.sub(r"[^A-Za-z0-9.]+", "-", parts[0].rpartition("/")[2]).strip("-.")
    return profiles_folder() / f"{legible[:60] or 'model'}-{digest}.json"


def keep_profile(
    cost: CostModel, fit: FitReport, target: str, drafter: str | None, hardware: str
) -> Path:
    """Write a profile to where `find_profile` looks, and return its path."""
    path = profile_path(target, drafter, hardware)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_cost(cost, path, fit)
    return path


def find_profile(target: str, drafter: str | None, hardware: str) -> Path | None:
    """The path of this machine's profile; an unreadable profile is logged and ignored."""
    try:
        path = profile_path(target, drafter, hardware)
        if not path.is_file():
            return None
        load_cost(path)
    except (AdaspecError, OSError) as error:
        log.warning("adaspec: this machine's own profile is passed over: %s", error)
        return None
    return path


def identity(model: str) -> str:
    """A model's hub id or the full path of its folder, so that each model has one name."""
    cached = re.search(r"models--([^/]+)/snapshots/", model.rstrip("/") + "/")
    if cached:
        return cached[1].replace("--", "/")
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model

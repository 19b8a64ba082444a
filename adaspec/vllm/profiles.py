"""Keeps this machine's profiles where a server finds the one that it needs.

A profile is a cost file for a target, a drafter (or none) and a kind of hardware. Its name is made
from these three, so that profiles are never confused.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

from adaspec.cost.load import FitReport, load_cost, save_cost
from adaspec.cost.model import CostModel
from adaspec.errors import AdaspecError, CostError

FOLDER_VARIABLE = "ADASPEC_DATA_DIR"
"""The environment variable that names a folder to use instead of `~/.local/share/adaspec`."""

log = logging.getLogger("vllm.adaspec")


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

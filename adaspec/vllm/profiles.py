"""Where this machine's own profiles are kept, so that a server finds the one it needs.

A profile is a cost file. It belongs to a target, a drafter (or none) and a kind of hardware; the
three make its name, so that none is ever taken for another's.
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
"""Names another folder for what adaspec keeps of its user's than `~/.local/share/adaspec`."""

log = logging.getLogger("vllm.adaspec")


def profiles_folder() -> Path:
    """The folder of kept profiles, whether it exists or not."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named) / "profiles"
    try:
        shared = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    except RuntimeError as error:
        raise CostError(
            f"profiles have no folder, since this user has no home: name one in ${FOLDER_VARIABLE}"
        ) from error
    return Path(shared) / "adaspec" / "profiles"


def profile_path(target: str, drafter: str | None, hardware: str) -> Path:
    """The file that keeps the profile of these three."""
    parts = [identity(target), "" if drafter is None else identity(drafter), hardware]
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()
    legible = re.sub(r"[^A-Za-z0-9.]+", "-", parts[0].rpartition("/")[2]).strip("-.")
    return profiles_folder() / f"{legible[:60] or 'model'}-{digest}.json"


def keep_profile(
    cost: CostModel, fit: FitReport, target: str, drafter: str | None, hardware: str
) -> Path:
    """Write a profile to where `find_profile` looks; its path."""
    path = profile_path(target, drafter, hardware)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_cost(cost, path, fit)
    return path


def find_profile(target: str, drafter: str | None, hardware: str) -> Path | None:
    """This machine's own profile; one that cannot be read is said and passed over."""
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
    """What a model is, however it was named: a hub id, or a folder's full path."""
    cached = re.search(r"models--([^/]+)/snapshots/", model.rstrip("/") + "/")
    if cached:
        return cached[1].replace("--", "/")
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model

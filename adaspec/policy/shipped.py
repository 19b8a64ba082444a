"""The policies that come with adaspec, by name, from a wheel and from a checkout alike."""

from __future__ import annotations

from pathlib import Path

from adaspec.errors import PolicyError, nearest
from adaspec.policy.artifact import MANIFEST

GENERAL = "general"
"""The policy for every model; it serves where none was made for a model."""

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_WHEEL = _PACKAGE / "_policies"
_IN_CHECKOUT = _PACKAGE.parent / "policies"
_PYPROJECT = _PACKAGE.parent / "pyproject.toml"


def shipped_policies() -> dict[str, Path]:
    """The folder of every shipped policy by its name; empty where none came along."""
    # A folder of that name in site-packages is not a checkout's.
    homes = (_IN_WHEEL, _IN_CHECKOUT) if _PYPROJECT.is_file() else (_IN_WHEEL,)
    for home in homes:
        if home.is_dir():
            return {each.parent.name: each.parent for each in sorted(home.glob(f"*/{MANIFEST}"))}
    return {}


def find_policy(name_or_path: str | Path) -> Path:
    """The folder that is meant: an existing one, or a shipped policy's by its name."""
    path = Path(name_or_path)
    if path.is_dir():
        return path
    if path.exists():
        raise PolicyError(f"{path}: is a file: give a policy's folder, or a shipped policy's name")
    shipped = shipped_policies()
    name = str(name_or_path)
    if name in shipped:
        return shipped[name]
    known = f"shipped are {', '.join(shipped)}" if shipped else "none is shipped with this build"
    raise PolicyError(
        f"{name}: neither a folder nor a shipped policy{nearest(name, shipped)}: "
        f"give the folder of a trained policy ({known})"
    )

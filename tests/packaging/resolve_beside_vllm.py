"""Resolve adaspec's core beside several versions of vLLM, installing nothing.

    python tests/packaging/resolve_beside_vllm.py [VERSION ...]

For each version of vLLM: a dry run of `pip install adaspec.whl vllm==VERSION` in an empty
environment of its own. Exit 0 where all resolve and 1 where one does not. Where the index lacks
something that vLLM itself asks for, that vLLM cannot be had from it, with adaspec or without: its
other requirements are then resolved beside adaspec's, the line says so, and the exit code is 3, for
that is less than was asked. Needs the network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

VERSIONS = ("0.32.0", "0.33.0")
RESOLVES, CONFLICT, UNSERVED = 0, 1, 3
SHOWN = ("torch", "numpy", "numba", "llvmlite", "pyarrow", "lightgbm", "scikit-learn", "click")
CHECKOUT = Path(__file__).resolve().parents[2]
NOT_THERE = re.compile(r"No matching distribution found for (\S+)")


def main(versions: list[str]) -> int:
    """Print one line per version and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        wheel = build_wheel(root)
        python = fresh_environment(root)
        found = {version: resolve(python, wheel, version, root) for version in versions}
    for code in (CONFLICT, UNSERVED):
        if code in found.values():
            named = ", ".join(version for version, one in found.items() if one == code)
            why = "does not resolve" if code == CONFLICT else "could not be tried whole"
            print(f"vLLM {named}: {why}", file=sys.stderr)
            return code
    return RESOLVES


def build_wheel(root: Path) -> Path:
    """adaspec's wheel, built from the checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(root / "dist")]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    return next((root / "dist").glob("*.whl"))


def fresh_environment(root: Path) -> Path:
    """The Python of an empty environment whose pip can write reports."""
    venv.create(root / "venv", with_pip=True)
    python = root / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "-U", "pip>=24"], check=True)
    return python


def resolve(python: Path, wheel: Path, version: str, root: Path) -> int:
    """How adaspec and that vLLM resolve together; says what was chosen, or why not."""
    vllm = f"vllm=={version}"
    chosen, said = dry_run(python, [str(wheel), vllm], root)
    if chosen is not None:
        print(f"{vllm}: resolves ({pins(chosen)})", flush=True)
        return RESOLVES
    alone, said_alone = dry_run(python, [vllm], root)
    if alone is not None:
        print(f"{vllm}: resolves alone but not beside adaspec: {said}", flush=True)
        return CONFLICT
    unserved = NOT_THERE.search(said_alone)
    if unserved is None:
        print(f"{vllm}: does not resolve, not even alone: {said_alone}", flush=True)
        return CONFLICT
    lacking = package(unserved[1])
    wanted = [item for item in requirements(python, vllm, root) if package(item) != lacking]
    chosen, said = dry_run(python, [str(wheel), *wanted], root)
    print(
        f"{vllm}: not even vLLM alone resolves, the index serves no {unserved[1]}; its other"
        f" requirements beside adaspec: {pins(chosen) if chosen is not None else said}",
        flush=True,
    )
    return UNSERVED if chosen is not None else CONFLICT


def requirements(python: Path, what: str, root: Path) -> list[str]:
    """What a distribution asks for, extras left out."""
    report = root / "metadata.json"
    run_pip(python, ["--no-deps", "--report", str(report), what])
    asked = json.loads(report.read_text())["install"][0]["metadata"].get("requires_dist", [])
    return [item for item in asked if "extra ==" not in item]


def package(requirement: str) -> str:
    """The name a requirement begins with."""
    return re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower()


def dry_run(python: Path, wanted: list[str], root: Path) -> tuple[dict[str, str] | None, str]:
    """The versions that pip would install, or None and its complaint."""
    report = root / "report.json"
    result = run_pip(python, ["--report", str(report), *wanted])
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        return None, errors[-1] if errors else result.stderr[-500:]
    chosen = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return {item["name"].lower(): item["version"] for item in chosen}, ""


def run_pip(python: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def pins(chosen: dict[str, str]) -> str:
    """The versions a reader wants to see."""
    return ", ".join(f"{name} {chosen[name]}" for name in SHOWN if name in chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))

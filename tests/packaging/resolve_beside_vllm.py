"""Resolve adaspec's core beside several versions of vLLM, installing nothing.

    python tests/packaging/resolve_beside_vllm.py [VERSION ...]

For each version of vLLM: a dry run of `pip install adaspec.whl vllm==VERSION` in an empty
environment of its own. Exit 0 where all resolve and 1 where one does not. Needs the network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

VERSIONS = ("0.32.0", "0.33.0")
SHOWN = ("torch", "numpy", "numba", "llvmlite", "pyarrow", "lightgbm", "scikit-learn", "click")
CHECKOUT = Path(__file__).resolve().parents[2]


def main(versions: list[str]) -> int:
    """Print one line per version and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        wheel = build_wheel(root)
        python = fresh_environment(root)
        failed = [each for each in versions if not resolves(python, wheel, each, root)]
    return int(bool(failed))


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


def resolves(python: Path, wheel: Path, version: str, root: Path) -> bool:
    """Whether adaspec and that vLLM resolve together; says what was chosen, or why not."""
    report = root / "report.json"
    command = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--report", str(report), str(wheel), f"vllm=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = errors[-1] if errors else done.stderr[-500:]
        print(f"vLLM {version}: does not resolve: {said}", flush=True)
        return False
    chosen = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    versions = {item["name"].lower(): item["version"] for item in chosen}
    pins = ", ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
    print(f"vLLM {version}: resolves ({pins})", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))

"""Resolve adaspec's core beside several versions of vLLM, installing nothing.

    python tests/packaging/resolve_beside_vllm.py [VERSION ...]

For each version of vLLM: a dry run of `pip install adaspec.whl vllm==VERSION` in an empty
environment of its own. Exit 0 where all resolve and 1 where one does not. Needs the network.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

VERSIONS = ("0.32.0", "0.33.0")
CHECKOUT = Path(__file__).resolve().parents[2]


def main(versions: list[str]) -> int:
    """Print one line per version and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
        (wheel,) = root.glob("*.whl")
        venv.create(root / "venv", with_pip=True)
        python = root / "venv" / "bin" / "python"
        failed = [each for each in versions if not resolves(python, wheel, each)]
    return int(bool(failed))


def resolves(python: Path, wheel: Path, version: str) -> bool:
    """Whether adaspec and that vLLM resolve together; says so, or why not."""
    command = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += [str(wheel), f"vllm=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    why_not = errors[-1] if errors else done.stderr[-500:]
    said = f"does not resolve: {why_not}" if done.returncode else "resolves"
    print(f"vLLM {version}: {said}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))

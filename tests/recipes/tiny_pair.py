"""The tiny reference pair, made by its recipe once for all tests that need it."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "training" / "reference_pair"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(script, *arguments, **environment):
    """One stage of the recipe, as a user runs it."""
    command = [sys.executable, str(RECIPE / script), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**ENVIRONMENT, **environment}
    )


def pair_in(cache):
    """The pair's folder, in this cache; made anew when a file of the recipe has changed."""
    sources = sorted(RECIPE.glob("*.py"))
    version = hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()[:12]
    folder = Path(cache) / f"tiny-pair-{version}"
    if not folder.exists():
        making = folder.with_name(f"{folder.name}-{os.getpid()}")
        shutil.rmtree(making, ignore_errors=True)
        done = run("make_pair.py", "--size", "tiny", "-o", making)
        assert done.returncode == 0, done.stderr
        making.rename(folder)
    return folder

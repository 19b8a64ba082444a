"""Read the sources of several versions of vLLM for what adaspec patches and calls, running nothing.

    python tests/packaging/read_vllm_sources.py [VERSION ...]

Fetches each version's wheel and looks up every function of `adaspec.vllm.compatibility` in it, with
the parameters that adaspec relies on. Prints a line for each version and model runner; a missing
name makes the exit code 1. Needs the network, and some 500 MB at a time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from adaspec.vllm.compatibility import (
    FUNCTIONS_OF_SERVERS,
    FUNCTIONS_V1,
    FUNCTIONS_V2,
    signature_problems,
)
from adaspec.vllm.source import parameters_in_source

VERSIONS = ("0.32.0", "0.33.0")
FETCH = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
FETCH += ["--no-cache-dir"]


def main(versions: list[str]) -> int:
    """Print what each version lacks and return the exit code."""
    failed = False
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([*FETCH, "-d", folder, f"vllm=={version}"], check=True)
            (path,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(path) as wheel:
                sources = [name for name in wheel.namelist() if name.endswith(".py")]
                wheel.extractall(folder, sources)
            sys.path.insert(0, folder)
            lists = {"V1": FUNCTIONS_V1 | FUNCTIONS_OF_SERVERS, "V2": FUNCTIONS_V2}
            for runner, functions in lists.items():
                names = list(signature_problems(functions, parameters_in_source))
                failed |= bool(names)
                said = "; ".join(names) or "as adaspec expects"
                print(f"vLLM {version}, model runner {runner}: {said}", flush=True)
            sys.path.remove(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))

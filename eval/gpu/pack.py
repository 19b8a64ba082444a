"""Makes what a machine with a Hopper GPU lacks that has torch and no vLLM: one small archive.

    python eval/gpu/pack.py vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl site.tar.xz

Of vLLM's wheel what dense models in bfloat16 load there; beside it the packages that vLLM imports
and the machine lacks. Needs nothing but Python 3.11.4 or newer, and pip.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = ("vllm/_C_stable_libtorch.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
"""Those that are loaded. That of FlashAttention 2 and those of mixtures of experts, other attention
and other number formats are not: vLLM does without them until one is used."""
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
    httpcore2==2.16.2 httpx2==2.16.2 importlib-metadata==10.2.0 jiter==0.19.0 lazy-importer==0.1.0
    llguidance==1.7.6 loguru==0.7.3 msgspec==0.22.0 openai==3.57.0 opentelemetry-api==1.45.2
    opentelemetry-exporter-otlp-common==0.66b2 opentelemetry-exporter-otlp-proto-common==1.45.2
    opentelemetry-exporter-otlp-proto-grpc==1.45.2 opentelemetry-proto==1.45.2
    opentelemetry-sdk==1.45.2 opentelemetry-semantic-conventions==0.66b2 oss-harmony==0.0.11
    partial-json-parser==0.2.1.1.post7 pybase64==1.5.1 pydantic==2.14.4 pydantic-core==2.50.5
    python-json-logger==4.2.0 pyzmq==27.3.0 setproctitle==1.3.8 sniffio==1.3.1 starlette==1.10.0
    truststore==0.10.5 typing-inspection==0.4.5 xgrammar==0.2.8
"""
"""What vLLM imports, in versions that go with each other."""

FAT_BINARY = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""How nvcc begins what it has compiled for several GPUs: a mark, a version, and the bytes of this
header, the last 8 of which say how many bytes follow."""
ENTRY = "<HHIQ12xI"
"""How each of its entries begins: the kind, a version, the bytes of its own header, those of the
code behind it, and for which GPU."""
MACHINE_CODE, HOPPER = 2, 90


def make(wheel: Path, archive: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as scratch:
        site, wheels = Path(scratch) / "site", Path(scratch) / "wheels"
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if name in LIBRARIES or (
                    name.endswith(KEPT_KINDS) and not name.startswith(LEFT_OUT)
                ):
                    packed.extract(name, site)
        for name in LIBRARIES:
            library = bytearray((site / name).read_bytes())
            for start, end in foreign_code(library):
                library[start:end] = bytes(end - start)
            (site / name).write_bytes(library)
        fetch(wheels)
        for each in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(each) as packed:
                packed.extractall(site)
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, mode="w:xz", preset=9) as written:
            written.add(site, arcname=".")


def foreign_code(library: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """From where to where code is that no Hopper GPU runs.

    What says which GPU the code is for stays, and so does the place of all else: CUDA looks for
    code of its own GPU, and loads no other.
    """
    at = library.find(FAT_BINARY)
    while at >= 0:
        (size,) = struct.unpack_from("<Q", library, at + len(FAT_BINARY))
        place = at + 16
        end = place + size
        while place < end:
            kind, _, header, code, gpu = struct.unpack_from(ENTRY, library, place)
            if (kind, gpu) != (MACHINE_CODE, HOPPER):
                yield place + header, place + header + code
            place += header + code
        at = library.find(FAT_BINARY, end)


def fetch(folder: Path) -> None:
    """Download the packages; pip says what it does not find."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    words += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    platforms = [f"--platform=manylinux_2_{each}_x86_64" for each in PLATFORMS]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    subprocess.run([*words, *platforms, *PACKAGES.split()], check=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, help="vLLM's, for CUDA")
    parser.add_argument("archive", type=Path, help="the file to write")
    options = parser.parse_args()
    make(options.wheel, options.archive)
    print(f"{options.archive}: {options.archive.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()

"""eval/gpu/pack.py: two pieces that may travel become what was packed, or an error says why not."""

import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "eval" / "gpu"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs eval/, which a source distribution leaves out"
)


@pytest.fixture
def pack(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import pack

    monkeypatch.setattr(pack, "PART_BYTES", 1000)
    monkeypatch.setattr(pack, "PIECE_BYTES", 9000)
    return pack


def unpack(piece, site):
    """As on the machine: with the standard library alone."""
    command = [sys.executable, "-S", str(FOLDER / "pack.py"), "unpack", str(piece), "-o", str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def made(pack, tmp_path, monkeypatch):
    """The pieces of a wheel and of one package, and what the library of the wheel holds."""
    library, wheel = random.Random(0).randbytes(10_500), tmp_path / "vllm.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(pack.LARGE, library)
        packed.writestr(pack.KEPT[1], b"attention")
        packed.writestr("vllm/config.py", "kept")
        packed.writestr("vllm-0.32.0.dist-info/METADATA", "kept")
        packed.writestr("vllm/third_party/deep_gemm/include.py", "left out")
        packed.writestr("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "left out")

    def fetch(folder):
        folder.mkdir()
        with zipfile.ZipFile(folder / "a-1.whl", "w") as packed:
            packed.writestr("a/package.py", "kept")

    monkeypatch.setattr(pack, "_fetch", fetch)
    return pack.make(wheel, tmp_path / "carry"), library


def test_the_first_piece_has_all_files_and_the_second_completes_the_library(pack, made, tmp_path):
    (first, second), library = made
    site = tmp_path / "site"
    sizes = [sum(each.stat().st_size for each in piece.iterdir()) for piece in (first, second)]
    assert max(sizes) < 1.5 * min(sizes)
    done = unpack(first, site)
    assert (done.returncode, "other piece is to come" in done.stdout) == (0, True), done.stderr
    names = {str(each.relative_to(site)) for each in site.rglob("*") if each.is_file()}
    kept = {"a/package.py", "vllm/config.py", pack.KEPT[1], "vllm-0.32.0.dist-info/METADATA"}
    assert kept <= names
    assert "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so" not in names
    assert not any("deep_gemm" in name for name in names)
    assert not (site / pack.LARGE).exists()
    for _ in ("once", "again"):
        done = unpack(second, site)
        assert (done.returncode, "whole" in done.stdout) == (0, True), done.stderr
        assert (site / pack.LARGE).read_bytes() == library

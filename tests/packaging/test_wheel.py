"""What the wheel holds and what importing adaspec costs."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
HEAVY = ("numba", "numpy", "torch", "lightgbm", "vllm", "pyarrow", "sklearn", "matplotlib", "rich")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="the 'dev' extra brings hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return wheel.read(name).decode()


def modules_after(statement):
    report = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    command = [sys.executable, "-c", report]
    done = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    return {name.split(".")[0] for name in done.stdout.splitlines()}


def test_every_module_is_in_the_wheel(wheel):
    there = {str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("adaspec/**/*.py")}
    assert there <= set(wheel.namelist())


def test_nothing_but_the_package_and_its_metadata_is_in_the_wheel(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"adaspec"}
    assert not [name for name in wheel.namelist() if "__pycache__" in name]


def test_the_wheel_carries_its_licence_and_the_command(wheel):
    names = wheel.namelist()
    assert any(name.endswith("LICENSE") for name in names)
    (points,) = [name for name in names if name.endswith("entry_points.txt")]
    assert "adaspec = adaspec.cli.main:main" in wheel.read(points).decode()


def test_the_core_asks_for_neither_vllm_nor_torch(wheel):
    core = [
        line.removeprefix("Requires-Dist: ").lower()
        for line in metadata(wheel).splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert core
    assert not [line for line in core if line.startswith(("vllm", "torch", "dask"))]


def test_the_core_caps_nothing_that_vllm_may_pin():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert not [item for item in project["dependencies"] if "<" in item or "==" in item]


def test_importing_adaspec_imports_nothing_heavy():
    assert not modules_after("import adaspec").intersection(HEAVY)


def test_the_command_lines_help_imports_nothing_heavy():
    asked = "from adaspec.cli.main import run; run(['--help']); run(['--version'])"
    assert not modules_after(asked).intersection(HEAVY)


def test_the_licence_is_whole():
    text = (CHECKOUT / "LICENSE").read_text()
    for part in ("Version 2.0, January 2004", "9. Accepting Warranty", "END OF TERMS"):
        assert part in text

"""What the wheel holds and what importing adaspec costs."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
HEAVY = {"numba", "numpy", "torch", "lightgbm", "vllm"}
HEAVY |= {"pyarrow", "sklearn", "plotly", "jinja2", "rich"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="the 'dev' extra brings hatchling")
    with zipfile.ZipFile(built(CHECKOUT, tmp_path_factory.mktemp("dist"))) as archive:
        yield archive


@pytest.fixture(scope="module")
def shipping(tmp_path_factory):
    """A checkout that ships the policy 'mine', and beside it a folder's notes."""
    pytest.importorskip("hatchling", reason="the 'dev' extra brings hatchling")
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, checkout)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "adaspec", checkout / "adaspec", ignore=ignored)
    (checkout / "policies").mkdir()
    (checkout / "policies" / "README.md").write_text("what lies here")
    script = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT / 'tests' / 'unit' / 'policy')!r})\n"
        "import pathlib, policy_fakes\n"
        "policy_fakes.written(pathlib.Path('policies/mine'))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=checkout, check=True)
    return checkout


def built(checkout, folder):
    """The wheel of a checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def shipped(place):
    """The shipped policies that the adaspec in this folder finds, by a name each."""
    script = (
        "import adaspec.policy.shipped as s, adaspec.policy.artifact as a\n"
        "import pathlib\n"
        "for name in s.shipped_policies():\n"
        "    path = a.load_artifact(s.find_policy(name)).path\n"
        "    print(name, path.relative_to(pathlib.Path.cwd()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=place, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return wheel.read(name).decode()


def test_the_package_and_its_policies_are_in_the_wheel_whole_and_nothing_else(wheel):
    names = set(wheel.namelist())
    patterns = ("adaspec/**/*.py", "adaspec/**/*.html", "adaspec/**/*.js")
    there = {str(p.relative_to(CHECKOUT)) for each in patterns for p in CHECKOUT.glob(each)}
    assert "adaspec/evaluate/page.html" in there
    assert there <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"adaspec"}
    assert not [name for name in names if "__pycache__" in name]
    shipped = {
        f"adaspec/_policies/{path.relative_to(CHECKOUT / 'policies')}"
        for path in CHECKOUT.glob("policies/*/*")
    }
    assert {name for name in names if name.startswith("adaspec/_policies/")} == shipped


def test_a_policy_is_found_by_its_name_in_checkout_and_wheel_alike(shipping, tmp_path):
    assert shipped(shipping) == ["mine", "policies/mine"]
    wheel = built(shipping, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        assert "adaspec/_policies/mine/SHA256SUMS" in archive.namelist()
        assert not [name for name in archive.namelist() if name.endswith("README.md")]
        archive.extractall(tmp_path / "site")
    assert shipped(tmp_path / "site") == ["mine", "adaspec/_policies/mine"]


def test_the_wheel_carries_its_licence_and_the_command_and_asks_for_neither_vllm_nor_torch(wheel):
    assert any(name.endswith("LICENSE") for name in wheel.namelist())
    (points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "adaspec = adaspec.cli.main:main" in wheel.read(points).decode()
    core = [
        line.removeprefix("Requires-Dist: ").lower()
        for line in metadata(wheel).splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert core
    assert not [line for line in core if line.startswith(("vllm", "torch", "dask"))]
    assert not [item for item in core if "<" in item or "==" in item], "what vLLM may pin"


def test_help_imports_nothing_heavy():
    report = "from adaspec.cli.main import run; run(['--help']); run(['--version'])"
    command = [sys.executable, "-c", f"{report}; import sys; print('modules', *sys.modules)"]
    done = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "click" in loaded
    assert not HEAVY & set(loaded)

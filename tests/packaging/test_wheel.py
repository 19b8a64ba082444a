import zipfile
from importlib.metadata import Distribution

import pytest
from checkout import CHECKOUT, run_python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="the 'dev' extra brings hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run_python("-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def shipped(place):
    """The shipped policies that the adaspec in this folder finds and loads, by name and folder."""
    script = (
        "from adaspec.policy.artifact import find_policy, load_artifact, shipped_policies\n"
        "import pathlib\n"
        "for name in shipped_policies():\n"
        "    path = load_artifact(find_policy(name)).path\n"
        "    print(name, path.relative_to(pathlib.Path.cwd()))\n"
    )
    return [line.split() for line in run_python("-c", script, cwd=place).stdout.splitlines()]


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


def test_a_policy_is_found_by_its_name_in_checkout_and_wheel_alike(wheel, tmp_path):
    wheel.extractall(tmp_path)
    here = shipped(CHECKOUT)
    assert here == [[name, f"policies/{name}"] for name, _ in here] != []
    assert shipped(tmp_path) == [[name, f"adaspec/_policies/{name}"] for name, _ in here]


def test_the_wheel_carries_its_licence_and_the_command_and_asks_for_neither_vllm_nor_torch(wheel):
    (made,) = Distribution.discover(name="adaspec", path=[wheel.filename])
    assert any(str(file).endswith("LICENSE") for file in made.files)
    (command,) = made.entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("adaspec", "adaspec.cli.main:main")
    core = [each.lower() for each in made.requires if "extra ==" not in each]
    assert core
    assert not [line for line in core if line.startswith(("vllm", "torch", "dask"))]
    assert not [item for item in core if "<" in item or "==" in item], "what vLLM may pin"

"""Imports run one way: from the command line down to the traces, never up."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "adaspec"

LAYERS = [
    "cli",
    "api",
    "bench",
    "vllm",
    "train",
    "evaluate",
    "replay",
    "step",
    "device",
    "policy",
    "predict",
    "draft",
    "cost",
    "trace",
    "jit",
    "files",
    "documents",
    "errors",
]
"""Top to bottom; a module may import its own layer and those below."""

NO_CODE = {"training", "policies", "eval", "tests"}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path):
    parts = list(path.relative_to(CHECKOUT).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(path):
    """(line, dotted name) of every import in a file, those inside functions included."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = dotted(path) if path.name == "__init__.py" else dotted(path)[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            # `from adaspec import cost` imports a layer as surely as `import adaspec.cost`.
            yield from ((node.lineno, f"{origin}.{name.name}") for name in node.names)


def layer_of(name):
    """The layer a dotted name belongs to; None outside adaspec and for its root."""
    parts = name.split(".")
    if parts[0] != "adaspec" or len(parts) < 2:
        return None
    return parts[1] if parts[1] in LAYERS else None


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_a_module_imports_only_its_own_layer_and_those_below(path):
    own = layer_of(".".join(dotted(path)))
    if own is None:
        return
    upward = [
        f"{path.relative_to(CHECKOUT)}:{line} imports {name}"
        for line, name in imported(path)
        if (layer := layer_of(name)) is not None and LAYERS.index(layer) < LAYERS.index(own)
    ]
    assert upward == []


def test_no_modules_import_each_other():
    names = {".".join(dotted(path)): path for path in modules()}

    def needs(path):
        for _, name in imported(path):
            module = name if name in names else name.rpartition(".")[0]
            if module in names and module != "adaspec" and path != names[module]:
                yield module

    graph = {name: set(needs(path)) for name, path in names.items()}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(order) == set(names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_nothing_imports_recipes_policies_evaluations_or_tests(path):
    assert not [name for _, name in imported(path) if name.split(".")[0] in NO_CODE]


def needed_to_load(path):
    """What a module imports as it loads, by dotted names."""
    return [
        getattr(node, "module", None) or node.names[0].name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def test_only_tensors_and_vllm_need_torch_as_a_module_loads():
    found = {
        path.relative_to(PACKAGE).parts[0]
        for path in modules()
        for name in needed_to_load(path)
        if name.split(".")[0] == "torch" or name.startswith("adaspec.device")
    }
    assert found == {"device", "vllm"}


def test_only_kernels_need_triton():
    kernels = PACKAGE / "device" / "kernels"
    found = {
        path.parent
        for path in modules()
        for name in needed_to_load(path)
        if name.split(".")[0] == "triton"
        or (name.startswith("adaspec.device.kernels") and path.parent != kernels)
    }
    assert found == {kernels}


def test_every_folder_of_the_package_has_its_layer():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(LAYERS)
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert files == {
        "__init__",
        "__main__",
        "api",
        "documents",
        "errors",
        "files",
        "jit",
    }


def test_the_packages_root_loads_nothing_of_its_own():
    code = "import sys, adaspec; print(*(name for name in sys.modules if 'adaspec' in name))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["adaspec"]


def test_no_module_is_named_for_having_no_subject():
    assert not [path for path in modules() if path.stem in {"utils", "helpers", "manager", "misc"}]


def test_recipes_and_evaluations_are_no_packages():
    for folder in ("training", "policies", "eval"):
        assert not list((CHECKOUT / folder).rglob("__init__.py"))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from adaspec.cli import main", ["adaspec.cli.main"]),
        ("from adaspec import cost", ["adaspec.cost"]),
        ("import adaspec.evaluate.report as r", ["adaspec.evaluate.report"]),
        ("def f():\n    from ..replay import loop", ["adaspec.replay.loop"]),
        ("from . import model", ["adaspec.trace.model"]),
    ],
)
def test_the_check_sees_every_form_of_import(tmp_path, monkeypatch, source, found):
    monkeypatch.setattr(f"{__name__}.CHECKOUT", tmp_path)
    path = tmp_path / "adaspec" / "trace" / "store.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert [name for _, name in imported(path)] == found

"""Imports run one way: from the command line down to the traces, never up."""

import ast
import graphlib
import re

import pytest
from checkout import CHECKOUT, run_python

PACKAGE = CHECKOUT / "adaspec"

TEXT = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
(ORDER,) = re.findall(r"^    (cli > .*?)\n\n", TEXT, re.MULTILINE | re.DOTALL)
LAYERS = re.findall(r"\w+", ORDER)
"""Top to bottom; a module may import its own layer and those below."""

NO_CODE = {"training", "policies", "eval", "tests"}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path):
    parts = list(path.relative_to(CHECKOUT).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(path, nodes=ast.walk):
    """(line, dotted name) of every import in a file, or of those among some nodes of its tree."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = dotted(path) if path.name == "__init__.py" else dotted(path)[:-1]
    for node in nodes(tree):
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


def test_a_module_imports_its_own_layer_and_those_below_and_nothing_beside_the_package():
    wrong = []
    for path in modules():
        own = layer_of(".".join(dotted(path)))
        for line, name in imported(path):
            layer = layer_of(name)
            upward = own and layer and LAYERS.index(layer) < LAYERS.index(own)
            if upward or name.split(".")[0] in NO_CODE:
                wrong.append(f"{path.relative_to(CHECKOUT)}:{line} imports {name}")
    assert wrong == []


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


def test_only_tensors_and_vllm_need_torch_and_only_kernels_triton_as_a_module_loads():
    torch, triton = set(), set()
    for path in modules():
        for _, name in imported(path, lambda tree: tree.body):
            root, folder = name.split(".")[0], path.relative_to(PACKAGE).parts[0]
            if root == "torch" or name.startswith("adaspec.kernels"):
                torch.add(folder)
            batch_alone = name.startswith("adaspec.kernels.batch")
            if root == "triton" or (name.startswith("adaspec.kernels") and not batch_alone):
                triton.add(folder)
    assert torch == {"kernels", "vllm"}
    assert triton == {"kernels"}


def test_every_folder_of_the_package_has_its_layer():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(LAYERS)
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert files <= {"__init__", "__main__", *LAYERS}


HEAVY = {"numpy", "numba", "llvmlite", "pyarrow", "lightgbm", "sklearn", "torch", "vllm"}
HEAVY |= {"plotly", "jinja2", "rich", "adaspec.policy"}
LIGHT = {
    "import adaspec; before = set(sys.modules); names = set(dir(adaspec));"
    "assert set(adaspec.__all__) <= names and set(sys.modules) == before": HEAVY,
    "from adaspec.cli.main import run; run(['--help']); run(['--version'])": HEAVY,
    # Every process with vLLM in it loads these, and a worker's start fails over a compiler.
    "from adaspec.vllm.plugin import register; register()": HEAVY,
    "from adaspec.vllm.options import Options": {"numpy", "numba", "llvmlite"},
    "import adaspec.policy.artifact": HEAVY - {"numpy", "adaspec.policy"},
    "import adaspec.evaluate.report": {"plotly", "jinja2", "pyarrow"},
}


@pytest.mark.parametrize(("code", "heavy"), LIGHT.items(), ids=LIGHT)
def test_what_must_start_fast_loads_nothing_heavy(code, heavy):
    done = run_python("-c", f"import sys; {code}; print('modules', *sys.modules)")
    assert heavy.isdisjoint(done.stdout.splitlines()[-1].split()[1:])

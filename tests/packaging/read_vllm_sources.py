"""Read the sources of several versions of vLLM for what adaspec patches and calls, running nothing.

    python tests/packaging/read_vllm_sources.py [VERSION ...]

Fetches each version's wheel and looks up every function of `adaspec.vllm.compatibility` in it, with
the parameters that adaspec relies on. Prints a line for each version and model runner; a missing
name makes the exit code 1. Needs the network, and some 500 MB at a time.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from adaspec.vllm.compatibility import FUNCTIONS, FUNCTIONS_V2

VERSIONS = ("0.32.0", "0.33.0")


def main(versions: list[str]) -> int:
    """Print what each version lacks and return the exit code."""
    failed = False
    for version in versions:
        with (
            tempfile.TemporaryDirectory() as folder,
            zipfile.ZipFile(fetched(version, Path(folder))) as wheel,
        ):
            for runner, functions in (("V1", FUNCTIONS), ("V2", FUNCTIONS_V2)):
                names = list(missing(wheel, functions))
                failed |= bool(names)
                said = "; ".join(names) or "as adaspec expects"
                print(f"vLLM {version}, model runner {runner}: {said}", flush=True)
    return int(failed)


def fetched(version: str, folder: Path) -> Path:
    """The version's wheel."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"vllm=={version}"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "-d", str(folder)]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def missing(wheel: zipfile.ZipFile, functions: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """One line for every function that the wheel's sources lack, or whose parameters they lack."""
    files = set(wheel.namelist())
    for path, parameters in functions.items():
        module, _, name = path.partition(":")
        if not module.startswith("vllm"):
            continue
        file = module.replace(".", "/") + ".py"
        if file not in files:
            file = module.replace(".", "/") + "/__init__.py"
        if file not in files:
            yield f"{path}: no such module"
            continue
        found = known_parameters(ast.parse(wheel.read(file)), name.split("."))
        if found is None:
            yield f"{path} is missing"
        elif absent := [each for each in parameters if each not in found]:
            yield f"{path} lacks {', '.join(absent)}"


def known_parameters(tree: ast.Module, path: list[str]) -> set[str] | None:
    """The parameters of a function, or a class's fields for its `__init__`; None if it is absent.

    A name that a module imports from another one counts as there, with any parameters asked for.
    """
    body, node = tree.body, None
    for name in path:
        node = next((each for each in body if getattr(each, "name", None) == name), None)
        if node is None:
            return _of_absent(body, name, path)
        body = getattr(node, "body", [])
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return {each.arg for each in every}
    return set()


class _Anything(set[str]):
    def __contains__(self, name: object) -> bool:
        return True


def _of_absent(body: list[ast.stmt], name: str, path: list[str]) -> set[str] | None:
    fields = {
        each.target.id
        for each in body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    if name == "__init__" and fields:  # a dataclass, whose base's fields are not looked for
        return fields
    if name in fields:
        return set()
    imported = {
        alias.asname or alias.name
        for each in body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    return _Anything() if name in imported and name == path[0] else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))

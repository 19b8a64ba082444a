"""Hold adaspec to several versions of vLLM, installing and running nothing of them.

    python tests/packaging/beside_vllm.py [VERSION ...]

For each version: a dry run of `pip install adaspec.whl vllm==VERSION` in an empty environment of
its own; and a look in the version's sources for every function of `adaspec.vllm.compatibility`,
with the parameters that adaspec relies on. Prints what it finds; exit 1 where a version does not
resolve or lacks a name. Needs the network, and some 500 MB at a time.
"""

import ast
import functools
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

from adaspec.vllm.compatibility import (
    FUNCTIONS_OF_SERVERS,
    FUNCTIONS_V1,
    FUNCTIONS_V2,
    attributes_in,
    signature_problems,
)

VERSIONS = ("0.32.0", "0.33.0")
CHECKOUT = Path(__file__).resolve().parents[2]
LISTS = {"V1": FUNCTIONS_V1 | FUNCTIONS_OF_SERVERS, "V2": FUNCTIONS_V2}
FETCH = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
FETCH += ["--no-cache-dir"]


def main(versions: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
        (wheel,) = root.glob("*.whl")
        venv.create(root / "venv", with_pip=True)
        found = [
            [resolves(root / "venv/bin/python", wheel, each), has_all_names(each)]
            for each in versions
        ]
    return int(not all(map(all, found)))


def resolves(python: Path, wheel: Path, version: str) -> bool:
    """Whether adaspec and that vLLM resolve together; says so, or why not."""
    command = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += [str(wheel), f"vllm=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    why_not = errors[-1] if errors else done.stderr[-500:]
    said = f"does not resolve: {why_not}" if done.returncode else "resolves"
    print(f"vLLM {version}: {said}", flush=True)
    return done.returncode == 0


def has_all_names(version: str) -> bool:
    """Whether that vLLM's sources have every name that adaspec touches; says which are missing."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*FETCH, "-d", folder, f"vllm=={version}"], check=True)
        (path,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".py")])
        read = functools.partial(names_in, Path(folder))
        problems = {each: list(signature_problems(LISTS[each], read)) for each in LISTS}
    for runner, names in problems.items():
        said = "; ".join(names) or "as adaspec expects"
        print(f"vLLM {version}, model runner {runner}: {said}", flush=True)
    return not any(problems.values())


def names_in(folder: Path, path: str) -> Collection[str]:
    """The parameters of a function, as `module:class.name`; the attributes of a `module:class`."""
    module, _, names = path.partition(":")
    if "." not in names and (classes := list(lineage(folder, module, names))):
        methods = [name for each in classes for member in each.body for name in names_of(member)]
        return attributes_in("\n".join(map(ast.unparse, classes))) | set(methods)
    owner, _, name = names.rpartition(".")
    classes = list(lineage(folder, module, owner)) if owner else []
    members = [member for each in classes for member in each.body]
    if name == "__init__" and not any(name in names_of(member) for member in members):
        fields = [member for member in members if isinstance(member, ast.AnnAssign)]
        return frozenset(name for field in fields for name in names_of(field))
    if owner:
        found = next((member for member in members if name in names_of(member)), None)
    else:
        _, found = defined(folder, module, name)
    if found is None:
        raise AttributeError(path)
    if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        return frozenset()
    taken = found.args
    return frozenset(each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs))


def lineage(folder: Path, module: str, name: str) -> Iterator[ast.ClassDef]:
    """A class and those that it inherits from, as far as their source is there."""
    module, found = defined(folder, module, name)
    if isinstance(found, ast.ClassDef):
        yield found
        for base in found.bases:
            if isinstance(base, ast.Name):
                try:
                    yield from lineage(folder, module, base.id)
                except (ImportError, AttributeError):
                    continue


def defined(folder: Path, module: str, name: str) -> tuple[str, ast.stmt]:
    """The statement that defines a name, and its module: another where this one imports it."""
    place = folder.joinpath(*module.split("."))
    files = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    if not files:
        raise ImportError(module)
    statement = statements(files[0]).get(name)
    if statement is None:
        raise AttributeError(f"{module}.{name}")
    if not isinstance(statement, ast.ImportFrom):
        return module, statement
    original = next(each.name for each in statement.names if name == (each.asname or each.name))
    above = module.split(".")[: -(statement.level - (files[0].name == "__init__.py")) or None]
    origin = [*(above if statement.level else []), *filter(None, [statement.module])]
    return defined(folder, ".".join(origin), original)


@functools.cache
def statements(file: Path) -> dict[str, ast.stmt]:
    """What a module defines or imports, be it under an `if` or `try`, by the names it gives."""
    top = [*ast.parse(file.read_text("utf-8")).body]
    for each in top:  # grows
        if isinstance(each, ast.If | ast.Try):
            top += [*each.body, *each.orelse]
    return {name: each for each in top for name in names_of(each)}


def names_of(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ImportFrom):
        return [each.asname or each.name for each in statement.names]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [each.id for each in targets if isinstance(each, ast.Name)]
    return [name] if isinstance(name := getattr(statement, "name", None), str) else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))

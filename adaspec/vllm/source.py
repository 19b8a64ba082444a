"""Reads from an installed package's source what a function takes, without importing the package."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

Place = tuple[str, ast.stmt]
"""A statement, and the module that it stands in."""


def parameters_in_source(path: str) -> frozenset[str]:
    """The parameters of a function, as `module:class.name`; of a class that has fields, these.

    An `ImportError` or an `AttributeError` where there is none, as importing it would raise.
    """
    module, _, names = path.partition(":")
    owner, _, name = names.rpartition(".")
    found = _member(_named(module, owner), name) if owner else _named(module, name)
    if found is None and name == "__init__" and owner:
        return frozenset(_fields(_named(module, owner)))
    if found is None:
        raise AttributeError(path)
    _, statement = found
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return frozenset()
    taken = statement.args
    return frozenset(each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs))


def _file(module: str) -> Path:
    package, *names = module.split(".")
    spec = importlib.util.find_spec(package)  # of a whole package: this imports nothing
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"no package '{package}'")
    place = Path(spec.submodule_search_locations[0], *names)
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    raise ImportError(f"no module '{module}'")


@functools.lru_cache(maxsize=64)
def _statements(file: Path) -> dict[str, ast.stmt]:
    """The classes, functions, values and imports of a module by the names that it gives them."""
    return {
        name: statement
        for statement in _flat(ast.parse(file.read_text("utf-8")).body)
        for name in _names_of(statement)
    }


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, and those under an `if` or `try`."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _flat([*statement.body, *statement.orelse])


def _names_of(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.ImportFrom):
        return [each.asname or each.name for each in statement.names]
    if isinstance(statement, ast.AnnAssign):
        return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    if isinstance(statement, ast.Assign):
        return [each.id for each in statement.targets if isinstance(each, ast.Name)]
    return []


def _named(module: str, name: str) -> Place:
    """The statement that defines a name, in another module where that one imports it."""
    file = _file(module)
    statement = _statements(file).get(name)
    if statement is None:
        raise AttributeError(f"{module}.{name}")
    if isinstance(statement, ast.ImportFrom):
        original = next(each.name for each in statement.names if name == (each.asname or each.name))
        above: list[str] = []
        if statement.level:
            steps = statement.level - (file.name == "__init__.py")
            above = module.split(".")[: -steps or None]
        return _named(".".join([*above, statement.module or ""]).strip("."), original)
    return module, statement


def _member(place: Place, name: str) -> Place | None:
    """The statement that defines a name of a class, or of one that it inherits from."""
    module, statement = place
    for each in getattr(statement, "body", ()):
        if name in _names_of(each):
            return module, each
    for base in _bases(place):
        found = _member(base, name)
        if found is not None:
            return found
    return None


def _fields(place: Place) -> set[str]:
    """The annotated names of a class and of those that it inherits from: a dataclass's fields."""
    body = getattr(place[1], "body", ())
    fields = {name for each in body if isinstance(each, ast.AnnAssign) for name in _names_of(each)}
    return fields.union(*map(_fields, _bases(place)))


def _bases(place: Place) -> Iterator[Place]:
    """The classes that a class inherits from, as far as their source is here."""
    module, statement = place
    for base in getattr(statement, "bases", ()):
        if isinstance(base, ast.Name):
            try:
                yield _named(module, base.id)
            except (ImportError, AttributeError):
                continue

"""What vLLM loads in each of its processes: two patches, put in place as their modules appear.

Nothing but the standard library and a few names is imported here, and nothing more of adaspec
until somebody asks for `{"method": "adaspec"}`: a vLLM that does not is left as it is, even if
adaspec is broken.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from adaspec.vllm.touchpoints import ATTRIBUTE, ENGINE_ARGS, METHOD, RUNNER, hand_back_runner

_MARK = "__adaspec__"

log = logging.getLogger("vllm.adaspec")


def register() -> None:
    """The `vllm.general_plugins` entry point: never raises, may be called again."""
    try:
        when_imported(ENGINE_ARGS, harmless(patch_engine_args))
        when_imported(RUNNER, harmless(patch_runner))
    except Exception as error:
        _say_broken(error)


def harmless(patch: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """The patch, whose failure is said and not raised: it may run while vLLM imports a module."""

    @functools.wraps(patch)
    def patch_or_say_why(module: ModuleType) -> None:
        try:
            patch(module)
        except Exception as error:
            _say_broken(error)

    return patch_or_say_why


def _say_broken(error: Exception) -> None:
    log.warning(
        "adaspec's plug-in did not load, so vLLM does not know method '%s' (%r): install adaspec "
        "again, or an adaspec that knows this vLLM; 'adaspec doctor' says more",
        METHOD,
        error,
    )


def when_imported(name: str, patch: Callable[[ModuleType], None]) -> None:
    """Apply `patch` to a module: now if it is imported already, else as soon as it is.

    The API server must not import a model runner, nor a worker the arguments' parser, for our sake.
    """
    if name in sys.modules:
        patch(sys.modules[name])
    elif not any(isinstance(each, _Watcher) and each.name == name for each in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(name, patch))


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds one module as others would, and patches it once it has run."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self.name, self._patch = name, patch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with our patch behind its loader."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            try:
                _run_then_patch(spec.loader, self._patch)
            except Exception as error:  # a loader that cannot be written to
                _say_broken(error)
        return spec


def _run_then_patch(loader: Any, patch: Callable[[ModuleType], None]) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        patch(module)

    loader.exec_module = exec_module


def patch_engine_args(module: ModuleType) -> None:
    """Let `EngineArgs.create_speculative_config` understand `{"method": "adaspec"}`."""
    _wrap(module, "EngineArgs", "create_speculative_config", _speculative_config)


def patch_runner(module: ModuleType) -> None:
    """Let a `GPUModelRunner` whose config carries our options draft by our decisions."""
    _wrap(module, "GPUModelRunner", "__init__", _runner_init)


def _wrap(module: ModuleType, owner: str, name: str, replacement: Callable[..., Any]) -> None:
    """Put `replacement(original, ...)` in a method's place, once."""
    holder = getattr(module, owner, None)
    original = getattr(holder, name, None)
    if holder is None or original is None or getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(patched, _MARK, True)
    setattr(holder, name, patched)


def _speculative_config(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    config = getattr(args, "speculative_config", None)
    asked = isinstance(config, dict) and config.get("method") == METHOD
    if not asked and getattr(args, "spec_method", None) != METHOD:
        hand_back_runner()
        return original(args, *rest, **named)
    try:
        from adaspec.vllm.compatibility import speculative_config
    except Exception as error:
        raise _broken(error) from error
    return speculative_config(original, args, *rest, **named)


def _runner_init(original: Callable[..., None], runner: Any, *args: Any, **named: Any) -> None:
    original(runner, *args, **named)
    options = getattr(getattr(runner, "speculative_config", None), ATTRIBUTE, None)
    if options is not None:
        try:
            from adaspec.vllm.attachment import attach
        except Exception as error:
            raise _broken(error) from error
        attach(runner, options)


def _broken(error: Exception) -> ImportError:
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return ImportError(
        f"method '{METHOD}' was asked for, but adaspec cannot be imported whole ({said}): install "
        "it again, or serve without it; 'adaspec doctor' says more"
    )

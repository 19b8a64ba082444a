"""The plug-in that vLLM loads in each process: patches, applied when modules are imported.

This module imports only the standard library and `patching`. It imports the rest of adaspec when an
operator asks for `{"method": "adaspec"}`, so that any other vLLM works even if adaspec is broken.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from adaspec.vllm.patching import (
    ENGINE_ARGS,
    EXECUTOR,
    METHOD,
    OPTIONS_ATTRIBUTE,
    RUNNER_V2,
    SAMPLING_PARAMS,
    SERVE_COMMAND,
    in_one_line,
    release_runner,
    wrap,
)

log = logging.getLogger("vllm.adaspec")


@contextmanager
def _failures_logged() -> Iterator[None]:
    """Log what fails instead of raising: a patch may run while vLLM imports a module."""
    try:
        yield
    except Exception as error:
        log.warning(
            "adaspec's plug-in did not load, so vLLM does not know method '%s' (%r): install "
            "adaspec again, or an adaspec that knows this vLLM; 'adaspec doctor' says more",
            METHOD,
            error,
        )


@_failures_logged()
def register() -> None:
    """The `vllm.general_plugins` entry point; it never raises and may be called twice."""
    for name in PATCHES:
        when_imported(name, functools.partial(patch, name))


def when_imported(name: str, patch: Callable[[ModuleType], None]) -> None:
    """Apply `patch` to a module now if it is already imported, else as soon as it is.

    The module is not imported for this, since that would load a model runner into the API server.
    """
    patch = _failures_logged()(patch)
    if name in sys.modules:
        patch(sys.modules[name])
    elif not any(isinstance(finder, _Watcher) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(name, patch))


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds one module by way of the other finders, and patches it after it has run."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self.name, self._patch = name, patch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec, with a loader that patches it."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            original = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                original(module)
                self._patch(module)

            with _failures_logged():  # the loader's attributes may be read-only
                loader.exec_module = exec_module
        return spec


def patch(name: str, module: ModuleType) -> None:
    """Wrap what `PATCHES` has for a module of that name, as far as it is there."""
    for path, replacement in PATCHES[name].items():
        owner, _, function = path.rpartition(".")
        wrap(getattr(module, owner, None) if owner else module, function, replacement)


def _names_adaspec(args: Any) -> bool:
    """Whether an operator asks for method adaspec."""
    config = getattr(args, "speculative_config", None)
    return isinstance(config, dict) and config.get("method") == METHOD


def _speculative_config(original: Callable[..., Any], args: Any, *rest: Any, **kwargs: Any) -> Any:
    if not _names_adaspec(args):
        release_runner()
        return original(args, *rest, **kwargs)
    return _configuration().speculative_config(original, args, *rest, **kwargs)


def _verify(original: Callable[..., None], params: Any, *configs: Any, **named: Any) -> None:
    """`SamplingParams.verify`, which also refuses what a request asks of adaspec in vain."""
    original(params, *configs, **named)
    is_served = any(hasattr(each, OPTIONS_ATTRIBUTE) for each in (*configs, *named.values()))
    if params.extra_args and is_served:
        from adaspec.errors import ServingError
        from adaspec.vllm.session.requests import is_off

        try:
            is_off(params.extra_args)
        except ServingError as error:
            from vllm.exceptions import VLLMValidationError

            # vLLM's API server answers it with status 400.
            raise VLLMValidationError(str(error)) from None


def _trimming_manager(original: Callable[..., Any], **named: Any) -> Any:
    """vLLM's manager of adaptive verification, or None where drafts all have one length."""
    speculative = getattr(named.get("vllm_config"), "speculative_config", None)
    try:
        return original(**named)
    except ValueError as error:
        if not hasattr(speculative, OPTIONS_ATTRIBUTE):
            raise
        log.info("adaspec: drafts are not trimmed on the device: %s", in_one_line(error))
        from adaspec.vllm.session.decider import lengths_up_to
        from adaspec.vllm.v2.graphs import capture_lengths

        config = named["vllm_config"]
        capture_lengths(config, lengths_up_to(config.num_speculative_tokens))
        return None


def _engine_config(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    if not _names_adaspec(args):
        return original(args, *rest, **named)
    configuration = _configuration()
    configuration.asked_for(args)  # before vLLM looks for the model, on the hub if need be
    return configuration.create_engine_config(original, args, *rest, **named)


def _serve(original: Callable[..., None], args: Any) -> None:
    """`vllm serve`, which ends in one line and with status 2 where adaspec refuses to start."""
    if not _names_adaspec(args):
        return original(args)
    try:
        configuration = _configuration()
    except ImportError as error:
        sys.exit(f"adaspec: error: {error}")
    from adaspec.errors import AdaspecError

    try:
        configuration.asked_for(args)  # before vLLM has logged a line
        return original(args)
    except AdaspecError as error:
        print(f"adaspec: error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


def _warm_up(original: Callable[..., None], executor: Any, *rest: Any) -> None:
    """An executor's `compile_or_warm_up_model`, behind which costs may be measured."""
    original(executor, *rest)
    options = getattr(executor.vllm_config.speculative_config, OPTIONS_ATTRIBUTE, None)
    if options is not None and options.measures:
        from adaspec.vllm.measuring import measure_at_start

        measure_at_start(executor, options)


def _configuration() -> Any:
    """`adaspec.vllm.configuration`; an `ImportError` says what to do if it is broken."""
    try:
        return importlib.import_module("adaspec.vllm.configuration")
    except Exception as error:
        raise ImportError(
            f"method '{METHOD}' was asked for, but adaspec cannot be imported whole "
            f"({in_one_line(error)}): install it again, or serve without it; 'adaspec doctor' says "
            "more"
        ) from error


PATCHES: dict[str, dict[str, Callable[..., Any]]] = {
    ENGINE_ARGS: {
        "EngineArgs.create_speculative_config": _speculative_config,
        "EngineArgs.create_engine_config": _engine_config,
    },
    SERVE_COMMAND: {"ServeSubcommand.cmd": _serve},
    SAMPLING_PARAMS: {"SamplingParams.verify": _verify},
    EXECUTOR: {"Executor.compile_or_warm_up_model": _warm_up},
    RUNNER_V2: {"maybe_create_adaptive_verification_manager": _trimming_manager},
}
"""By module of vLLM, what is wrapped by what."""

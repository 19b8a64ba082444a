"""Our speculative config, told to vLLM as one that it knows."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adaspec.errors import ServingError, TraceError
from adaspec.trace.reader import TraceReader
from adaspec.vllm.choice import Target, choose, target_of
from adaspec.vllm.machine import hardware
from adaspec.vllm.options import Options
from adaspec.vllm.scrambling import secret_in
from adaspec.vllm.weights import weight_names

log = logging.getLogger("vllm.adaspec")

NGRAM_DRAFTER = "adaspec.vllm.ngram.NgramDrafter"

UNPADDED = ("eagle", "eagle3", "mtp")
"""Heads that can draft after bookkeeping, from tokens that are on the host already."""


def translated(options: Options, target_config: Any) -> tuple[dict[str, Any], Options]:
    """vLLM's speculative config for these options, and the options with nothing left open."""
    target = target_of(target_config, options.vocabulary_hash)
    method = None
    if options.model is not None:
        revision = options.passed.get("revision")
        method = head_method(options.model, target, revision, options.draft_method)
    choice = choose(options, target, method is not None)
    if options.trace_dir is not None:
        _check_writable(Path(options.trace_dir))
        if options.mode == "record":
            _check_recording(Path(options.trace_dir))
    if options.scramble_key is not None:
        secret_in(Path(options.scramble_key))  # workers would say it where nobody looks first
    settled = dataclasses.replace(
        options,
        policy=choice.spec,
        policy_digest=choice.digest,
        hardware=hardware(),
        cost=choice.cost_name,
        num_speculative_tokens=choice.cap,
    )
    config: dict[str, Any] = {**options.passed, "num_speculative_tokens": choice.cap}
    if method is None:
        return {**config, "method": "custom_class", "model": NGRAM_DRAFTER}, settled
    config |= {"method": method, "model": options.model}
    if method in UNPADDED:
        config["disable_padded_drafter_batch"] = True
    return config, settled


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        if isinstance(error, FileExistsError):
            nowhere = folder.is_symlink() and not folder.is_file()
            why = "a link that leads nowhere" if nowhere else "it is a file"
        raise ServingError(
            f"trace_dir '{folder}' cannot be written to ({why}): give a folder that the server may "
            "write to"
        ) from error


def _check_recording(folder: Path) -> None:
    """Refuse to record into a folder that holds anything but a dense trace."""
    if any(folder.iterdir()) and not any(folder.glob("replica-*")):
        try:
            reader = TraceReader(folder)
        except TraceError as error:
            raise ServingError(
                f"trace_dir '{folder}' holds something, and no trace that mode 'record' could go "
                f"on with: give an empty folder, or none yet ({error})"
            ) from error
        if reader.manifest.kind != "dense":
            raise ServingError(
                f"trace_dir '{folder}' holds a {reader.manifest.kind} trace, mode 'record' writes "
                "a dense one: give another folder"
            )


def head_method(
    model: str, target: Target, revision: str | None = None, asked: str | None = None
) -> str:
    """vLLM's method for a drafter, one of `DRAFT_METHODS`: as asked, or else recognised.

    A `ServingError` says what does not fit the target.
    """
    config = _config_of(model, revision)
    try:
        _check_kind(model, config)
        method = asked or _recognised(model, config, target, revision)
        _check_fit(model, method, config, target)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ServingError):
            raise
        raise ServingError(
            f"drafter '{model}': its config.json is of a form that no drafter's has "
            f"({_line(error)}): give an EAGLE, EAGLE-3 or MTP head or a draft model"
        ) from error
    return method


def _config_of(model: str, revision: str | None) -> dict[str, Any]:
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(model, revision=revision)
    except Exception as error:
        raise ServingError(
            f"drafter '{model}': its config.json cannot be read ({_line(error)}): give a folder "
            "or hub id of an EAGLE, EAGLE-3 or MTP head or a draft model"
        ) from error
    if not config:
        raise ServingError(f"drafter '{model}': no config.json found there")
    return dict(config)


def _declared(config: Mapping[str, Any]) -> tuple[str, str]:
    """What a config calls its model, and its architectures."""
    declared = str(config.get("speculators_model_type") or config.get("model_type") or "").lower()
    return declared, " ".join(config.get("architectures") or []).lower()


def _check_kind(model: str, config: Mapping[str, Any]) -> None:
    declared, architectures = _declared(config)
    if declared in _OTHER_KINDS or any(kind in architectures for kind in _OTHER_KINDS):
        raise ServingError(
            f"drafter '{model}' is of a kind that adaspec does not drive "
            f"({declared or architectures}): use an EAGLE, EAGLE-3 or MTP head or a draft model"
        )


def _recognised(model: str, config: Mapping[str, Any], target: Target, revision: str | None) -> str:
    declared, architectures = _declared(config)
    for kind in ("eagle3", "eagle"):  # the longer word first: the other is a part of it
        if kind in declared or kind in architectures:
            return kind
    if declared.endswith("_mtp") or declared == "mtp" or "mtp" in architectures:
        return "mtp"
    if target.is_called(model) and _predicts(config):
        return "mtp"
    # Heads of the first days have the config of a Llama; their weights are another's.
    names = weight_names(model, revision)
    if names is not None:
        return _method_by_weights(names)
    name = model.lower()  # which is what vLLM goes by
    if "eagle3" in name or "eagle-3" in name:
        return "eagle3"
    if "eagle" in name:
        return "eagle"
    log.warning(
        "adaspec: drafter '%s' is taken for a draft model: its config says nothing else, and what "
        'its weights are called cannot be read here: if it is a head, say so by "draft_method"',
        model,
    )
    return "draft_model"


def _method_by_weights(names: Iterable[str]) -> str:
    """vLLM's method for a drafter whose weights are called so."""
    # Heads read hidden states through a layer `fc`; EAGLE-3 ones norm them in a layer of their own.
    own = [name.removeprefix("model.") for name in names]
    if not any(name.startswith("fc.") for name in own):
        return "draft_model"
    third = any(name == "d2t" or "midlayer." in name or "hidden_norm." in name for name in own)
    return "eagle3" if third else "eagle"


_OTHER_KINDS = ("medusa", "mlp_speculator", "mlpspeculator", "dflash", "dspark")


def _predicts(config: Mapping[str, Any]) -> bool:
    text = config.get("text_config") or {}
    return any(
        int(each.get(key) or 0) > 0
        for each in (config, text)
        for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    )


def _check_fit(model: str, method: str, config: Mapping[str, Any], target: Target) -> None:
    text = config.get("transformer_layer_config") or config.get("text_config") or config
    vocabulary = text.get("vocab_size")
    if vocabulary is not None and vocabulary != target.vocabulary:
        raise ServingError(
            f"drafter '{model}' does not fit '{target.name}': its vocabulary has {vocabulary} "
            f"tokens, the target's {target.vocabulary}: give a head made for this target"
        )
    if method not in ("eagle", "eagle3"):
        return
    width = config.get("target_hidden_size") or text.get("hidden_size")
    if width is not None and target.width is not None and width != target.width:
        raise ServingError(
            f"drafter '{model}' does not fit '{target.name}': it reads hidden states of {width}, "
            f"the target's are of {target.width}: give a head made for this target"
        )


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"

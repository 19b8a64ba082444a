"""Recognises a neural drafter's vLLM method from its config and the names of its weights."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adaspec.errors import ServingError
from adaspec.vllm.choice import Target
from adaspec.vllm.patching import in_one_line

log = logging.getLogger("vllm.adaspec")

_OTHER_KINDS = ("medusa", "mlp_speculator", "mlpspeculator", "dflash", "dspark")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MAX_HEADER_BYTES = 100_000_000
"""The longest header that a safetensors file may have."""


def drafter_method(
    model: str, target: Target, revision: str | None = None, method: str | None = None
) -> str:
    """vLLM's method for a drafter, one of `DRAFT_METHODS`: `method` if given, else recognised.

    Raises a `ServingError` if the drafter does not fit the target.
    """
    config = _read_config(model, revision)
    try:
        declared, architectures = _declared(config)
        if declared in _OTHER_KINDS or any(kind in architectures for kind in _OTHER_KINDS):
            raise ServingError(
                f"drafter '{model}' is of a kind that adaspec does not drive "
                f"({declared or architectures}): use an EAGLE, EAGLE-3 or MTP head or a draft model"
            )
        if method is None:
            method = _recognised(model, config, target, revision)
        _check_fit(model, method, config, target)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ServingError):
            raise
        raise ServingError(
            f"drafter '{model}': its config.json is of a form that no drafter's has "
            f"({in_one_line(error, 300)}): give an EAGLE, EAGLE-3 or MTP head or a draft model"
        ) from error
    return method


def _read_config(model: str, revision: str | None) -> dict[str, Any]:
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(model, revision=revision)
    except Exception as error:
        raise ServingError(
            f"drafter '{model}': its config.json cannot be read ({in_one_line(error, 300)}): give "
            "a folder or hub id of an EAGLE, EAGLE-3 or MTP head or a draft model"
        ) from error
    if not config:
        raise ServingError(f"drafter '{model}': no config.json found there")
    return dict(config)


def _declared(config: Mapping[str, Any]) -> tuple[str, str]:
    """The model's type and architectures according to its config, in lower case."""
    declared = str(config.get("speculators_model_type") or config.get("model_type") or "").lower()
    return declared, " ".join(config.get("architectures") or []).lower()


def _recognised(model: str, config: Mapping[str, Any], target: Target, revision: str | None) -> str:
    declared, architectures = _declared(config)
    for head in ("eagle3", "eagle"):  # the longer word first, because it contains the other
        if head in declared or head in architectures:
            return head
    if declared.endswith("_mtp") or declared == "mtp" or "mtp" in architectures:
        return "mtp"
    if target.is_called(model) and _predicts(config):
        return "mtp"
    # Early heads have the config of a Llama; only their weights tell them apart.
    names = weight_names(model, revision)
    if names is not None:
        return _method_by_weights(names)
    name = model.lower()  # vLLM goes by the name, too
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
    # Heads read hidden states through a layer `fc`; EAGLE-3 heads norm them in another layer.
    layers = [name.removeprefix("model.") for name in names]
    if not any(layer.startswith("fc.") for layer in layers):
        return "draft_model"
    if any(
        layer_name == "d2t" or "midlayer." in layer_name or "hidden_norm." in layer_name
        for layer_name in layers
    ):
        return "eagle3"
    return "eagle"


def _predicts(config: Mapping[str, Any]) -> bool:
    text_config = config.get("text_config") or {}
    return any(
        int(section.get(key) or 0) > 0
        for section in (config, text_config)
        for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    )


def _check_fit(model: str, method: str, config: Mapping[str, Any], target: Target) -> None:
    text_config = config.get("transformer_layer_config") or config.get("text_config") or config
    vocabulary = text_config.get("vocab_size")
    if vocabulary is not None and vocabulary != target.vocabulary:
        raise ServingError(
            f"drafter '{model}' does not fit '{target.name}': its vocabulary has {vocabulary} "
            f"tokens, the target's {target.vocabulary}: give a head made for this target"
        )
    if method not in ("eagle", "eagle3"):
        return
    width = config.get("target_hidden_size") or text_config.get("hidden_size")
    if width is not None and target.width is not None and width != target.width:
        raise ServingError(
            f"drafter '{model}' does not fit '{target.name}': it reads hidden states of {width}, "
            f"the target's are of {target.width}: give a head made for this target"
        )


def weight_names(model: str, revision: str | None = None) -> frozenset[str] | None:
    """The names of all weights; None if they are not on this disk or only in pickles."""
    folder = _folder(model, revision)
    if folder is None:
        return None
    try:
        for name in _INDEXES:
            if (folder / name).is_file():
                return frozenset(json.loads((folder / name).read_text("utf-8"))["weight_map"])
        files = sorted(folder.glob("*.safetensors"))
        return frozenset(name for file in files for name in _names_in(file)) if files else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # vLLM will report what is wrong with weights that cannot be read


def _folder(model: str, revision: str | None) -> Path | None:
    """The folder of a model, which may be a folder or a hub id in the hub's cache."""
    if Path(model).is_dir():
        return Path(model)
    try:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(model, "config.json", revision=revision)
    except Exception:  # an invalid id, or another version of the hub's client
        return None
    return Path(config).parent if isinstance(config, str) else None


def _names_in(file: Path) -> set[str]:
    """The names in a safetensors file: its first eight bytes are the length of a JSON header."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{file}: not a safetensors file")
        return set(json.loads(content.read(length))) - {"__metadata__"}

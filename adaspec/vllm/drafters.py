"""Recognises a neural drafter's vLLM method from its config and the names of its weights."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaspec.errors import ServingError
from adaspec.vllm.choice import Target
from adaspec.vllm.patching import in_one_line

log = logging.getLogger("vllm.adaspec")

_OTHER_KINDS = ("medusa", "mlp_speculator", "mlpspeculator", "dflash", "dspark")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_ADVICE = "give an EAGLE, EAGLE-3 or MTP head or a draft model"


def check_there(what: str, model: str) -> None:
    """Refuse a folder that does not exist, since vLLM would look for it on the hub for minutes.

    `org/name` may be a folder or a hub id: it is a folder where there is a folder `org`, unless the
    hub's cache has a model of that id.
    """
    if Path(model).exists() or "://" in model or model.endswith(".gguf"):
        return
    may_be_id = model.count("/") < 2 and not model.startswith((".", "/", "~"))
    is_id = may_be_id and ("/" not in model or not Path(model).parent.is_dir())
    if not is_id and not (may_be_id and _folder(model, None)):
        raise ServingError(
            f"{what} '{model}': there is no such folder (seen from {Path.cwd()}): give one that "
            "exists, or a hub id"
        )


def drafter_method(
    model: str, target: Target, revision: str | None = None, method: str | None = None
) -> str:
    """vLLM's method for a drafter, one of `DRAFT_METHODS`: `method` if given, else recognised.

    Raises a `ServingError` if the drafter does not fit the target.
    """
    config = _read_config(model, revision)
    try:
        kind = config.get("speculators_model_type") or config.get("model_type") or ""
        kinds = " ".join([kind, *(config.get("architectures") or [])]).lower()
        if any(other in kinds for other in _OTHER_KINDS):
            raise ServingError(
                f"drafter '{model}' is of a kind that adaspec does not drive ({kinds}): {_ADVICE}"
            )
        if method is None:
            method = _recognised(model, kinds, config, target, revision)
        _check_fit(model, method, config, target)
    except ServingError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise ServingError(
            f"drafter '{model}': its config.json is of a form that no drafter's has "
            f"({in_one_line(error, 300)}): {_ADVICE}"
        ) from error
    return method


def _read_config(model: str, revision: str | None) -> dict[str, Any]:
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(model, revision=revision)
    except Exception as error:
        raise ServingError(
            f"drafter '{model}': its config.json cannot be read ({in_one_line(error, 300)}): "
            f"{_ADVICE}, by its folder or hub id"
        ) from error
    if not config:
        raise ServingError(f"drafter '{model}': no config.json found there")
    return dict(config)


def _recognised(
    model: str, kinds: str, config: Mapping[str, Any], target: Target, revision: str | None
) -> str:
    if "eagle" in kinds:
        return _eagle_in(kinds)
    if "mtp" in kinds or (target.is_called(model) and _predicts(config)):
        return "mtp"
    # Early heads have the config of a Llama; only their weights tell them apart. Heads read hidden
    # states through a layer `fc`; EAGLE-3 heads norm them in another layer.
    names = weight_names(model, revision)
    if names is not None:
        layers = [name.removeprefix("model.") for name in names]
        if not any(layer.startswith("fc.") for layer in layers):
            return "draft_model"
        if any(x == "d2t" or "midlayer." in x or "hidden_norm." in x for x in layers):
            return "eagle3"
        return "eagle"
    if "eagle" in model.lower():  # vLLM goes by the name, too
        return _eagle_in(model.lower())
    log.warning(
        "adaspec: drafter '%s' is taken for a draft model: its config says nothing else, and what "
        'its weights are called cannot be read here: if it is a head, say so by "draft_method"',
        model,
    )
    return "draft_model"


def _eagle_in(name: str) -> str:
    return "eagle3" if "eagle3" in name or "eagle-3" in name else "eagle"


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
    from safetensors import safe_open

    folder = _folder(model, revision)
    if folder is None:
        return None
    try:
        for name in _INDEXES:
            if (folder / name).is_file():
                return frozenset(json.loads((folder / name).read_text("utf-8"))["weight_map"])
        names = set[str]()
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="numpy") as weights:
                names.update(weights.keys())
        return frozenset(names) or None
    except Exception:
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

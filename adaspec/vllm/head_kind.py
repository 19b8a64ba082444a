"""Recognises a neural drafter's vLLM method from its config and its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaspec.errors import ServingError
from adaspec.vllm.choice import Target
from adaspec.vllm.options import IN_ONE_PASS
from adaspec.vllm.patching import in_one_line

_OTHER_KINDS = ("medusa", "mlp_speculator", "mlpspeculator")
_ADVICE = "give an EAGLE, EAGLE-3, MTP, DFlash or DSpark head or a draft model"
_KINDS_IN_ONE_PASS = {
    "dflash": "dflash",  # DFlash 2 too, which is of the same method
    "lilicorr": "dflash",
    "museglimmerassistant": "dflash",
    "dspark": "dspark",
}
"""What a config calls a head that drafts all its tokens in one pass -> its method."""


def check_there(what: str, model: str) -> None:
    """Refuse a folder that does not exist, since vLLM would look for it on the hub for minutes.

    `org/name` may be a folder or a hub id: it is a folder where there is a folder `org`.
    """
    if Path(model).exists() or "://" in model or model.endswith(".gguf"):
        return
    may_be_id = model.count("/") < 2 and not model.startswith((".", "/", "~"))
    if not may_be_id or ("/" in model and Path(model).parent.is_dir()):
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
            method = _recognised(model, kinds, config, target)
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


def tokens_of_pass(model: str, revision: str | None, method: str) -> int | None:
    """How many tokens a head was trained to draft in one pass, as far as its config says."""
    config = _read_config(model, revision)
    block = config.get("block_size") or config.get("dspark_block_size")
    # At the first place of a block, which holds the last known token, not every head drafts.
    drafts = method == "dspark" and "speculators_model_type" not in config
    return None if block is None else int(block) - (not config.get("sample_from_anchor", drafts))


def _recognised(model: str, kinds: str, config: Mapping[str, Any], target: Target) -> str:
    for word, method in _KINDS_IN_ONE_PASS.items():
        if word in kinds:
            return method
    if "eagle" in kinds:
        return _eagle_in(kinds)
    if "mtp" in kinds or (target.is_called(model) and _predicts(config)):
        return "mtp"
    # Early heads have the config of a Llama, and vLLM itself goes by the name.
    name = model.lower()
    if "eagle" in name:
        return _eagle_in(name)
    return next((method for method in IN_ONE_PASS if method in name), "draft_model")


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
    if method not in ("eagle", "eagle3", *IN_ONE_PASS):
        return
    width = config.get("target_hidden_size") or text_config.get("hidden_size")
    if width is not None and target.width is not None and width != target.width:
        raise ServingError(
            f"drafter '{model}' does not fit '{target.name}': it reads hidden states of {width}, "
            f"the target's are of {target.width}: give a head made for this target"
        )

"""The memory that a model and its drafter take: weights, and keys and values per token."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspec.documents import TRUTH, Rule, Rules, check_values, one_of, or_null, read_json, whole
from adaspec.errors import CostError, nearest, shown
from adaspec.files import AnyPath

EAGLE, EAGLE3, DRAFT_MODEL = METHODS = ("eagle", "eagle3", "draft_model")
"""The neural drafters whose memory is known, by vLLM's names."""
EAGLE3_VOCABULARY = 32_000
"""The tokens that the published EAGLE-3 heads can draft."""
_EAGLE3_STATES = 3
"""The layers of the target whose states an EAGLE-3 head reads."""
_VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_MAX_CONFIG_BYTES = 1 << 20
_ADVICE = "give a model's folder or its config.json"

_SIZE = whole(1, 10_000_000)
_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
_RULES: Rules = {
    # Their layers are all alike: grouped attention and one gated MLP.
    "model_type": one_of(("llama", "mistral", "phi3", "qwen2", "qwen3")),
    "quantization_config": Rule(lambda value: value is None, "null: name the unquantized model"),
    **dict.fromkeys(_SIZES, _SIZE),
    "draft_vocab_size": or_null(_SIZE),
    "tie_word_embeddings": TRUTH,
    "dtype": one_of(tuple(_VALUE_BYTES)),
    "architectures": Rule(lambda value: isinstance(value, list | tuple), "a list"),
}


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a model's memory follows from, by the keys of its config.json.

    Biases and the norms of queries and keys are left out: they are less than 0.01% of a model.
    """

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool = False
    dtype: str = "bfloat16"
    draft_vocab_size: int | None = None
    """How many tokens the LM head of an EAGLE-3 head knows, if not all."""
    architectures: tuple[str, ...] = ()
    model_type: str = "llama"
    quantization_config: None = None

    @property
    def value_bytes(self) -> int:
        """The bytes of one weight, and of one number in the KV cache."""
        return _VALUE_BYTES[self.dtype]

    @property
    def layer_values(self) -> int:
        """The weights of one layer: attention, gated MLP and two norms."""
        heads = self.num_attention_heads + self.num_key_value_heads
        return self.hidden_size * (2 * heads * self.head_dim + 3 * self.intermediate_size + 2)

    @property
    def weights_bytes(self) -> int:
        """The weights of the whole model: layers, embedding, LM head and a norm."""
        outside = (1 if self.tie_word_embeddings else 2) * self.vocab_size + 1
        values = self.num_hidden_layers * self.layer_values + outside * self.hidden_size
        return self.value_bytes * values

    @property
    def kv_bytes_per_token(self) -> int:
        """The keys and values of one token in all layers."""
        values = 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim
        return self.value_bytes * values


MODELS = {
    "llama-3.1-8b": Shapes(32, 4096, 14336, 32, 8, 128, 128_256),
    "llama-3-70b": Shapes(80, 8192, 28672, 64, 8, 128, 128_256),
    "qwen3-8b": Shapes(36, 4096, 12288, 32, 8, 128, 151_936),
    "qwen3-0.6b": Shapes(28, 1024, 3072, 16, 8, 128, 151_936, tie_word_embeddings=True),
}
"""Models that can be named without a file."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a target takes together with a drafter."""

    drafter: str
    """`none`, which is also what n-gram drafting takes, or one of `METHODS`."""
    weights_bytes: int
    kv_bytes_per_token: int


def memory(target: Shapes, drafters: Mapping[str, Shapes]) -> list[Memory]:
    """The memory of a target alone and with each drafter, by its method."""
    weights, kv = target.weights_bytes, target.kv_bytes_per_token
    return [Memory("none", weights, kv)] + [
        Memory(
            method,
            weights + drafter_weights_bytes(method, drafter, target),
            kv + drafter.kv_bytes_per_token,
        )
        for method, drafter in drafters.items()
    ]


def drafter_weights_bytes(method: str, drafter: Shapes, target: Shapes) -> int:
    """The weights that a drafter adds to its target, whose embedding an EAGLE head shares.

    An EAGLE head is a matrix that joins a token with the target's last state, and layers, the first
    without its input norm; the LM head is the target's. An EAGLE-3 head joins three states of the
    target, has an LM head and a final norm of its own, and its first layer attends to token and
    state side by side, with a norm for each. The tables that map its vocabulary are left out.
    Raises a `CostError` for a head of another width.
    """
    if method == DRAFT_MODEL:
        return drafter.weights_bytes
    if drafter.hidden_size != target.hidden_size:
        raise CostError(
            f"the head's hidden_size is {drafter.hidden_size} and its target's "
            f"{target.hidden_size}: give the head of this target"
        )
    if method == EAGLE:
        per_hidden = 2 * drafter.hidden_size - 1
    else:
        heads = drafter.num_attention_heads + 2 * drafter.num_key_value_heads
        per_hidden = _EAGLE3_STATES * drafter.hidden_size + heads * drafter.head_dim
        per_hidden += (drafter.draft_vocab_size or drafter.vocab_size) + 2
    values = drafter.num_hidden_layers * drafter.layer_values + per_hidden * drafter.hidden_size
    return drafter.value_bytes * values


def usual_heads(target: Shapes) -> dict[str, Shapes]:
    """EAGLE and EAGLE-3 heads as they are published: one layer as wide as the target's."""
    drafted = min(EAGLE3_VOCABULARY, target.vocab_size)
    head = dataclasses.replace(target, num_hidden_layers=1, draft_vocab_size=drafted)
    return {EAGLE: head, EAGLE3: head}


def drafter_method(drafter: Shapes) -> str | None:
    """Which of `METHODS` a drafter is by its config; None where that does not say."""
    kinds = " ".join(drafter.architectures).lower()
    for method in (EAGLE3, EAGLE):
        if method in kinds:
            return method
    return DRAFT_MODEL if drafter.num_hidden_layers > 1 else None


def load_shapes(name_or_path: AnyPath) -> Shapes:
    """The shapes of the model of this name, or of that in this folder or config.json."""
    text = os.fspath(name_or_path)
    if text in MODELS:
        return MODELS[text]
    path = Path(text)
    file = path / "config.json" if path.is_dir() else path
    try:
        config = read_json(file, CostError, _ADVICE, _MAX_CONFIG_BYTES)
    except (FileNotFoundError, ValueError):  # or a name that no file can have
        raise CostError(
            f"{file}: no such file{nearest(text, MODELS)} ({_ADVICE}, or one of"
            f" {', '.join(MODELS)})"
        ) from None
    if not isinstance(config, Mapping):
        raise CostError(f"{file}: is {shown(config)}, not an object: {_ADVICE}")
    return shapes_from_config(config, str(file))


def shapes_from_config(config: Mapping[str, Any], where: str) -> Shapes:
    """The shapes in a config.json; raises a `CostError` that begins with `where`."""
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    optional = {
        "num_key_value_heads": heads,
        "tie_word_embeddings": False,
        "dtype": config.get("torch_dtype"),
        "architectures": (),
    }
    values = {name: config.get(name, optional.get(name)) for name in _RULES}
    if values["head_dim"] is None and _SIZE.holds(heads) and _SIZE.holds(hidden):
        assert heads and hidden
        values["head_dim"] = hidden // heads
    shapes = Shapes(**values)
    check_values(shapes, _RULES, where, CostError)
    return dataclasses.replace(shapes, architectures=tuple(map(str, shapes.architectures)))

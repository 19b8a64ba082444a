"""EAGLE-3 and EAGLE heads in plain torch, saved in the layout that vLLM loads.

Both are one Llama layer. An anchor n is a position whose state the target has given. At drafting
step k a head sees the token at n + k + 1 and a feature, attends to what step 0 saw at anchors up
to n and to its own steps 1..k at n, and predicts the token at n + k + 2. The feature is the
target's at step 0 and the head's own output after that, as in the engine: training-time test.

EAGLE-3's feature is a projection of three of the target's states; its vocabulary is reduced.
EAGLE's is the target's last state, normalised, and it uses the target's own vocabulary head.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as fn
from safetensors.torch import load_file, save_file
from target import rms_norm, rope_tables, rope_theta, rotate
from torch import Tensor, nn


class HeadError(Exception):
    """A head's folder cannot be used with this target."""


@dataclass(frozen=True)
class Shape:
    """What a head takes over from its target's config."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    theta: float
    vocab: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Shape:
        """The shape of a Llama config."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            hidden,
            heads,
            config["num_key_value_heads"],
            config.get("head_dim") or hidden // heads,
            config["intermediate_size"],
            config["rms_norm_eps"],
            rope_theta(config),
            config["vocab_size"],
        )


@dataclass
class Memory:
    """Keys and values of the steps so far; step 0's span all anchors."""

    keys: list[Tensor]
    values: list[Tensor]


class Linear(nn.Linear):
    """A product without bias, computed in `compute` and given back in float32."""

    compute = torch.float32

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return fn.linear(x.to(self.compute), self.weight.to(self.compute)).float()


class Attention(nn.Module):
    """Grouped attention over step 0's anchors and the own steps since."""

    def __init__(self, shape: Shape, inputs: int) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = Linear(inputs, width)
        self.k_proj = Linear(inputs, kv_width)
        self.v_proj = Linear(inputs, kv_width)
        self.o_proj = Linear(width, shape.hidden)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Attend from step k = len(memory.keys), and remember its keys and values."""
        shape, (batch, length, _) = self.shape, x.shape
        group = shape.heads // shape.kv_heads
        step = len(memory.keys)
        positions = torch.arange(step, length + step, device=x.device)
        cos, sin = rope_tables(positions, shape.head_dim, shape.theta)

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, -1, shape.head_dim).transpose(1, 2)

        q = rotate(split(self.q_proj(x)), cos, sin) * shape.head_dim**-0.5
        memory.keys.append(rotate(split(self.k_proj(x)), cos, sin))
        memory.values.append(split(self.v_proj(x)))
        # One key head serves `group` query heads, laid out next to each other along the queries.
        q = q.reshape(batch, shape.kv_heads, group, length, shape.head_dim)
        flat = q.flatten(2, 3)
        scores = flat @ memory.keys[0].transpose(-1, -2)
        scores = scores.view(batch, shape.kv_heads, group, length, length)
        scores = scores + torch.full((length, length), -1e9, device=x.device).triu(1)
        own = [(q * key[:, :, None]).sum(-1, keepdim=True) for key in memory.keys[1:]]
        weights = torch.cat([scores, *own], dim=-1).softmax(-1)
        out = weights[..., :length].flatten(2, 3) @ memory.values[0]
        out = out.view(q.shape)
        for index, value in enumerate(memory.values[1:]):
            out = out + weights[..., length + index, None] * value[:, :, None]
        out = out.flatten(1, 2).transpose(1, 2).flatten(2)
        return self.o_proj(out)


class Mlp(nn.Module):
    """Llama's gated MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden, shape.intermediate)
        self.up_proj = Linear(shape.hidden, shape.intermediate)
        self.down_proj = Linear(shape.intermediate, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """The gated product."""
        return self.down_proj(fn.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.Module):
    """RMSNorm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise in float32."""
        return rms_norm(x.float(), self.weight, self.eps)


class Layer(nn.Module):
    """A Llama layer; `wide` takes embedding and feature side by side, as EAGLE-3's does."""

    def __init__(self, shape: Shape, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        if wide:
            self.input_layernorm = Norm(shape.hidden, shape.eps)
            self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, shape.hidden * (2 if wide else 1))
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, embedded: Tensor | None, feature: Tensor, memory: Memory) -> Tensor:
        """The residual stream behind the layer."""
        x = feature
        if self.wide:
            assert embedded is not None
            x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(feature)), dim=-1)
        hidden = feature + self.self_attn(x, memory)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Head(nn.Module, ABC):
    """What both heads share; `states` is [B, T, kept layers, H] in the order of `layer_ids`."""

    method = ""

    def __init__(self, shape: Shape, embedding: Tensor, layer_ids: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.layer_ids = shape, layer_ids
        self.register_buffer("embedding", embedding, persistent=False)

    @abstractmethod
    def feature(self, states: Tensor) -> Tensor:
        """What step 0 feeds on."""

    @abstractmethod
    def step(self, tokens: Tensor, feature: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """One drafting step: what the vocabulary head sees, and the next step's feature."""

    @abstractmethod
    def output_weight(self) -> Tensor:
        """The vocabulary head over the draft vocabulary."""


class Eagle3Head(Head):
    """EAGLE-3: states of several layers, a vocabulary head of its own over `draft_ids`."""

    method = "eagle3"

    def __init__(
        self, shape: Shape, embedding: Tensor, layer_ids: tuple[int, ...], draft_ids: Tensor
    ) -> None:
        super().__init__(shape, embedding, layer_ids)
        self.register_buffer("draft_ids", draft_ids.long(), persistent=False)
        self.fc = Linear(shape.hidden * len(layer_ids), shape.hidden)
        self.midlayer = Layer(shape, wide=True)
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = Linear(shape.hidden, len(draft_ids))

    def feature(self, states: Tensor) -> Tensor:
        """The projection of the kept states."""
        return self.fc(states.flatten(2))

    def step(self, tokens: Tensor, feature: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """The normalised output for the vocabulary, the raw one for the next step."""
        hidden = self.midlayer(fn.embedding(tokens, self.embedding), feature, memory)
        return self.norm(hidden), hidden

    def output_weight(self) -> Tensor:
        """Its own vocabulary head."""
        return self.lm_head.weight


class EagleHead(Head):
    """EAGLE: the target's last state and the embedding through one projection; no norms outside."""

    method = "eagle"

    def __init__(
        self,
        shape: Shape,
        embedding: Tensor,
        layer_ids: tuple[int, ...],
        draft_ids: Tensor,
        target_norm: Tensor,
        target_head: Tensor,
    ) -> None:
        super().__init__(shape, embedding, layer_ids)
        if len(layer_ids) != 1:
            raise HeadError(f"an EAGLE head feeds on the last state alone, not on {layer_ids}")
        self.register_buffer("draft_ids", draft_ids.long(), persistent=False)
        self.register_buffer("target_norm", target_norm, persistent=False)
        self.register_buffer("target_head", target_head[draft_ids.long()], persistent=False)
        self.fc = Linear(2 * shape.hidden, shape.hidden)
        self.layers = nn.ModuleList([Layer(shape, wide=False)])

    def feature(self, states: Tensor) -> Tensor:
        """The target's final, normalised state."""
        return rms_norm(states[:, :, 0].float(), self.target_norm, self.shape.eps)

    def step(self, tokens: Tensor, feature: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """One output that is both the vocabulary's input and the next feature."""
        joined = torch.cat((fn.embedding(tokens, self.embedding), feature), dim=-1)
        hidden = self.layers[0](None, self.fc(joined), memory)
        return hidden, hidden

    def output_weight(self) -> Tensor:
        """The target's vocabulary head, not trained."""
        return self.target_head


def start_layer(layer: Layer, state: dict[str, Tensor], index: int, hidden: int) -> None:
    """Start a layer from the target's layer; the embedding's half of a wide one starts small."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name == "hidden_norm.weight":
                source = state[f"model.layers.{index}.input_layernorm.weight"]
            elif name == "input_layernorm.weight":
                # The embeddings' scale is folded away by the norm: start from ones.
                source = torch.ones(hidden)
            else:
                source = state[f"model.layers.{index}.{name}"]
            if parameter.shape != source.shape:
                parameter[:, :hidden].normal_(std=0.02)
                parameter[:, hidden:].copy_(source)
            else:
                parameter.copy_(source)


def fold_norms(layer: Layer, weight: Tensor, size: Tensor) -> None:
    """Let the attention of a layer without a norm see inputs of this size as the target's did."""
    for each in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
        each.weight *= weight / size


def make_head(
    method: str, target: Path, layer_ids: tuple[int, ...], draft_ids: Tensor, scales: Tensor
) -> Head:
    """A head started from the target's last layer; `scales` are the kept states' usual sizes."""
    config = json.loads((target / "config.json").read_text())
    shape = Shape.of(config)
    state = {name: value.float() for name, value in load_file(target / "model.safetensors").items()}
    embedding, last = state["model.embed_tokens.weight"], shape_layers(config) - 1
    target_head = state.get("lm_head.weight", embedding)
    head: Head
    eye = torch.eye(shape.hidden)
    if method == "eagle3":
        head = Eagle3Head(shape, embedding, layer_ids, draft_ids)
        with torch.no_grad():
            # The highest state passes through, the others start small, in units of their sizes.
            nn.init.normal_(head.fc.weight, std=0.02)
            blocks = head.fc.weight.view(shape.hidden, len(layer_ids), shape.hidden)
            blocks /= scales[None, :, None] / scales[-1]
            blocks[:, -1] += eye
            head.norm.weight.copy_(state["model.norm.weight"])
            head.lm_head.weight.copy_(target_head[draft_ids.long()])
        start_layer(head.midlayer, state, last, shape.hidden)
    elif method == "eagle":
        head = EagleHead(
            shape, embedding, layer_ids, draft_ids, state["model.norm.weight"], target_head
        )
        size = state["model.norm.weight"].square().mean().sqrt()
        start_layer(head.layers[0], state, last, shape.hidden)
        with torch.no_grad():
            nn.init.normal_(head.fc.weight, std=0.02)
            head.fc.weight[:, : shape.hidden] *= size / embedding.square().mean().sqrt()
            head.fc.weight[:, shape.hidden :] += eye
            fold_norms(head.layers[0], state[f"model.layers.{last}.input_layernorm.weight"], size)
            head.layers[0].self_attn.o_proj.weight *= size / scales[-1]
            head.layers[0].mlp.down_proj.weight *= size / scales[-1]
    else:
        raise HeadError(f"method {method!r} is not one of eagle3, eagle")
    return head


def shape_layers(config: dict[str, Any]) -> int:
    """How many layers the target has."""
    return int(config["num_hidden_layers"])


def save_head(head: Head, target: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the head as vLLM loads it: config.json and model.safetensors."""
    source = json.loads((target / "config.json").read_text())
    shape = head.shape
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": source.get("hidden_act", "silu"),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": source["max_position_embeddings"],
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": source.get("bos_token_id"),
        "eos_token_id": source.get("eos_token_id"),
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    state = {
        name: value.detach().to(dtype).contiguous() for name, value in head.state_dict().items()
    }
    if isinstance(head, Eagle3Head):
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        config["eagle_aux_hidden_state_layer_ids"] = list(head.layer_ids)
        config["draft_vocab_size"] = len(head.draft_ids)
        config["target_hidden_size"] = shape.hidden
        if len(head.draft_ids) < shape.vocab:
            # vLLM adds d2t to a draft id to get the target's.
            state["d2t"] = head.draft_ids.cpu() - torch.arange(len(head.draft_ids))
            known = torch.zeros(shape.vocab, dtype=torch.bool)
            known[head.draft_ids.cpu()] = True
            state["t2d"] = known
    else:
        config["architectures"] = ["EagleLlamaForCausalLM"]
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_head(folder: Path, target: Path) -> Head:
    """A saved head, ready to draft; refused with one line where it does not fit the target."""
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise HeadError(f"{config_path}: no such file: train a head first, or name its folder")
    config = json.loads(config_path.read_text())
    ours = json.loads((target / "config.json").read_text())
    for key in ("hidden_size", "vocab_size"):
        if config.get(key) != ours.get(key):
            raise HeadError(
                f"{folder}: {key} is {config.get(key)}, the target {target} has {ours.get(key)}: "
                "use the head that was trained for this target"
            )
    state = load_file(folder / "model.safetensors")
    layers = shape_layers(ours)
    if config["architectures"][0].endswith("Eagle3"):
        layer_ids = tuple(config["eagle_aux_hidden_state_layer_ids"])
        count = config["draft_vocab_size"]
        offset = state.pop("d2t", torch.zeros(count, dtype=torch.long))
        state.pop("t2d", None)
        draft_ids = offset + torch.arange(count)
        head = make_head("eagle3", target, layer_ids, draft_ids, torch.ones(len(layer_ids)))
    else:
        draft_ids = torch.arange(ours["vocab_size"])
        head = make_head("eagle", target, (layers,), draft_ids, torch.ones(1))
    head.load_state_dict({name: value.float() for name, value in state.items()})
    return head

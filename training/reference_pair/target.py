"""The target in plain torch: batched reading and decoding that keeps the states heads feed on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
import torch.nn.functional as fn
from safetensors.torch import load_file
from torch import Tensor

# Best tokens kept per position: they hold nearly all of the probability.
TOP = 16


class TargetError(Exception):
    """The folder holds no target that this recipe can read."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm, as Llama has it."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of shape positions.shape + (head_dim,)."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, device=positions.device) / head_dim)
    angles = positions[..., None].float() * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, the two halves paired as in Hugging Face's Llama."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def fastest_dtype(device: str) -> torch.dtype:
    """bfloat16 where its matrix products are faster than float32's here, else float32."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(512, 576, dtype=dtype, device=device)
        b = torch.randn(1536, 576, dtype=dtype, device=device)
        for _ in range(3):
            fn.linear(a, b)
        start = time.perf_counter()
        for _ in range(10):
            product = fn.linear(a, b)
        product.sum().item()
        seconds[dtype] = time.perf_counter() - start
    return min(seconds, key=lambda dtype: seconds[dtype])


class Target:
    """A Llama folder's weights, the residual stream in float32, products in `dtype`."""

    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> None:
        config_path = folder / "config.json"
        if not config_path.is_file():
            raise TargetError(f"{config_path}: no such file: make the target first")
        self.config = config = json.loads(config_path.read_text())
        if config.get("model_type") != "llama":
            raise TargetError(
                f"{config_path}: model_type is {config.get('model_type')!r}, only 'llama' is read"
            )
        self.device = device
        self.dtype = dtype or fastest_dtype(device)
        self.layers: int = config["num_hidden_layers"]
        self.hidden: int = config["hidden_size"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config.get("head_dim") or self.hidden // self.heads
        self.eps: float = config["rms_norm_eps"]
        self.theta = rope_theta(config)
        state = load_file(folder / "model.safetensors")
        self.embedding = state["model.embed_tokens.weight"].float().to(device)
        self.norm = state["model.norm.weight"].float().to(device)
        head = state.get("lm_head.weight", state["model.embed_tokens.weight"])
        self.lm_head = head.to(device=device, dtype=self.dtype)
        self.blocks = [self._block(state, index) for index in range(self.layers)]

    def _block(self, state: dict[str, Tensor], index: int) -> dict[str, Tensor]:
        def weight(*names: str) -> Tensor:
            parts = [state[f"model.layers.{index}.{name}.weight"] for name in names]
            return torch.cat(parts).to(self.device)

        return {
            "norm1": weight("input_layernorm").float(),
            "norm2": weight("post_attention_layernorm").float(),
            "qkv": weight("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj").to(
                self.dtype
            ),
            "o": weight("self_attn.o_proj").to(self.dtype),
            "gate_up": weight("mlp.gate_proj", "mlp.up_proj").to(self.dtype),
            "down": weight("mlp.down_proj").to(self.dtype),
        }

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """A product in the target's dtype, given back in float32."""
        return fn.linear(x.to(self.dtype), weight).float()

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of final, normalised hidden states."""
        return self.linear(hidden, self.lm_head)

    @torch.inference_mode()
    def best(self, final: Tensor) -> tuple[Tensor, Tensor]:
        """The TOP best tokens of final states, and their probabilities."""
        logits = self.logits(final)
        values, ids = logits.topk(TOP)
        best = values[..., :1]
        total = logits.sub_(best).exp_().sum(-1, keepdim=True)
        return ids.int(), ((values - best).exp_() / total).half()

    def _mlp(self, block: dict[str, Tensor], x: Tensor) -> Tensor:
        gate, up = self.linear(rms_norm(x, block["norm2"], self.eps), block["gate_up"]).chunk(2, -1)
        return self.linear(fn.silu(gate) * up, block["down"])

    def _qkv(self, block: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.linear(rms_norm(x, block["norm1"], self.eps), block["qkv"])
        qkv = qkv.view(*x.shape[:-1], self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=-2)
        return q, k, v

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, slots: Tensor, cache: Cache | None, keep: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Read right-padded prompts [B, T] into slots: kept states [B, T, n, H], final [B, T, H].

        `keep` counts layers as vLLM does: state i is the residual stream after i layers.
        """
        length = tokens.shape[1]
        cos, sin = rope_tables(
            torch.arange(length, device=tokens.device), self.head_dim, self.theta
        )
        x = fn.embedding(tokens, self.embedding)
        kept = []
        for index, block in enumerate(self.blocks):
            q, k, v = (part.transpose(1, 2) for part in self._qkv(block, x))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if cache is not None:
                cache.k[index][slots, :, :length] = k.to(self.dtype)
                cache.v[index][slots, :, :length] = v.to(self.dtype)
            group = self.heads // self.kv_heads
            out = fn.scaled_dot_product_attention(
                q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=True
            )
            x = x + self.linear(out.transpose(1, 2).flatten(2), block["o"])
            x = x + self._mlp(block, x)
            if index + 1 in keep:
                kept.append(x.half())
        return torch.stack(kept, dim=2), rms_norm(x, self.norm, self.eps)

    @torch.inference_mode()
    def decode(
        self, tokens: Tensor, lengths: Tensor, cache: Cache, keep: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """One token for every slot at position `lengths`: kept states [S, n, H], final [S, H]."""
        span = int(lengths.max()) + 1
        rows = torch.arange(len(tokens), device=tokens.device)
        cos, sin = rope_tables(lengths, self.head_dim, self.theta)
        cos, sin = cos[:, None], sin[:, None]
        hide = torch.arange(span, device=tokens.device) > lengths[:, None]
        bias = torch.zeros(hide.shape, device=tokens.device).masked_fill_(hide, -1e9)[:, None, None]
        x = fn.embedding(tokens, self.embedding)
        kept = []
        for index, block in enumerate(self.blocks):
            q, k, v = self._qkv(block, x)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            cache.k[index][rows, :, lengths] = k.to(self.dtype)
            cache.v[index][rows, :, lengths] = v.to(self.dtype)
            q = q.view(len(tokens), self.kv_heads, -1, self.head_dim) * self.head_dim**-0.5
            # Keys first: on CPUs a tall bfloat16 product is three times faster than a wide one.
            scores = cache.k[index][:, :, :span] @ q.to(self.dtype).transpose(-1, -2)
            weights = (scores.transpose(-1, -2).float() + bias).softmax(-1).to(self.dtype)
            out = weights @ cache.v[index][:, :, :span]
            x = x + self.linear(out.flatten(1), block["o"])
            x = x + self._mlp(block, x)
            if index + 1 in keep:
                kept.append(x.half())
        return torch.stack(kept, dim=1), rms_norm(x, self.norm, self.eps)


class Cache:
    """Keys and values of `slots` sequences of up to `length` tokens."""

    def __init__(self, target: Target, slots: int, length: int) -> None:
        shape = (slots, target.kv_heads, length, target.head_dim)
        kind = {"device": target.device, "dtype": target.dtype}
        self.k = [torch.zeros(shape, **kind) for _ in range(target.layers)]
        self.v = [torch.zeros(shape, **kind) for _ in range(target.layers)]


def rope_theta(config: dict) -> float:
    """A Llama config's rotary base, wherever this version of transformers wrote it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise TargetError(f"rope_type {rope['rope_type']!r} is not read here, only 'default'")
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)


def default_layers(layers: int) -> tuple[int, ...]:
    """Which states to keep: low, middle, high and last."""
    return tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 1), layers}))

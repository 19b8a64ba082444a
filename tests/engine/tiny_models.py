"""Makes the models that the engine tests serve: a tiny Llama, its EAGLE, DFlash and DSpark heads, a
draft model, a LoRA adapter of it, and the same Llama with a layer that predicts tokens (MTP).

All are trained for seconds on repetitive lines of text, so that greedy output repeats itself (the
n-gram look-up finds something), and heads are right often but not always. Characters are tokens.
"""

import json
import random
import string
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen2.modeling_qwen2 import (
    Qwen2DecoderLayer,
    Qwen2RMSNorm,
    Qwen2RotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

CHARACTERS = string.printable[:95] + "\n"
SPECIAL = ["<unk>", "<s>", "</s>"]
VOCABULARY = 128
WIDTH = 64
LAYERS = 4
AUX_LAYERS = [1, 2, 3]
ROOM = 512
BLOCK = 12
MASK = VOCABULARY - 1

WORDS = ["table", "row", "update", "insert", "value", "north", "south", "order", "client"]


def tokenizer():
    """One token per character, with fillers up to the vocabulary's size."""
    words = [*SPECIAL, *CHARACTERS]
    words += [f"<filler{at}>" for at in range(VOCABULARY - len(words))]
    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def document(seed, lines=6):
    """Lines that repeat each other with small changes, as code edits and tables do."""
    draw = random.Random(seed)
    subject, verb = draw.choice(WORDS), draw.choice(WORDS)
    out = []
    for line in range(lines):
        key = draw.choice(WORDS) if draw.random() < 0.4 else subject
        out.append(f"{subject}.{verb}({key}, {line});")
    return "\n".join(out) + "\n"


def ids_of(text):
    place = {character: at + len(SPECIAL) for at, character in enumerate(CHARACTERS)}
    return [place[character] for character in text]


def batches(steps, seed, rows=12, length=64):
    text = ids_of("".join(document(seed * 100_000 + at) for at in range(400)))
    stream = torch.tensor(text)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(0, len(stream) - length, (rows,), generator=draw)
        yield torch.stack([stream[at : at + length] for at in starts.tolist()])


def config_of(kind, layers, **more):
    return kind(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=ROOM,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        attn_implementation="eager",
        dtype="float32",
        **more,
    )


def train(model, loss_of, steps, rate=4e-3, seed=1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step, tokens in enumerate(batches(steps, seed)):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 20) * (1 - 0.9 * step / steps)
        optimizer.zero_grad()
        loss = loss_of(tokens)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def make_llama(folder, layers, steps, seed):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config_of(LlamaConfig, layers, head_dim=32))
    train(model, lambda tokens: model(tokens, labels=tokens).loss, steps, seed=seed)
    model.eval().requires_grad_(False).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


class Eagle(nn.Module):
    """vLLM's EagleLlamaForCausalLM, to be trained."""

    def __init__(self, config):
        super().__init__()
        self.fc = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, 0)])
        self.layers[0].input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embeds, hidden):
        hidden = self.fc(torch.cat([embeds, hidden], -1))
        return run_layer(self.layers[0], hidden, self.rotary)


class Eagle3(nn.Module):
    """vLLM's Eagle3LlamaForCausalLM, to be trained."""

    def __init__(self, config):
        super().__init__()
        self.fc = nn.Linear(len(AUX_LAYERS) * WIDTH, WIDTH, bias=False)
        self.midlayer = LlamaDecoderLayer(config, 0)
        attention = self.midlayer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(attention, name)
            setattr(attention, name, nn.Linear(2 * WIDTH, old.out_features, bias=False))
        self.midlayer.hidden_norm = LlamaRMSNorm(WIDTH, config.rms_norm_eps)
        self.norm = LlamaRMSNorm(WIDTH, config.rms_norm_eps)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embeds, hidden):
        layer = self.midlayer
        both = torch.cat([layer.input_layernorm(embeds), layer.hidden_norm(hidden)], -1)
        hidden = hidden + attend(layer.self_attn, both, self.rotary)
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


class Predictor(nn.Module):
    """vLLM's MiMoMultiTokenPredictorLayer, to be trained; named as checkpoints name its parts."""

    def __init__(self, config):
        super().__init__()
        self.token_layernorm = Qwen2RMSNorm(WIDTH, config.rms_norm_eps)
        self.hidden_layernorm = Qwen2RMSNorm(WIDTH, config.rms_norm_eps)
        self.input_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.block = Qwen2DecoderLayer(config, 0)
        self.final_layernorm = Qwen2RMSNorm(WIDTH, config.rms_norm_eps)
        self.rotary = Qwen2RotaryEmbedding(config)

    def forward(self, embeds, hidden):
        both = [self.hidden_layernorm(hidden), self.token_layernorm(embeds)]
        hidden = run_layer(self.block, self.input_proj(torch.cat(both, -1)), self.rotary)
        return self.final_layernorm(hidden)


class OnePass(nn.Module):
    """vLLM's DFlashQwen3Model, or its Qwen3DSparkModel, to be trained."""

    def __init__(self, config, rank=0):
        """With a `rank`, a matrix of it says what follows a token: DSpark."""
        super().__init__()
        self.fc = nn.Linear(len(AUX_LAYERS) * WIDTH, WIDTH, bias=False)
        self.hidden_norm = Qwen3RMSNorm(WIDTH, config.rms_norm_eps)
        self.layers = nn.ModuleList([Qwen3DecoderLayer(config, 0)])
        self.norm = Qwen3RMSNorm(WIDTH, config.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(config)
        if rank:
            tables = [nn.Embedding(VOCABULARY, rank), nn.Linear(rank, VOCABULARY, bias=False)]
            names = ["markov_w1", "markov_w2"]
            self.markov_head = nn.ModuleDict(dict(zip(names, tables, strict=True)))

    def forward(self, embeds, found, first):
        """Hidden states of a block of these tokens, behind as many tokens of a text as `first`."""
        layer, count = self.layers[0], found.shape[1]
        own = layer.input_layernorm(embeds)
        both = torch.cat([self.hidden_norm(self.fc(found)), own], 1)
        places = torch.cat([torch.arange(count), first + torch.arange(embeds.shape[1])])[None]
        known = (torch.arange(both.shape[1]) < first) | (torch.arange(both.shape[1]) >= count)
        attention = layer.self_attn

        def split(hidden):
            return hidden.unflatten(-1, (-1, attention.head_dim))

        # Queries of the text stand there for nothing but their places.
        query = attention.q_norm(split(attention.q_proj(both))).transpose(1, 2)
        key = attention.k_norm(split(attention.k_proj(both))).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *self.rotary(both, places))
        value = split(attention.v_proj(both)).transpose(1, 2)
        said = nn.functional.scaled_dot_product_attention(
            query[:, :, count:], key, value, attn_mask=known[None, None, None], enable_gqa=True
        )
        hidden = embeds + attention.o_proj(said.transpose(1, 2).flatten(2))
        return self.norm(hidden + layer.mlp(layer.post_attention_layernorm(hidden)))


def attend(attention, hidden, rotary):
    length = hidden.shape[1]
    positions = torch.arange(length)[None]
    mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
    return attention(hidden, position_embeddings=rotary(hidden, positions), attention_mask=mask)[0]


def run_layer(layer, hidden, rotary):
    hidden = hidden + attend(layer.self_attn, layer.input_layernorm(hidden), rotary)
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def loss_of_drafts(said, embeds, hidden, draft, logits_of, found=None):
    """What two tokens drafted in a row miss of what the target says, from these hidden states on.

    Where `found` is given, the drafter's hidden states are to be those of the target.
    """
    loss = 0.0
    for deep in range(2):
        next_ones = slice(1 + deep, 1 + deep + hidden.shape[1])
        hidden = draft(embeds[:, next_ones], hidden)
        logits = logits_of(hidden).flatten(0, 1)
        loss = loss + nn.functional.cross_entropy(logits, said[:, next_ones].flatten())
        if found is not None:
            loss = loss + nn.functional.smooth_l1_loss(hidden, found[:, next_ones])
        hidden = hidden[:, :-1]
    return loss


def known_of(target, tokens):
    """The target's hidden states, at its end and behind layers; what it says; the embeddings."""
    with torch.no_grad():
        out = target.model(tokens, output_hidden_states=True)
        said = target.lm_head(out.last_hidden_state).argmax(-1)
        behind = torch.cat([out.hidden_states[at] for at in AUX_LAYERS], -1)
        return out.last_hidden_state, behind, said, target.model.embed_tokens(tokens)


def make_eagle(folder, target, steps, seed):
    torch.manual_seed(seed)
    head = Eagle(target.config)

    def loss_of(tokens):
        found, _, said, embeds = known_of(target, tokens)
        return loss_of_drafts(said, embeds, found[:, :-2], head, target.lm_head, found)

    train(head, loss_of, steps, seed=seed)
    save_head(folder, head, target.config, "EagleLlamaForCausalLM", {})


def make_eagle3(folder, target, steps, seed):
    torch.manual_seed(seed)
    head = Eagle3(target.config)
    head.lm_head.weight.data.copy_(target.lm_head.weight.data)

    def loss_of(tokens):
        _, behind, said, embeds = known_of(target, tokens)
        hidden = head.fc(behind[:, :-2])
        return loss_of_drafts(said, embeds, hidden, head, lambda h: head.lm_head(head.norm(h)))

    train(head, loss_of, steps, seed=seed)
    extra = {"draft_vocab_size": VOCABULARY, "eagle_aux_hidden_state_layer_ids": AUX_LAYERS}
    save_head(folder, head, target.config, "Eagle3LlamaForCausalLM", extra)


def make_one_pass(folder, target, steps, seed, rank=0):
    """A head that drafts a block in one pass: DFlash, or with a rank DSpark.

    DFlash drafts at each mask, DSpark behind each token of the block, whose first one is known.
    """
    torch.manual_seed(seed)
    config = config_of(Qwen3Config, 1, head_dim=32)
    head, draw = OnePass(config, rank), random.Random(seed)

    def loss_of(tokens):
        first = draw.randrange(8, tokens.shape[1] - BLOCK)
        block = torch.full((len(tokens), BLOCK if rank else BLOCK + 1), MASK)
        block[:, 0] = tokens[:, first]
        _, behind, _, _ = known_of(target, tokens)
        embeds = target.model.embed_tokens(block)
        logits = target.lm_head(head(embeds, behind, first)[:, -BLOCK:])
        said = tokens[:, first : first + BLOCK + 1]
        if rank:
            table = head.markov_head
            logits = logits + table["markov_w2"](table["markov_w1"](said[:, :-1]))
        return nn.functional.cross_entropy(logits.flatten(0, 1), said[:, 1:].flatten())

    train(head, loss_of, steps, seed=seed)
    layers = [at - 1 for at in AUX_LAYERS]
    extra = {"block_size": BLOCK, "target_layer_ids": layers, "mask_token_id": MASK}
    extra |= {"markov_rank": rank}
    if not rank:
        extra = {"block_size": BLOCK + 1}
        extra["dflash_config"] = {"target_layer_ids": layers, "mask_token_id": MASK}
    save_head(folder, head, config, "Qwen3DSparkModel" if rank else "DFlashDraftModel", extra)


def make_dflash2(folder, dflash):
    """What is in this folder as DFlash 2, whose convolutions and selector leave it as it is."""
    weights, record = load_file(dflash / "model.safetensors"), dflash / "config.json"
    for part in ("attention_conv", "mlp_conv"):
        base = torch.zeros((2, 2, WIDTH))
        base[:, 0] = 1
        weights[f"layers.0.{part}.base_kernel"] = base
        weights[f"layers.0.{part}.kernel_projection.weight"] = torch.zeros((4, WIDTH))
    for name in ("predecessor", "successor"):
        weights[f"candidate_selector.{name}_codebook"] = torch.zeros((VOCABULARY, 4))
    weights["candidate_selector.hidden_projection.weight"] = torch.zeros((4, WIDTH))
    record = json.loads(record.read_text()) | {"architectures": ["DFlash2DraftModel"]}
    record["dflash_config"] |= {"conv_kernel_size": 2, "conv_group_size": WIDTH}
    record["dflash_config"] |= {"selector_rank": 4, "selector_top_k": 4}
    save(folder, weights, record)


def make_mtp(folder, target, steps, seed):
    """The target as MiMo, which is Qwen2 and a layer more that drafts."""
    torch.manual_seed(seed)
    config = config_of(Qwen2Config, LAYERS)
    layer = Predictor(config)

    def loss_of(tokens):
        found, _, said, embeds = known_of(target, tokens)
        return loss_of_drafts(said, embeds, found[:, :-2], layer, target.lm_head)

    train(layer, loss_of, steps, seed=seed)
    weights = weights_of(target)
    for name, value in list(weights.items()):
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            # Which Qwen2 adds, and Llama does not.
            weights[name.replace("weight", "bias")] = torch.zeros(len(value))
    for name, value in weights_of(layer).items():
        weights[f"model.mtp_layers.0.{name.removeprefix('block.')}"] = value
    record = {**config.to_dict(), "architectures": ["MiMoForCausalLM"]}
    save(folder, weights, record | {"num_nextn_predict_layers": 1})
    tokenizer().save_pretrained(folder)


def make_adapter(folder, seed, rank=4):
    """A LoRA adapter for the target, random and loud: what it says is not what the target says."""
    draw, weights = torch.Generator().manual_seed(seed), {}
    for layer in range(LAYERS):
        for part in ("q_proj", "v_proj"):
            wide = WIDTH if part == "q_proj" else WIDTH // 2
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{name}.lora_A.weight"] = torch.randn(rank, WIDTH, generator=draw)
            weights[f"{name}.lora_B.weight"] = torch.randn(wide, rank, generator=draw) / 4
    record = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    record |= {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    save(folder, weights, record, "adapter_model", "adapter_config")


def weights_of(module):
    """What a checkpoint holds of a model or a part of one."""
    return {
        name: value.contiguous()
        for name, value in module.state_dict().items()
        if not name.startswith("rotary")
    }


def save_head(folder, head, config, architecture, extra):
    record = {**config.to_dict(), "architectures": [architecture], "num_hidden_layers": 1, **extra}
    save(folder, weights_of(head), record)


def save(folder, weights, record, name="model", config="config"):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / f"{name}.safetensors", metadata={"format": "pt"})
    (folder / f"{config}.json").write_text(json.dumps(record, default=str))


def make_all(folder):
    target = make_llama(folder / "target", LAYERS, 220, seed=1)
    make_eagle(folder / "eagle", target, 120, seed=2)
    make_eagle3(folder / "eagle3", target, 120, seed=3)
    make_one_pass(folder / "dflash", target, 400, seed=7)
    make_dflash2(folder / "dflash2", folder / "dflash")
    make_one_pass(folder / "dspark", target, 400, seed=8, rank=16)
    make_llama(folder / "draft", 1, 120, seed=4)
    make_mtp(folder / "mtp", target, 120, seed=5)
    make_adapter(folder / "adapter", seed=6)


if __name__ == "__main__":
    # One thread: on shared cores, threads that wait for each other take ten times as long.
    torch.set_num_threads(1)
    make_all(Path(sys.argv[1]))

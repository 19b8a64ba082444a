"""Fits networks to what LightGBM's trees predict: a network says the same, and runs anywhere.

Trees learn better from few and noisy outcomes, and say something sensible of features that never
occurred together. Half of what a network is shown are such features: rows in which some values are
exchanged for others that occur, rare ones as often as common ones. A network that saw the recorded
rows alone would take what happens to go with a rare value for its effect (as in C. Bucila et al.,
Model Compression, 2006).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import lightgbm
import numpy as np

from adaspec.errors import TrainingError
from adaspec.predict.model import FEATURE_NAMES, PROBABILITIES
from adaspec.predict.network import INTERVALS, NUMBER, PROBABILITY, Network, constant_network, rises
from adaspec.train.heads import Settings
from adaspec.train.rows import Array, Floats, Ints

EXCHANGED = 0.15
COLUMNS = 2.4
"""About how many columns there are per feature, dealt by how much depends on each."""
LEAST_STEP = 1e-3
"""The shortest interval of a column, as a share of the value where it is."""
LEAST_SPREAD = 0.02
"""The least standard deviation by which a column is scaled: one that rarely rises tells little."""
STEP_SIZE = 1e-2
"""Adam's at first; it falls to 0 in a straight line."""
BATCH, LEAST_BATCH = 1024, 32
BATCHES_PER_PASS = 100
"""With few rows batches are smaller, so that a pass has about as many."""
_NO_THRESHOLD = 1e30
"""A split beyond this only tells missing values from others, which networks see by themselves."""


def distilled(
    group: str, boosters: Mapping[str, lightgbm.Booster], x: Floats, settings: Settings
) -> Network:
    """The network that predicts what a group's boosters predict for features like these."""
    names = FEATURE_NAMES[group]
    splits = splits_of(boosters, names)
    if not len(x) or not any(each[:, 1].any() for each in splits):
        anything = np.zeros((1, len(names)), np.float32)
        return constant_network(_predictions(boosters, anything, settings.threads)[0].tolist())
    x = np.concatenate([x, _with_exchanged_values(x, settings.seed)])
    link = [PROBABILITY if head in PROBABILITIES else NUMBER for head in boosters]
    if group != "before":
        # These see fewer features, and run after every forward of the drafter.
        settings = replace(settings, width=settings.width // 2)
    taught = _predictions(boosters, x, settings.threads)
    return fit_network(x, taught, np.array(link, np.int32), splits, settings)


def _with_exchanged_values(x: Floats, seed: int) -> Floats:
    """The rows, some values of which are others of the same feature, each of those as likely."""
    rng = np.random.default_rng([seed, 0xC4A6])
    changed = x.copy()
    for i in range(x.shape[1]):
        values = np.unique(x[:, i])
        chosen = rng.random(len(x)) < EXCHANGED
        changed[chosen, i] = values[rng.integers(len(values), size=int(chosen.sum()))]
    return changed


def _predictions(boosters: Mapping[str, lightgbm.Booster], x: Floats, threads: int) -> Array:
    """What each booster predicts, as columns."""
    columns = [booster.predict(x, num_threads=threads) for booster in boosters.values()]
    return np.column_stack(columns).astype(np.float64)


def splits_of(boosters: Mapping[str, lightgbm.Booster], names: Sequence[str]) -> list[Array]:
    """By feature, the (threshold, change) of every split on it, by ascending thresholds.

    A change is the difference between two branches' values, as a share of the head's sum of them.
    """
    found: list[list[tuple[float, float]]] = [[] for _ in names]
    for booster in boosters.values():
        model = booster.dump_model()
        nodes = [tree["tree_structure"] for tree in model["tree_info"]]
        splits = []
        while nodes:
            node = nodes.pop()
            if "split_feature" not in node:
                continue
            left, right = node["left_child"], node["right_child"]
            nodes += left, right
            if abs(node["threshold"]) < _NO_THRESHOLD:
                feature = names.index(model["feature_names"][node["split_feature"]])
                change = abs(_value(left) - _value(right))
                splits.append((feature, float(node["threshold"]), change))
        total = sum(change for _, _, change in splits) or 1.0
        for feature, threshold, change in splits:
            found[feature].append((threshold, change / total))
    return [np.array(sorted(each), np.float64).reshape(-1, 2) for each in found]


def _value(node: dict[str, Any]) -> float:
    return float(node["internal_value" if "split_feature" in node else "leaf_value"])


def fit_network(
    x: Floats, targets: Array, link: Ints, splits: Sequence[Array], settings: Settings
) -> Network:
    """The network that predicts the targets (a column per head) best; `splits` as `splits_of`."""
    torch = _torch()
    network = _without_weights(x, splits, link)
    missing = np.isnan(x)
    entered = (rises(network, x) - network.shift) * network.scale
    columns = np.where(missing[:, network.source], 0, entered)
    seen = np.concatenate((columns, missing[:, network.flagged]), axis=1, dtype=np.float32)
    inputs = torch.from_numpy(seen)
    wanted = torch.from_numpy(targets.astype(np.float32))
    is_probability = torch.from_numpy(link == PROBABILITY)
    # What makes the loss of a number weigh as much as that of a probability.
    scale = torch.from_numpy(0.25 / np.maximum(targets.var(0), 1e-6).astype(np.float32))
    draw = torch.Generator().manual_seed(settings.seed)
    sizes = (inputs.shape[1], settings.width, settings.width, len(link))
    layers = [torch.nn.Linear(*pair) for pair in pairwise(sizes)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.normal_(0.0, layer.in_features**-0.5, generator=draw)
            layer.bias.zero_()
        mean = wanted.mean(0)
        layers[-1].bias.copy_(mean.logit(1e-4).where(is_probability, mean))
    silu = torch.nn.SiLU()
    model = torch.nn.Sequential(layers[0], silu, layers[1], silu, layers[2])
    adam = torch.optim.Adam(model.parameters(), STEP_SIZE, betas=(0.9, 0.99), fused=True)
    batch = min(BATCH, max(LEAST_BATCH, len(x) // BATCHES_PER_PASS), len(x))
    whole = len(x) // batch
    passes = -(-settings.steps // whole)
    decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, passes * whole)
    for _ in range(passes):
        order = torch.randperm(len(x), generator=draw)
        for chosen in order[: whole * batch].split(batch):
            said, true = model(inputs[chosen]), wanted[chosen]
            of_probability = torch.nn.functional.binary_cross_entropy_with_logits(
                said[:, is_probability], true[:, is_probability], reduction="sum"
            )
            of_number = (scale * (said - true).square() / 2)[:, ~is_probability].sum()
            adam.zero_grad()
            ((of_probability + of_number) / batch).backward()
            adam.step()
            decay.step()
    fitted = {}
    for number, layer in enumerate(layers, 1):
        fitted[f"weight_{number}"] = np.ascontiguousarray(layer.weight.detach().numpy().T)
        fitted[f"bias_{number}"] = layer.bias.detach().numpy()
    return replace(network, **fitted)


def _torch() -> Any:
    # Imported here because it takes seconds to load, and only training needs it.
    try:
        import torch
    except ImportError as error:
        raise TrainingError(
            f"training needs PyTorch ({error}), which vLLM brings: pip install 'adaspec[train]'"
        ) from error
    return torch


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Have torch use one thread, as sums depend on how many there are, and layers are small."""
    torch = _torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _without_weights(x: Floats, splits: Sequence[Array], link: Ints) -> Network:
    """The network's columns, scaled by these rows; its layers are yet to be fitted."""
    source, low, slope = _columns(splits)
    missing = np.isnan(x)
    used = np.isin(np.arange(x.shape[1]), source)
    shift, scale = np.zeros(len(source), np.float32), np.zeros(len(source), np.float32)
    for c, feature in enumerate(source):
        known = x[~missing[:, feature], feature]
        if len(known):
            rise = np.clip((known[:, None] - low[:, c]) * slope[:, c], 0, 1).sum(1)
            shift[c], scale[c] = rise.mean(), 1.0 / max(rise.std(), LEAST_SPREAD)
    flagged = np.flatnonzero(used & missing.any(0) & ~missing.all(0)).astype(np.int32)
    return replace(
        constant_network([0.0] * len(link)),
        source=source,
        low=low,
        slope=slope,
        shift=shift,
        scale=scale,
        flagged=flagged,
        weight_1=np.zeros((len(source) + len(flagged), 1), np.float32),
        link=link,
    )


def _columns(splits: Sequence[Array]) -> tuple[Ints, Floats, Floats]:
    """The columns' features, and where their intervals begin and how steep they are.

    Predictions change as much in each interval of a feature; several that end at one are a step.
    """
    total = sum(each[:, 1].sum() for each in splits)
    source, lows, slopes = [], [], []
    for feature, each in enumerate(splits):
        if not each[:, 1].any():
            continue
        change = np.cumsum(each[:, 1])
        columns = max(1, round(COLUMNS * len(splits) * change[-1] / total))
        marks = np.linspace(0, 1, columns * INTERVALS + 1)
        places = np.searchsorted(change / change[-1], marks - 1e-9)
        ends = each[np.minimum(places, len(each) - 1), 0]
        length = np.maximum(np.diff(ends), LEAST_STEP * np.maximum(np.abs(ends[1:]), 1.0))
        source += [feature] * columns
        lows.append((ends[1:] - length).reshape(columns, INTERVALS))
        slopes.append((1.0 / length).reshape(columns, INTERVALS))
    low, slope = (np.concatenate(each).T.astype(np.float32) for each in (lows, slopes))
    return np.array(source, np.int32), np.ascontiguousarray(low), np.ascontiguousarray(slope)

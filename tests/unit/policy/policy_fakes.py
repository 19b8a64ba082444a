"""A small policy with something of everything, and ways to write one that nobody would."""

import numpy as np

from adaspec.policy.artifact import CHECKSUMS, MAX_BYTES, PolicyManifest, checksums, write_artifact


def manifest(**changes):
    fields = dict(  # noqa: C408
        features=1,
        sources=("ngram", "neural", "splice"),
        cap=48,
        neural_cap=8,
        cost="h100-llama-3.1-8b",
        training_requests=("0123456789abcdef", "fedcba9876543210"),
        seed=7,
        evidence=("tokens",),
        target="meta-llama/Llama-3.1-8B-Instruct",
        metrics={"auc": {"neural": [0.75, 0.8], "ngram": 0.88}, "note": "held out", "none": None},
        forwards={1: 3, 32: 0, 8: 2},
        adaspec_version="0.2",
    )
    return PolicyManifest(**{**fields, **changes})


def networks():
    return {
        "threshold": np.array([0.5, np.nan, -np.inf], np.float32),
        "feature": np.array([[0, 1], [2, 3]], np.int16),
        "missing_left": np.array([True, False]),
        "depth": np.array(3, np.int64),
        "nothing": np.zeros((0, 4), np.uint8),
    }


def tables():
    return {"keys": np.arange(5, dtype=np.uint64) << 60, "means": np.linspace(0, 1, 5)}


def written(path, force=False, **changes):
    content = dict(  # noqa: C408
        manifest=manifest(),
        networks=networks(),
        tables=tables(),
        model_text="tree\n",
        card="# Card\n",
    )
    write_artifact(path, **{**content, **changes}, force=force)
    return path


def contents(folder):
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir())}


def resigned(files):
    """The same files with checksums that vouch for them, whatever is in them."""
    summed = {name: files.get(name, b"") for name in MAX_BYTES if name != CHECKSUMS}
    return {**files, CHECKSUMS: checksums(summed)}


def laid(folder, files):
    folder.mkdir(exist_ok=True)
    for each in list(folder.iterdir()):
        if each.name not in files:
            each.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder

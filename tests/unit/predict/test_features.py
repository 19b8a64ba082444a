import json
from pathlib import Path

import numpy as np
from random_rows import random_rows, random_shown, random_table

from adaspec.predict import features, model
from adaspec.predict.features import FEATURES_VERSION

GOLDEN = Path(__file__).with_name("features.json")


def test_names_and_values_are_those_of_this_version(tmp_path):
    found = json.dumps({"version": FEATURES_VERSION, **on_a_probe()}, indent=1) + "\n"
    (tmp_path / GOLDEN.name).write_text(found)
    assert found == GOLDEN.read_text(), (
        "features have changed: raise FEATURES_VERSION in adaspec/predict/features.py, and copy "
        f"{tmp_path / GOLDEN.name} over {GOLDEN}"
    )


def on_a_probe():
    """The heads, and every feature's values for a few made-up rows, splices and drafted tokens."""
    rng = np.random.Generator(np.random.PCG64(5))
    table, rows = random_table(rng), random_rows(rng, 8)
    shown = random_shown(rng, rows)
    said = rng.random((3, *shown.tokens.shape)).astype(np.float32)
    evidence = features.evidence_features(rows, shown, said[0])
    # What is filled in by who predicts.
    evidence[..., [features.NGRAM_EXPECTED, features.SURVIVAL_SO_FAR]] = 0.0
    splice = features.splice_features(table, rows, shown, said[1])
    values = {"before": features.before_features(table, rows)}
    for group, each in (("splice", splice), ("evidence", evidence)):
        values[group] = each.reshape(-1, each.shape[-1])[::3]
    return {
        group: {
            "heads": " ".join(model.HEADS[group]),
            # Texts of four digits are the same on every machine.
            **{
                name: " ".join(f"{value:.4g}" for value in column.tolist())
                for name, column in zip(model.FEATURE_NAMES[group], values[group].T, strict=True)
            },
        }
        for group in values
    }

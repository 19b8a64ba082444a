"""The script of the paper's table against what was published."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from checkout import CHECKOUT, need, run_python

from adaspec.errors import EvaluationError
from adaspec.trace.importers.formats import import_trace
from adaspec.trace.schema import Request

need("eval")
sys.path.append(str(CHECKOUT / "eval" / "paper"))

import table as simulator  # noqa: E402

SHARED = CHECKOUT.parent / "shared"


def test_what_the_simulator_never_knew_is_refused():
    prompt, counts = np.zeros(3, np.int32), np.array([-1, 1], np.int16)
    known = {"prompt_tokens": prompt, "output_tokens": np.zeros(9, np.int32)}
    unknown = Request("mine", "1", **known, neural_accepted=counts, ngram_accepted=counts)
    with pytest.raises(EvaluationError, match="no match probability for workload 'mine'"):
        simulator.speedup([unknown], simulator.POLICIES["fixed:ngram:3"], 1, 0)
    bare = replace(unknown, ngram_accepted=None)
    with pytest.raises(EvaluationError, match="lacks a recorded list"):
        simulator.speedup([bare], simulator.POLICIES["oracle:combine"], 1, 0)
    assert simulator.speedup([bare], simulator.POLICIES["oracle:neural"], 1, 0) > 0


def test_the_published_table_is_reproduced(tmp_path):
    published = SHARED / "reference" / "specdecode-bench-devsplit.csv"
    recordings = SHARED / "traces" / "specdecode-bench"
    if not (published.is_file() and recordings.is_dir()):
        pytest.skip(f"needs {published} and the public recordings in {recordings}")
    import_trace("specdecode-bench", [recordings], tmp_path / "trace")
    command = ("eval/paper/table.py", tmp_path / "trace", "--published", published, "--json")
    rows = json.loads(run_python(*command).stdout)
    assert len(rows) == 144
    for row in rows:
        wanted, is_random = row["published"], row["policy"].startswith("fixed:ngram")
        assert abs(row["speedup"] - wanted) <= (0.03 * wanted if is_random else 0.011), row

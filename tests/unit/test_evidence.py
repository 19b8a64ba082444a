import json
import runpy
import shlex

import numpy as np
import pytest
from checkout import CHECKOUT, need, run_python
from random_recordings import random_requests, recording_of

from adaspec.cost.load import H100_LLAMA_3_1_8B as COST
from adaspec.policy.protocol import load_policy
from adaspec.policy.static import parse_policy
from adaspec.replay.player import Player
from adaspec.trace.importers import import_trace

need("eval")
REPORTS = CHECKOUT / "eval" / "reports"
SHARED = CHECKOUT.parent / "shared"


def test_every_report_has_a_command_that_writes_it_from_what_is_there_or_a_reason():
    evidence = runpy.run_path(str(CHECKOUT / "eval" / "evidence.py"))
    folders = {path.name for path in REPORTS.iterdir() if path.is_dir()}
    commands = evidence["reports"]()
    assert folders == {name.partition("/")[0] for name in commands} | set(evidence["BY_HAND"])
    for name, command in commands.items():
        words = shlex.split(command)
        out = f"eval/reports/{name}"
        assert name in evidence["PRINTED"] or words[words.index("-o") + 1] == out
        flags = ["", *words]
        read = {
            word
            for word, flag in zip(words, flags, strict=False)
            if "/" in word and word != out and flag != "--exclude-request"
        }
        # Public recordings beside the checkout are for its user to fetch.
        read = {path for path in read if not path.startswith("../")}
        missing = {path for path in read if not (CHECKOUT / path).exists()}
        assert missing <= set(evidence["PREPARED"]), name
        assert read & set(evidence["PREPARED"]) <= set(evidence["needed"]([command])), name


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


CAP, LOAD = 20, 4
ORDER = np.arange(12, dtype=np.int32)
RULE = "hybrid-splice:2:8:3:2:4"


@pytest.mark.parametrize("tokens", [False, True], ids=["without tokens", "with tokens"])
@pytest.mark.parametrize("name", [RULE, "fixed:neural:3", "fixed:ngram:4", "reference-pair-cpu"])
def test_without_a_guard_a_guarded_run_is_the_replay(name, tokens, monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "eval" / "guard")
    from guarded_run import GuardedRun

    recording = recording_of(random_requests(3, 12, tokens=tokens, output_tokens=(20, 40)), seed=1)
    policy = load_policy(name) if name == "reference-pair-cpu" else parse_policy(name)
    played = Player(recording, COST, CAP).play(policy, ORDER, LOAD)
    found = GuardedRun(recording, policy, ORDER, LOAD, COST, CAP, None, COST).result()
    assert found.time_s == pytest.approx(played.time_s)
    assert (found.tokens, found.drafted, found.accepted, found.neural_steps) == (
        *(played.tokens, played.drafted, played.accepted, played.neural_steps),
    )

"""`adaspec bench engine`, with the servers left out: tables, exit codes, a user's mistakes."""

import importlib.util
import json

import pytest

from adaspec.bench.engine import run as running
from adaspec.cli.main import run


def row(method, setting="", speedup=1.0, runner_up=False):
    spread = {"median": 0.05, "p95": 0.1}
    return {
        "workload": "all",
        "concurrency": 4,
        "method": method,
        "setting": setting,
        "runner_up": runner_up,
        "rounds": 2,
        "tokens_per_s": 50 * speedup,
        "speedup": speedup,
        "speedup_range": [speedup - 0.1, speedup + 0.1],
        "speedup_interval": None,
        "adaspec_over": None if method == "adaspec" else 1.43 / speedup,
        "adaspec_over_range": None,
        "adaspec_over_interval": None,
        "ttft_s": spread,
        "inter_token_s": spread,
        "token_s": spread,
        "accepted_per_step": 0.7,
        "machine": 1.0,
        "drafted_per_step": 1.4,
        "acceptance": 0.5,
        "expected_speedup": None if method == "suffix" else speedup,
        "expected_error": None if method == "suffix" else 0.0,
    }


def document(*differences):
    headline = {
        "workload": "all",
        "concurrency": 4,
        "best_static": "neural eagle3 3",
        "adaspec_over_best_static": 1.1,
        "adaspec_over_best_static_range": [0.9, 1.3],
        "adaspec_over_best_static_interval": [1.02, 1.19],
        "adaspec_over_none": 1.43,
        "expected_right": 2,
        "expected_known": 2,
    }
    return {
        "schema": 1,
        "model": "M",
        "drafter": "H",
        "hardware": "CPU of some kind, 2 cores",
        "vllm": "0.32.0",
        "engine": {"dtype": "float32"},
        "cost": None,
        "max_tokens": 64,
        "rounds": 2,
        "rows": [
            row("none"),
            row("neural", "eagle3 3", 1.3),
            row("neural", "eagle3 2", 1.2, runner_up=True),
            row("adaspec", "mine", 1.43),
        ],
        "headline": [headline],
        "absent": {"suffix": "needs arctic-inference, which is not installed"},
        "differences": list(differences),
        "notes": ["no --traces"],
    }


def difference(near_tie):
    return {
        "concurrency": 4,
        "method": "neural eagle3 3",
        "workload": "code",
        "id": "9",
        "position": 12,
        "expected": 5,
        "found": 6,
        "margin": 1e-4 if near_tie else 1.5,
        "near_tie": near_tie,
    }


@pytest.fixture
def asked(tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')

    def bench(found, *more):
        def bench_engine(options, force, report):
            options.out.mkdir(exist_ok=True)
            return found

        monkeypatch.setattr(running, "bench_engine", bench_engine)
        words = ["bench", "engine", "--model", "M", "--prompts", f"{tmp_path}/p.jsonl"]
        return run([*words, "-o", f"{tmp_path}/bench", *more])

    return bench


def test_the_table_has_every_method_and_says_who_did_not_run(asked, capsys, tmp_path):
    assert asked(document(difference(near_tie=True))) == 0
    said = capsys.readouterr().out
    for word in ("adaspec mine", "runner-up", "1.43x", "not run: suffix: needs arctic-inference"):
        assert word in said
    assert "1.100x (95%: 1.020 .. 1.190) neural eagle3 3, the best static setting" in said
    assert "near-tie at 4 at once: neural eagle3 3, request code/9, token 12" in said
    assert (tmp_path / "bench" / "speedup.png").read_bytes()[1:4] == b"PNG"
    page = (tmp_path / "bench" / "report.md").read_text()
    assert "| `neural eagle3 2 (runner-up)` | 60.0 | 1.20x | 1.10..1.30 | 1.19x |" in page
    assert "vLLM 0.32.0 on CPU of some kind, 2 cores" in page
    assert "- not run: suffix: needs arctic-inference" in page


def test_json_is_alone_on_stdout_and_in_the_folder(asked, capsys, tmp_path):
    assert asked(document(), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "bench" / "report.json").read_text())
    assert found["rows"][3]["method"] == "adaspec"


def test_outputs_that_differ_fail_with_the_request_named_and_the_report_written(
    asked, capsys, tmp_path
):
    assert asked(document(difference(near_tie=False))) == 1
    said = capsys.readouterr().err
    assert "neural eagle3 3, request code/9: token 12 is 6, without speculation 5" in said
    assert (tmp_path / "bench" / "report.json").exists()
    assert "- **outputs differ" in (tmp_path / "bench" / "report.md").read_text()


def mistake(capsys, *words):
    assert run(["bench", "engine", *words]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    return line


def test_an_unknown_method_names_those_that_there_are(tmp_path, capsys):
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')
    words = ["--model", "M", "--prompts", f"{tmp_path}/p.jsonl", "-o", f"{tmp_path}/o"]
    assert "known: none, ngram" in mistake(capsys, *words, "--methods", "none,medusa")


def test_prompts_that_are_not_there_are_refused(tmp_path, capsys):
    words = ["--model", "M", "--prompts", f"{tmp_path}/p.jsonl", "-o", f"{tmp_path}/o"]
    assert "does not exist" in mistake(capsys, *words)


def test_a_folder_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')
    words = ["--model", "M", "--prompts", f"{tmp_path}/p.jsonl", "-o", str(tmp_path)]
    assert "holds no benchmark" in mistake(capsys, *words)


@pytest.mark.parametrize("place", ["/proc/bench", "x" * 250])
def test_a_place_that_takes_no_benchmark_is_refused_before_anything_runs(
    tmp_path, capsys, monkeypatch, place
):
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')
    monkeypatch.setattr(running.prompts, "read", lambda _: pytest.fail("it went on"))
    words = ["--model", "M", "--prompts", f"{tmp_path}/p.jsonl", "-o", str(tmp_path / place)]
    assert "choose a" in mistake(capsys, *words)


def test_a_tie_of_nan_is_refused(tmp_path, capsys):
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')
    words = ["--model", "M", "--prompts", f"{tmp_path}/p.jsonl", "-o", f"{tmp_path}/o"]
    assert "nan is not a finite number" in mistake(capsys, *words, "--near-tie", "nan")


def test_the_users_own_input_is_looked_at_before_vllm_is(without_vllm, capsys):
    prompts, *words = without_vllm
    assert "no such folder" in mistake(capsys, *words, "--policy", str(prompts.parent / "nobody"))
    assert "cost" in mistake(capsys, *words, "--cost", "no-such-machine")
    prompts.write_text('{"text": "hello"}\n{"text"')
    assert "line 2" in mistake(capsys, *words)


@pytest.fixture
def without_vllm(tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text('{"text": "hello"}\n')
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "vllm" else find(name, *more),
    )
    prompts = tmp_path / "p.jsonl"
    return prompts, "--model", "M", "--prompts", str(prompts), "-o", f"{tmp_path}/o"


def test_without_vllm_it_says_what_is_missing_and_leaves_no_folder(without_vllm, capsys):
    prompts, *words = without_vllm
    out = prompts.parent / "o"
    assert "needs vLLM" in mistake(capsys, *words)
    assert not out.exists()
    # What a benchmark that was killed as its servers started has left.
    (out / "logs").mkdir(parents=True)
    assert "needs vLLM" in mistake(capsys, *words)


def test_a_refusal_under_force_leaves_the_older_rounds(without_vllm, capsys):
    prompts, *words = without_vllm
    rounds = prompts.parent / "o" / "rounds.jsonl"
    rounds.parent.mkdir()
    rounds.write_text("{}\n")
    assert "needs vLLM" in mistake(capsys, *words, "--force")
    assert rounds.read_text() == "{}\n"

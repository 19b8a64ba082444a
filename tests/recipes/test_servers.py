"""eval/servers/compare.py on a stand-in for vLLM: turns, prompts, resuming, figures."""

import json

import pytest
from checkout import CHECKOUT, need, path_with, run_python
from stand_in import write_stand_in

need("eval")
STAND_IN = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

def option(name):
    return sys.argv[sys.argv.index(name) + 1]

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps("--speculative-config" in sys.argv).encode())

with open(os.environ["SAID"], "a") as said:
    speculates = "--speculative-config" in sys.argv
    print(json.dumps([sys.argv[1], speculates, sys.argv[2:]]), file=said)
if sys.argv[1] == "serve":
    HTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()
from urllib.request import urlopen
speculates = json.load(urlopen(option("--base-url")))
asked = [json.loads(line)["prompt"] for line in Path(option("--dataset-path")).open()]
assert len(asked) == int(option("--num-prompts"))
result = {"completed": len(asked), "output_throughput": 10.0}
result |= dict.fromkeys(("median_ttft_ms", "p95_ttft_ms", "median_itl_ms", "p95_itl_ms"), 1.0)
if speculates:
    result |= {"output_throughput": 15.0, "spec_decode_draft_tokens": 40,
               "spec_decode_accepted_tokens": 30, "spec_decode_num_drafts": 20}
Path(option("--result-dir"), option("--result-filename")).write_text(json.dumps(result))
"""
TRANSFORMERS = """
class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, model):
        return cls()

    def encode(self, text):
        return [text]

    def decode(self, ids):
        return f"<s>{ids[0]}"
"""


@pytest.fixture
def compare(tmp_path):
    """Runs a comparison of `none` and `mine` at two loads, where vLLM is a stand-in."""
    write_stand_in(tmp_path / "stand-in", STAND_IN)
    for name, text in (("transformers", TRANSFORMERS), ("pandas", "")):
        (tmp_path / "stand-in" / f"{name}.py").write_text(text)
    metadata = tmp_path / "stand-in" / "vllm-0.32.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"prompt {at}"}) + "\n" for at in range(30)))
    path = path_with(tmp_path / "stand-in")

    def run():
        words = [CHECKOUT / "eval/servers/compare.py", "--model", "M", "--prompts", prompts]
        words += ["--method", 'mine={"method": "adaspec"}', "--concurrency", "1,3"]
        words += ["--requests", "5", "--rounds", "2", "-o", tmp_path / "out"]
        return run_python(*words, PYTHONPATH=path, SAID=str(tmp_path / "said"))

    return run


def said(tmp_path):
    return [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]


def test_methods_take_turns_on_the_same_prompts_and_ratios_are_paired(compare, tmp_path):
    compare()
    assert [speculates for what, speculates, _ in said(tmp_path) if what == "serve"] == [
        *(False, True),
        *(True, False),
    ]
    for number in range(2):
        dealt = [
            json.loads(line)["prompt"]
            for load in ("warm-up", 1, 3)
            for line in (tmp_path / "out/prompts" / f"{number}-{load}.jsonl").open()
        ]
        assert len(dealt) == len(set(dealt)) == 3 + 5 + 12
        assert all(prompt.startswith("<s>prompt ") for prompt in dealt)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    rows = {(row["concurrency"], row["method"]): row for row in report["rows"]}
    assert list(rows) == [(1, "none"), (1, "mine"), (3, "none"), (3, "mine")]
    mine = rows[3, "mine"]
    assert mine["over_none"] == pytest.approx(1.5)
    assert mine["over_none_ci95"] == pytest.approx([1.5, 1.5])
    assert (mine["requests"], mine["output_tokens_per_s_by_round"]) == (24, [15.0, 15.0])
    assert (mine["acceptance_rate"], mine["acceptance_length"]) == (0.75, 2.5)
    assert rows[3, "none"]["acceptance_rate"] is None
    serve, bench = report["commands"]["mine"]
    assert " serve M " in serve and '{"method": "adaspec"}' in serve
    assert " bench serve " in bench
    (tmp_path / "said").unlink()
    (tmp_path / "out" / "results" / "1-mine-3.json").unlink()
    compare()
    assert [what for what, *_ in said(tmp_path)] == ["serve", "bench", "bench"]
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report

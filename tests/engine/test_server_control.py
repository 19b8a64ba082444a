"""Over HTTP: a mode file, requests' own arguments, and a Prometheus that asks what a board asks."""

import json
import math
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from test_metrics import total
from test_server import PATIENCE_S, Server, free_port

HERE = Path(__file__).parent
BOARD = HERE.parents[1] / "docs" / "grafana" / "adaspec.json"
PANELS_WITHOUT_DATA = {
    "Faults per minute, by stage",
    "Trace rows not written per second",
    "Drafts not verified per second",
}
"""What may stay empty where nothing goes wrong."""

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def served(models, truth, tmp_path_factory):
    """A server with a policy that expects something, and its mode file."""
    sys.path.append(str(HERE / "v2"))
    from wandering import written_policy

    truth()
    folder = tmp_path_factory.mktemp("served")
    path = folder / "mode"
    path.write_text("serve")
    config = {
        "method": "adaspec",
        "model": str(models / "eagle"),
        "policy": written_policy(folder / "policy"),
        "mode_file": str(path),
        "log_decisions_per_s": 100,
    }
    server = Server(models, folder, config)
    try:
        server.wait()
        yield server, path
    finally:
        server.stop()


def ask(server, prompt, **xargs):
    """The status and the body of a request with these extra arguments."""
    body = {"model": "target", "prompt": prompt, "max_tokens": 48, "temperature": 0}
    body |= {"ignore_eos": True, "vllm_xargs": xargs}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE_S)
        return answer.status, json.load(answer)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def verified(server):
    return total(server.metrics(), "drafted_tokens_total")


def test_requests_say_over_http_what_is_drafted_for_them(served, models, truth, prompts):
    from transformers import AutoTokenizer

    server, _ = served
    expected = AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())
    assert ask(server, prompts[0]) == (200, expected[0])
    before = verified(server)
    assert before > 0
    assert ask(server, prompts[1], adaspec="off") == (200, expected[1])
    assert verified(server) == before
    assert total(server.metrics(), "decisions_total", reason="limited") > 40
    assert ask(server, prompts[2], adaspec_cap=1) == (200, expected[2])
    for wrong in ({"adaspec": "of"}, {"adaspec_cap": 1000}, {"adaspec_sauce": "ngram"}):
        status, said = ask(server, prompts[0], **wrong)
        assert status == 400, said
        assert next(iter(wrong)) in said
    assert ask(server, prompts[3]) == (200, expected[3])
    assert total(server.metrics(), "faults_total") == 0
    lines = [each for each in server.log.read_text().splitlines() if "adaspec: decision " in each]
    assert len(lines) > 10
    told = json.loads(lines[-1].partition("adaspec: decision ")[2])
    assert told["requests"][0]["features"]


def test_the_mode_file_is_followed_and_shown(served, models, truth, prompts):
    from transformers import AutoTokenizer

    server, path = served
    expected = AutoTokenizer.from_pretrained(models / "target").batch_decode(truth())
    for mode in ("off", "shadow", "serve"):
        path.write_text(mode)
        time.sleep(0.1)
        ask(server, prompts[5])  # the step before still had the mode before
        before = verified(server)
        assert ask(server, prompts[4]) == (200, expected[4])
        assert (verified(server) > before) == (mode == "serve")
        shown = server.metrics()
        assert total(shown, "mode", mode=mode) == total(shown, "mode") == 1


def test_every_query_of_the_board_has_an_answer(served, prompts, tmp_path):
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus on the PATH (Debian: apt-get install prometheus)")
    if not BOARD.exists():
        pytest.skip("docs/ is not here: a source distribution leaves it out")
    server, _ = served
    port = free_port()
    target = f"127.0.0.1:{server.port}"
    (tmp_path / "prometheus.yml").write_text(
        "scrape_configs:\n- job_name: vllm\n  scrape_interval: 1s\n"
        f"  static_configs:\n  - targets: ['{target}']\n"
    )
    command = [binary, f"--config.file={tmp_path}/prometheus.yml"]
    command += [f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 15
        while time.monotonic() < until:
            for prompt in prompts:
                ask(server, prompt)
        for panel in json.loads(BOARD.read_text())["panels"]:
            for each in panel["targets"]:
                found = query(port, each["expr"])
                if panel["title"] not in PANELS_WITHOUT_DATA:
                    assert found, (panel["title"], each["expr"])
                    assert any(math.isfinite(value) for value in found), each["expr"]
    finally:
        process.terminate()
        process.wait(30)


def query(port, expression):
    """The values that Prometheus answers a query of the board with; it fails if that is none."""
    replaced = {"$__rate_interval": "15s", "$job": "vllm", "$instance": ".*"}
    for name, value in replaced.items():
        expression = expression.replace(name, value)
    address = f"http://127.0.0.1:{port}/api/v1/query?"
    asked = urllib.request.urlopen(address + urllib.parse.urlencode({"query": expression}))
    answer = json.load(asked)
    assert answer["status"] == "success"
    return [float(each["value"][1]) for each in answer["data"]["result"]]

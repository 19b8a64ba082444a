import html
import io
import re
import shutil
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
from rich.console import Console

from adaspec.evaluate.report import EvaluationReport
from adaspec.policy.static import StaticPolicy, parse_policy

RULE = parse_policy("hybrid-splice:4:20:2:2:5").rule
SIX = (
    "mine",
    "hybrid-splice:14:48:4:10:15",
    "budget:3",
    "a|b_c[red]\x1b[31mb",
    "own:0.3:1-8=5|3|1",
    "very_long_policy_folder_name_of_somebody_2026",
)
PLANTED = "</script><script>window.planted=1</script><img src=x onerror=window.planted=2>"


@pytest.fixture(scope="module")
def report_of_names(requests_of, report_of):
    """The report on policies and workloads of these names, for a test to change."""

    @cache
    def made(policies, workloads, loads):
        renamed = dict(zip(("edits", "talk"), workloads, strict=False))
        requests = [
            replace(each, workload=renamed[each.workload])
            for each in requests_of(workloads=len(workloads))
        ]
        named = [StaticPolicy(name, RULE) for name in policies]
        return report_of(requests, named, concurrency=loads)

    def make(policies=("mine",), workloads=("edits", "talk"), loads=(1, 4)):
        return deepcopy(made(policies, workloads, loads))

    return make


@pytest.fixture(scope="module")
def planted_page(report_of_names):
    report = report_of_names((f"mine{PLANTED}", "hybrid"), ("edits", f"talk{PLANTED}"))
    report["traces"] |= {"sources": [PLANTED], "target": PLANTED, "drafter": PLANTED}
    return EvaluationReport(report | {"cost": PLANTED, "command": f"eval {PLANTED}"}).page()


def without_scripts(page):
    return re.sub(r"(?s)(<script\b[^>]*>).*?</script>", r"\1", page)


def rows_of(report, policy):
    rows = {(row["workload"], row["policy"], row["concurrency"]): row for row in report["rows"]}
    return [rows["all", policy, load] for load in (1, 4)]


def printed(report, width=100):
    console = Console(file=io.StringIO(), width=width)
    EvaluationReport(report).print(console)
    return console.file.getvalue()


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_terminal_says_what_was_evaluated_and_what_it_came_to(report_of_names):
    report = report_of_names() | {"engine": "async"}
    report["traces"]["left_out"] = {"talk": {"unpaired": 40}, "edits": {"unpaired": 50}}
    one, four = (row["detail"] for row in rows_of(report, "static:best"))
    one["spec"], four["spec"] = "hybrid-splice:4:48:2:2:5", "fixed:neural:3"
    for row in rows_of(report, "vllm:best"):
        row["detail"]["spec"] = "fixed:neural:3"
    text = printed(report, 300)
    for said in (
        "edits 6, talk 6",
        "unpaired 90",
        "h100-llama-3.1-8b",
        "orders 1, resamples 3, seed 0",
        "async engine",
    ):
        assert said in text, said
    mixed = [entry for entry in report["headline"] if entry["workload"] == "all"]
    low, high = mixed[1]["lift_ci95"]
    over = line_of(text, "over static:best").split()
    said = f"{100 * mixed[1]['lift_over_static_best']:+.1f}%"
    assert over[4:6] == [said, f"±{50 * (high - low):.1f}"]
    assert f"{100 * mixed[1]['gap_closed']:.0f}%" in line_of(text, "gap closed ").split()
    worst = [f"{100 * entry['worst_workload_lift']:+.1f}%" for entry in mixed]
    assert line_of(text, "worst workload").split()[-2:] == worst
    assert all(line_of(text, name) for name in ("edits", "talk"))
    won = text.split("The winning settings on all workloads, mixed")[1]
    assert line_of(won, "static:best").split()[:3] == ["static:best", "1", one["spec"]]
    assert line_of(won, "vllm:best").split()[1:3] == ["1,", "4"]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_name_and_no_figure_is_cut_at_any_usual_width(report_of_names, width):
    report = report_of_names(SIX, ("instructcoder", "talk"))
    text = printed(report, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text and "\x1b" not in text
    for name in (*SIX, "instructcoder"):
        assert name.partition("\x1b")[0] in text
    for entry in report["headline"]:
        if entry["workload"] == "all":
            assert f"{100 * entry['lift_over_static_best']:+.1f}%" in text


def test_what_was_not_computed_is_a_dash_and_what_was_seen_in_training_is_marked(report_of_names):
    report = report_of_names()
    for entry in report["headline"]:
        entry["gap_closed"] = 0.5 if entry["concurrency"] == 1 else None
    for row in report["rows"]:
        if row["policy"] == "mine":
            row["detail"]["seen_in_training"] = True
            if row["concurrency"] == 1:
                row["speedup"] = float("nan")
    text = printed(report)
    assert line_of(text, "gap closed ").split()[3] == "–"
    speeds = text.split("Speedup over none on")[1]
    assert line_of(speeds, "mine †").count("–") == 1
    assert "not held out" in text
    assert '"speedup": null' in EvaluationReport(report).to_json()


def test_markup_planted_in_every_name_is_text_and_nothing_is_fetched(planted_page):
    shown, text = without_scripts(planted_page), html.escape(PLANTED)
    assert text in shown
    others = shown.replace(text, "")
    assert not re.search(r"<img|\ssrc(set)?=", others)
    assert all(link.startswith("#") for link in re.findall('href="([^"]*)"', others))


def test_every_workload_has_a_figure_and_its_tables_on_the_page(report_of_names):
    shown = without_scripts(EvaluationReport(report_of_names()).page())
    assert len(re.findall('id="figure-', shown)) == 2 * 3
    labels = re.findall('aria-label="([^"]*)"', shown)
    for place in ("all workloads, mixed", "edits", "talk"):
        assert sum(f" on {place}" in label for label in labels) == 3 + 4


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
CHROMEDRIVER = shutil.which("chromedriver") or ""


@pytest.fixture(scope="module")
def browser(planted_page, tmp_path_factory):
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("no chromium with its chromedriver here (Debian: chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="the 'dev' extra brings selenium")
    from selenium.webdriver.chrome.service import Service

    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(planted_page, encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        driver.get(path.as_uri())
        yield driver
    finally:
        driver.quit()


@pytest.mark.slow
def test_the_page_draws_its_figures_and_fits_everywhere(browser):
    assert browser.execute_script("return window.planted") is None
    assert PLANTED in browser.execute_script("return document.body.innerText")
    for width in (390, 1440):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.refresh()
        wide, beyond = browser.execute_script("""
            const right = (each) => each.getBoundingClientRect().right;
            const drawn = [...document.querySelectorAll(".main-svg, .main-svg text")];
            const beyond = Math.max(...drawn.map(right)) - right(document.querySelector("h1"));
            return [document.documentElement.scrollWidth, beyond];
        """)
        assert wide <= width
        assert beyond <= 0
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0

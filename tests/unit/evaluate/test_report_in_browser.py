"""The page of a report, driven in a headless Chromium as a reader would."""

from __future__ import annotations

import shutil

import pytest
import report_fakes as fakes

from adaspec.evaluate.report import EvaluationReport

pytestmark = pytest.mark.slow
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
CHROMEDRIVER = shutil.which("chromedriver") or ""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser with the page of a report open, in whose names markup is planted."""
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("no chromium with its chromedriver here (Debian: chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="the 'dev' extra brings selenium")
    from selenium.webdriver.chrome.service import Service

    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(EvaluationReport(fakes.planted_report()).page(), encoding="utf-8")
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


def test_the_page_draws_its_figures_and_fits_everywhere(browser):
    assert browser.execute_script("return window.planted") is None
    assert fakes.PLANTED in browser.execute_script("return document.body.innerText")
    for width in (390, 800, 1440):
        for scheme, paper, ink in (
            ("light", "rgb(255, 255, 255)", "rgb(31, 38, 46)"),
            ("dark", "rgb(20, 24, 29)", "rgb(232, 236, 240)"),
        ):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            browser.refresh()
            inner = browser.execute_script("""
                const ink = getComputedStyle(document.querySelector(".xtick text")).fill;
                const paper = getComputedStyle(document.body).backgroundColor;
                const right = (each) => each.getBoundingClientRect().right;
                const drawn = [...document.querySelectorAll(".main-svg, .main-svg text")];
                const beyond = Math.max(...drawn.map(right)) - right(document.querySelector("h1"));
                return [document.documentElement.scrollWidth, beyond, paper, ink];
            """)
            assert inner[0] <= width
            assert inner[1] <= 0
            assert inner[2:] == [paper, ink]
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0

"""The page of a report, driven in a headless Chromium as a reader would."""

from __future__ import annotations

import shutil

import pytest
from page_fakes import PLANTED, page_parts

from adaspec.evaluate.render.html import report_html
from adaspec.evaluate.report import Report

pytestmark = pytest.mark.slow
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
CHROMEDRIVER = shutil.which("chromedriver") or ""


@pytest.fixture(scope="module")
def parts():
    return page_parts()


@pytest.fixture(scope="module")
def browser(parts, tmp_path_factory):
    """A browser with the page of that report open."""
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("no chromium with its chromedriver here (Debian: chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="the 'dev' extra brings selenium")
    offline = pytest.importorskip("plotly.offline", reason="plotly is not installed")
    from selenium.webdriver.chrome.service import Service

    document, seen = parts
    path = tmp_path_factory.mktemp("page") / "report.html"
    page = report_html(Report(document), seen, offline.get_plotlyjs())
    path.write_text(page, encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        looks(driver, 1280, 900)
        driver.get(path.as_uri())
        yield driver
    finally:
        driver.quit()


def looks(driver, width, height, scheme="light"):
    """Give the page a size in pixels, and a scheme of colours."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(driver, script, *arguments):
    """What the script returns, once that is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 60).until(
        lambda d: d.execute_script(f"return {script}", *arguments), f"never: {script}"
    )


def in_view(driver, element):
    """Scroll to an element by its id, and return it once its plot is drawn."""
    driver.execute_script("document.getElementById(arguments[0]).scrollIntoView()", element)
    return until(
        driver,
        "document.getElementById(arguments[0]).querySelector('.main-svg') && "
        "document.getElementById(arguments[0])",
        element,
    )


def pick(driver, select, value):
    """Pick an option of a select as a reader does."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(driver.find_element(By.ID, select)).select_by_value(str(value))


def text_of(driver, element):
    return driver.execute_script(
        "return document.getElementById(arguments[0]).textContent", element
    )


def test_it_opens_without_an_error_and_planted_markup_does_nothing(browser):
    until(browser, "document.documentElement.dataset.ready")
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.planted") is None
    assert PLANTED in text_of(browser, "policies")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_policies_are_toggled_and_workload_and_load_are_picked(browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def drawn():
        return browser.execute_script("return document.getElementById('by-load').data.length")

    in_view(browser, "by-load")
    before = drawn()
    box = browser.find_element(By.CSS_SELECTOR, "#policies input:not(:checked)")
    box.send_keys(Keys.SPACE)
    assert drawn() == before + 1
    box.send_keys(Keys.SPACE)
    assert drawn() == before
    pick(browser, "workload", "edits")
    pick(browser, "load", 4)
    assert "edits, 4 at once" in text_of(browser, "bars-title")
    assert "edits, 4 at once" in text_of(browser, "gap-title")
    pick(browser, "workload", "all")
    pick(browser, "load", 1)


def test_a_point_tells_its_figures_where_the_pointer_is(browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    in_view(browser, "bars")
    bar = browser.find_element(By.CSS_SELECTOR, "#bars .bars .point")
    ActionChains(browser).move_to_element(bar).perform()
    hover = until(browser, "document.querySelector('#bars .hoverlayer').textContent")
    assert "x no speculation" in hover and "tokens/s" in hover


def test_the_gap_of_the_page_is_that_of_the_report(browser, parts):
    in_view(browser, "gap-plot")
    shown = browser.execute_script(
        "return document.getElementById('gap-plot').data.filter((trace) => trace.type === 'bar')"
        ".map((trace) => Array.from(trace.x))"
    )
    losses = [each for each in parts[1].losses if (each.workload, each.concurrency) == ("all", 1)]
    totals = [sum(values) for values in zip(*shown, strict=True)]
    assert totals == pytest.approx([1e3 * loss.token_s for loss in reversed(losses)])
    assert len(totals) == 3


def test_a_request_is_stepped_through_with_the_arrow_keys(browser, parts):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def press(key):
        ActionChains(browser).send_keys(key).perform()

    in_view(browser, "course")
    chosen = int(browser.execute_script("return document.getElementById('request').value"))
    passage = next(p for p in parts[1].passages if p.request == chosen and p.concurrency == 1)
    request, steps = parts[1].requests[chosen], passage.steps
    assert passage.policy.startswith("mine")
    browser.execute_script("document.getElementById('stepping').focus()")
    for at, step in enumerate(steps[:4]):
        assert text_of(browser, "step-name") == f"step {at + 1} of {len(steps)}"
        now = browser.find_elements(By.CSS_SELECTOR, "#text .now")
        emitted = request.output_tokens[step["position"] : step["position"] + step["emitted"]]
        assert [chip.text for chip in now] == [str(token) for token in emitted]
        assert f"{step['accepted']} accepted" in text_of(browser, "drafts") or not (
            step["neural_len"] + step["ngram_len"]
        )
        assert f"{step['reasons']['price']:.3f} tokens: the price" in text_of(browser, "why")
        press(Keys.ARROW_RIGHT)
    press(Keys.ARROW_LEFT)
    assert text_of(browser, "step-name") == f"step 4 of {len(steps)}"
    press(Keys.END)
    assert text_of(browser, "step-name") == f"step {len(steps)} of {len(steps)}"
    press(Keys.HOME)
    pick(browser, "policy", "hybrid-splice:2:8:2:1:4")
    assert "goes by its rule" in text_of(browser, "why")
    assert browser.execute_script("return document.getElementById('curves').hidden")


def test_everything_is_reached_by_tab(browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = set()
    for _ in range(80):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        reached.add(browser.execute_script("return document.activeElement.id"))
    assert {"workload", "load", "gap-table", "policy", "request", "stepping"} <= reached
    assert {"next", "step", "drafts"} <= reached


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_phone_and_desktop_in_light_and_dark(browser, width, scheme):
    looks(browser, width, 800, scheme)
    for plot in ("by-load", "bars", "gap-plot", "scatter", "course"):
        in_view(browser, plot)
    wide = until(browser, "document.documentElement.scrollWidth")
    assert wide <= width
    paper = "getComputedStyle(document.body).backgroundColor"
    assert (
        until(browser, paper) == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[scheme]
    )
    ink = "document.getElementById('by-load').layout.font.color"
    assert until(browser, ink) == {"light": "#1f262e", "dark": "#e8ecf0"}[scheme]
    assert browser.get_log("browser") == []

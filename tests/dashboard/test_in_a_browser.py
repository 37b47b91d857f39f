"""The page in a real browser: glyphs are drawn, no plot is empty, no JavaScript error."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import dask.array as da
import pytest
from distributed import Client, LocalCluster

import fpmdask
from tests.dashboard.served import sessions_of

pytest.importorskip("bokeh", reason="bokeh serves the dashboard")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
PLOTS = ("speed-functions", "shares", "timeline", "bytes-per-link", "memory", "runs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BROWSER and DRIVER),
        reason="no chromium and chromedriver: apt-get install chromium chromium-driver",
    ),
]
# Figures of the document: rows of the data of each glyph, and the colours inside of the axes, on
# the figure's own canvas.
LOOK = """
const views = [...Bokeh.index.all_views()];
const found = [];
for (const doc of Bokeh.documents) {
  for (const model of doc._all_models.values()) {
    if (model.type == "DataTable")
      found.push({title: "table", rows: [model.source.get_length() || 0], colours: 1});
    if (model.type != "Figure") continue;
    const rows = model.renderers.map(r => r.data_source?.get_length?.() || 0);
    const view = views.find(one => one.model == model);
    const canvas = view.canvas_view.primary.el, inside = view.frame_view.bbox;
    const ratio = view.canvas_view.pixel_ratio, seen = new Set();
    const place = [inside.left, inside.top, inside.width, inside.height];
    const [x, y, width, height] = place.map(pixels => Math.round(pixels * ratio));
    if (width > 0 && height > 0) {
      const data = canvas.getContext("2d").getImageData(x, y, width, height).data;
      for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] && Math.max(data[i], data[i+1], data[i+2]) -
            Math.min(data[i], data[i+1], data[i+2]) > 40)
          seen.add(data[i] << 16 | data[i+1] << 8 | data[i+2]);
    }
    found.push({title: model.title.text, rows: rows, colours: seen.size});
  }
}
return found;
"""
# The words in the rows of a table.
ROWS = """
const found = [];
const walk = (node) => {
  if (node.classList?.contains("slick-row"))
    found.push([...node.children].map(cell => cell.textContent));
  [...node.shadowRoot?.children ?? [], ...node.children].forEach(walk);
};
walk(document.body);
return found;
"""
GATE = threading.Event()


def waiting(units):
    GATE.wait(30)
    time.sleep(1e-3 * units)  # long enough to be timed


@contextmanager
def served():
    """Give the scheduler of a cluster in this process, a balancer, and the dashboard's URL."""
    options = {"n_workers": 3, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address="127.0.0.1:0", **options) as cluster,
        Client(cluster, set_as_default=True) as client,
        fpmdask.Balancer(client) as balancer,
    ):
        scheduler = cluster.scheduler
        yield scheduler, balancer, f"http://127.0.0.1:{scheduler.http_server.port}"


@pytest.fixture
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    # a page that may be gone back to keeps its connection
    options.add_argument("--disable-features=BackForwardCache")
    options.add_argument(f"--user-data-dir={tmp_path}/profile")
    options.add_argument("--window-size=1400,1100")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def is_full(figure):
    return any(figure["rows"]) and figure["colours"] > 0


def drawn(driver, figures):
    """Return what the page shows, once all of its figures have something to show."""
    late, found = time.monotonic() + 30, []
    while time.monotonic() < late and not (len(found) == figures and all(map(is_full, found))):
        time.sleep(0.1)
        if driver.execute_script("return typeof Bokeh == 'object' && Bokeh.documents.length > 0"):
            found = driver.execute_script(LOOK)
    return found


def test_every_plot_is_drawn_without_a_javascript_error_until_its_page_is_closed(browser):
    with served() as (scheduler, balancer, root):
        a = da.random.random((900, 900), chunks=300).persist()
        balancer.matmul(a, a, max_rounds=2)
        pages = {"/fpmdask": len(PLOTS), **{f"/individual-fpmdask-{plot}": 1 for plot in PLOTS}}
        for page, figures in pages.items():
            browser.get(root + page)
            found = drawn(browser, figures)
            assert len(found) == figures, (page, found)
            assert all(map(is_full, found)), (page, found)
            severe = [
                entry
                for entry in browser.get_log("browser")
                if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
            ]
            # Dask's own template takes nothing from elsewhere
            assert not severe, (page, severe)
        [session] = sessions_of(scheduler, page)
        assert session.connection_count == 1
        browser.get("about:blank")
        late = time.monotonic() + 30
        while session.connection_count and time.monotonic() < late:
            time.sleep(0.02)
        assert session.connection_count == 0


def test_the_table_of_runs_shows_how_one_ends_that_went_on(browser):
    def shows(state):
        late = time.monotonic() + 30
        while time.monotonic() < late:
            rows = browser.execute_script(ROWS)
            if len(rows) == 1 and state in rows[0]:
                return True
            time.sleep(0.1)
        return False

    GATE.clear()
    with served() as (_, balancer, root), ThreadPoolExecutor(1) as thread:
        browser.get(f"{root}/individual-fpmdask-runs")
        going = thread.submit(balancer.partition, waiting, 30, max_rounds=1)
        try:
            assert shows("running")
        finally:
            GATE.set()
        going.result()
        assert shows("finished")

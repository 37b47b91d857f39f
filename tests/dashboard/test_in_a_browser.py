"""The page in a real browser: glyphs are drawn, no plot is empty, no JavaScript error."""

import shutil
import time

import dask.array as da
import pytest
from distributed import Client, LocalCluster

import fpmdask

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
# figures of the document: glyphs that have data, and colours that are on their canvas
LOOK = """
const found = [];
for (const doc of Bokeh.documents) {
  for (const model of doc._all_models.values()) {
    if (model.type == "Figure") {
      const rows = model.renderers.map(r => (r.data_source.get_length ?
        r.data_source.get_length() : 0) || 0);
      found.push({title: model.title.text, rows: rows});
    }
    if (model.type == "DataTable")
      found.push({title: "table", rows: [model.source.get_length() || 0]});
  }
}
const canvases = [];
const walk = (node) => {
  if (node.tagName == "CANVAS" && node.width > 50 && node.height > 50) canvases.push(node);
  if (node.shadowRoot) for (const child of node.shadowRoot.children) walk(child);
  for (const child of node.children) walk(child);
};
walk(document.body);
const colours = canvases.map(canvas => {
  const context = canvas.getContext("2d");
  if (!context) return 0;
  const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] && Math.max(data[i], data[i+1], data[i+2]) -
        Math.min(data[i], data[i+1], data[i+2]) > 40)
      seen.add(data[i] << 16 | data[i+1] << 8 | data[i+2]);
  return seen.size;
});
return {figures: found, colours: colours};
"""


@pytest.fixture
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path}/profile")
    options.add_argument("--window-size=1400,1100")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def drawn(driver, figures):
    """Return what the page shows, once all of its figures have something to show."""
    late = time.monotonic() + 30
    while True:
        if driver.execute_script("return typeof Bokeh == 'object' && Bokeh.documents.length > 0"):
            found = driver.execute_script(LOOK)
            full = [figure for figure in found["figures"] if any(figure["rows"])]
            if len(full) >= figures or time.monotonic() > late:
                return found
        assert time.monotonic() < late, "the page has not loaded bokeh"
        time.sleep(0.2)


def test_every_plot_is_drawn_without_a_javascript_error(browser):
    options = {"n_workers": 3, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address="127.0.0.1:0", **options) as cluster,
        Client(cluster, set_as_default=True) as client,
        fpmdask.Balancer(client) as balancer,
    ):
        a = da.random.random((900, 900), chunks=300).persist()
        balancer.matmul(a, a, max_rounds=2)
        root = f"http://127.0.0.1:{cluster.scheduler.http_server.port}"
        pages = {"/fpmdask": len(PLOTS), **{f"/individual-fpmdask-{plot}": 1 for plot in PLOTS}}
        for page, figures in pages.items():
            browser.get(root + page)
            found = drawn(browser, figures)
            assert len(found["figures"]) == figures, page
            assert all(any(figure["rows"]) for figure in found["figures"]), (page, found)
            if not page.endswith("runs"):
                assert any(found["colours"]), (page, found)
            severe = [
                entry
                for entry in browser.get_log("browser")
                if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
            ]
            # Dask's own template takes nothing from elsewhere
            assert not severe, (page, severe)

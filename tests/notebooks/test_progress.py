"""A notebook shows how far a call is: one output, updated, from threads and `await` too."""

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")
nbclient = pytest.importorskip("nbclient", reason="the notebooks extra is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BEGIN = """
import time, warnings
from threading import Thread
import numpy as np
from distributed import Client
import fpmdask

warnings.simplefilter("ignore")

def slow(block):
    time.sleep(0.1)
    return block

options = dict(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
x, lengths = np.arange(120.0), [5] * 24
"""
CALLED = """
with Client(**options) as client:
    fpmdask.Balancer(client, progress=True).map_blocks(slow, x, distribution=lengths)
"""
AWAITED = """
async with Client(asynchronous=True, **options) as client:
    balancer = await fpmdask.Balancer(client, progress=True)
    y = await balancer.map_blocks(slow, x, distribution=lengths)
    del y
"""
IN_THREADS = """
with Client(**options) as client:
    balancer = fpmdask.Balancer(client, progress=True)
    call = lambda: balancer.map_blocks(slow, x, distribution=lengths)
    threads = [Thread(target=call) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""
BY_DEFAULT = """
with Client(**options) as client:
    fpmdask.Balancer(client).map_blocks(slow, x, distribution=lengths)
"""
NONE = """
with Client(**options) as client:
    fpmdask.Balancer(client, progress=False).map_blocks(slow, x, distribution=lengths)
"""


class Recording(nbclient.NotebookClient):
    """Keeps the fractions that each output has shown, by its display id."""

    def process_message(self, msg, cell, cell_index):
        html = msg["content"].get("data", {}).get("text/html", "")
        if found := re.search(r'fpmdask-progress" data-fraction="([\d.]+)"', html):
            output = msg["content"]["transient"]["display_id"]
            of_cell = self.fractions.setdefault(cell_index, {})
            of_cell.setdefault(output, []).append(float(found[1]))
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Return a notebook that was executed, and cell → output → fractions."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [BEGIN, CALLED, AWAITED, IN_THREADS, BY_DEFAULT, NONE]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        client = Recording(made, timeout=120, resources={"metadata": {"path": str(folder)}})
        client.fractions = {}
        client.execute()
    return made, client.fractions


def displayed(cell):
    """Return the outputs but for what Dask logs; anything else is an error that shows it."""
    logged = [output for output in cell.outputs if output.output_type == "stream"]
    assert all("distributed" in output.text for output in logged), logged
    return [output for output in cell.outputs if output.output_type != "stream"]


@pytest.mark.parametrize(("cell", "outputs"), [(1, 1), (2, 1), (3, 2), (4, 1)])
def test_fractions_between_0_and_1_appear_and_rise_to_1(executed, cell, outputs):
    notebook, fractions = executed
    assert len(fractions[cell]) == outputs
    for shown in fractions[cell].values():
        assert shown == sorted(shown)
        assert any(0 < fraction < 1 for fraction in shown)
        assert shown[-1] == 1
    last = [output["data"]["text/html"] for output in displayed(notebook.cells[cell])]
    assert len(last) == outputs
    assert all("map_blocks" in html and "finished after" in html for html in last)


def test_who_wants_no_progress_sees_none(executed):
    notebook, fractions = executed
    assert set(fractions) == {1, 2, 3, 4}
    assert displayed(notebook.cells[5]) == []

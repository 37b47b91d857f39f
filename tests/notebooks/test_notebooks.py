"""The notebooks run from the first cell to the last."""

import os
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="the notebooks extra is not installed")
nbclient = pytest.importorskip("nbclient", reason="the notebooks extra is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Their labs have CPU quotas.
ROOTS = {"rebalance_xgboost"}
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem in ROOTS and os.geteuid():
        pytest.skip("its lab needs root")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = jupytext.read(path)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=folder).execute()
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in (data := output.get("data", {})) or "<svg" in str(data.get("text/html"))
    ]
    assert pictures, "a notebook shows a picture of its run"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS

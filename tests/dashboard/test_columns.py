"""Plots are pure functions of a snapshot: columns of one length each, at any number of workers."""

import pytest

bokeh = pytest.importorskip("bokeh.models", reason="bokeh draws the dashboard")

from bokeh.document import Document  # noqa: E402

from fpmdask.dashboard.figures import Drawing, send  # noqa: E402  (they need bokeh)
from fpmdask.dashboard.plots import PLOTS  # noqa: E402
from fpmdask.dashboard.state import (  # noqa: E402
    LinkBytes,
    Memory,
    Piece,
    Run,
    Share,
    Snapshot,
    SpeedFunction,
    Speeds,
)
from fpmdask.models import PiecewiseLinearModel  # noqa: E402


def full(workers, state="running"):
    names = tuple(f"w{n}" for n in range(workers))
    model = PiecewiseLinearModel.from_points([10, 20], [1.0, 4.0])
    run = Run("sort-1", "sort", 0.0, 2.0, state, "sort", 0.5, workers, "measured", "")
    return Snapshot(
        workers=names,
        run=run,
        now=2.0,
        speeds=Speeds("sort", tuple(SpeedFunction(n, model, {10.0: 0.1}, 10) for n in names), 1.0),
        shares=tuple(Share(name, 100, 50, 4.0) for name in names),
        pieces=tuple(Piece(name, "compute", 0.0, 1.0) for name in names)
        + tuple(Piece(name, "wait", 1.0, 1.0, open=True) for name in names),
        predicted=tuple(Piece(name, "compute", 0.0, 3.0) for name in names),
        links=tuple(LinkBytes(name, names[0], 8) for name in names[1:]),
        memory=tuple(Memory(name, 1, 2, 3, 4, 60, 100) for name in names),
        runs=(run,),
    )


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
@pytest.mark.parametrize("workers", [0, 1, 2, 64])
def test_columns_of_a_source_are_of_one_length(plot, workers):
    snapshot = full(workers) if workers else Snapshot()
    found = plot.columns(snapshot)
    assert found.keys() == plot.columns(Snapshot()).keys()
    for name, columns in found.items():
        assert columns.keys() == plot.columns(Snapshot())[name].keys()
        assert len({len(column) for column in columns.values()}) == 1
    counts = [len(next(iter(columns.values()))) for columns in found.values()]
    if workers > 1:
        assert all(counts), f"nothing is drawn of {counts}"
    if not workers:
        assert not any(counts)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_an_empty_plot_says_what_to_do(plot):
    assert "Run " in plot.title(Snapshot()) or any(
        word in plot.title(Snapshot()) for word in ("Call ", "Start ")
    )
    assert plot.title(full(2)) != plot.title(Snapshot())


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_a_drawing_shows_a_snapshot_and_names_its_workers(plot):
    drawing = Drawing(plot)
    drawing.update(full(64))
    for name, columns in plot.columns(full(64)).items():
        assert plain(drawing.sources[name].data) == columns
    assert drawing.title.text == plot.title(full(64))
    for axis in plot.lanes:
        named = getattr(drawing.root, f"{axis}axis")[0]
        assert named.major_label_overrides[63] == "w63"
        assert isinstance(named.major_label_policy, bokeh.NoOverlap)
        assert len(named.ticker.ticks) == 32


def plain(data):
    """Return columns as lists: numbers are sent as arrays."""
    return {
        name: [getattr(value, "tolist", lambda value=value: value)() for value in column]
        for name, column in data.items()
    }


def test_only_rows_that_were_added_are_sent():
    """What a document tells the browser; a subclass of a model would break bokeh's pages."""
    source, document = bokeh.ColumnDataSource({"a": [], "b": []}), Document()
    document.add_root(source)
    told = []
    document.on_change(lambda event: told.append(event))
    before = {}
    for count in (2, 2, 3):
        now = {"a": [*range(count)], "b": ["x"] * count}
        send(source, now, before)
        before = now
    whole, streamed = told
    assert (whole.kind, streamed.kind) == ("ColumnDataChanged", "ColumnsStreamed")
    assert plain(streamed.data) == {"a": [2], "b": ["x"]}
    send(source, {"a": [5], "b": ["y"]}, before)
    assert plain(source.data) == {"a": [5], "b": ["y"]}
    assert [event.kind for event in told[2:]] == ["ColumnDataChanged"]


def test_wide_intervals_do_not_flatten_the_speed_functions():
    """The page is as high as curves and points are; an interval goes beyond it."""
    [plot] = [plot for plot in PLOTS if plot.name == "speed-functions"]
    sources = {name: bokeh.ColumnDataSource(data) for name, data in plot.columns(full(1)).items()}
    drawn, _ = plot.draw(sources)
    shown = {renderer.data_source for renderer in drawn.y_range.renderers}
    assert shown == {sources["curves"], sources["points"]}
    assert {glyph.glyph.__class__ for glyph in drawn.y_range.renderers} == {
        bokeh.Segment,
        bokeh.Scatter,
    }

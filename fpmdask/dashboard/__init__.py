"""fpmdask in Dask's dashboard: the page ``/fpmdask`` and one page per plot.

In the scheduler's process, on its event loop. While a page is open, `snapshot` looks at the
coordinator twice a second; each module of `plots` turns that snapshot into the columns of one plot,
by a pure function, and draws them with bokeh.
"""

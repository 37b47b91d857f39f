"""The pages on real schedulers: registered at run time, served."""

import asyncio
import gc
import json
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import dask.array as da
import pytest
from distributed import Scheduler, wait

import fpmdask
from fpmdask.runtime.dask_private import add_dashboard_pages
from tests.dashboard.served import cluster, get, sessions_of, url_of

pytest.importorskip("bokeh", reason="bokeh serves the dashboard")
from bokeh.client import pull_session
from bokeh.models import ColumnDataSource

from fpmdask.dashboard.snapshot import SAME_SECONDS

PLOTS = ("speed-functions", "shares", "timeline", "bytes-per-link", "memory", "runs")


@pytest.mark.slow
@cluster()
async def test_pages_are_served_beside_those_that_were_served_before(c, s, *workers):
    assert (await get(s, "/status"))[0] == 200
    assert (await get(s, "/fpmdask"))[0] == 404
    await fpmdask.Balancer(c)
    await fpmdask.Balancer(c)
    code, body = await get(s, "/fpmdask")
    assert code == 200
    assert "cdn.bokeh.org" not in body
    assert 'src="static/js/bokeh.min.js' in body
    for page in ("/fpmdask", "/status"):
        _, body = await get(s, page)
        assert body.count('<a href="fpmdask">') == 1, page
    for plot in PLOTS:
        assert (await get(s, f"/individual-fpmdask-{plot}"))[0] == 200
    _, listed = await get(s, "/individual-plots.json")
    assert {f"/individual-fpmdask-{plot}" for plot in PLOTS} <= {*json.loads(listed).values()}


@pytest.mark.slow
@cluster(scheduler_kwargs={"dashboard": True, "dashboard_address": ":0", "http_prefix": "me/here"})
async def test_pages_have_the_prefix_of_the_dashboard(c, s, *workers):
    await fpmdask.Balancer(c)
    code, body = await get(s, "/me/here/fpmdask")
    assert (code, "/me/here/static/js/bokeh.min.js" in body) == (200, True)
    assert (await get(s, "/fpmdask"))[0] == 404


@pytest.mark.slow
@cluster()
async def test_two_clusters_in_one_process_have_pages_of_their_own(c, s, *workers):
    await fpmdask.Balancer(c)
    async with Scheduler(dashboard=True, dashboard_address=":0", port=0, host="127.0.0.1") as other:
        assert (await get(other, "/fpmdask"))[0] == 404
        pages = {"/fpmdask": lambda scheduler, variables, document: None}
        assert add_dashboard_pages(other, pages, ["/fpmdask"])
        assert not add_dashboard_pages(other, pages, ["/fpmdask"])
        assert (await get(other, "/fpmdask"))[0] == 200
        assert (await get(other, "/status"))[1].count('<a href="fpmdask">') == 1
    assert (await get(s, "/fpmdask"))[0] == 200


def test_nothing_happens_where_bokeh_is_missing(tmp_path):
    """In a process of its own, where neither bokeh nor prometheus_client can be imported."""
    import subprocess
    import sys

    code = """
import asyncio, sys
sys.modules["bokeh"] = sys.modules["prometheus_client"] = None
from distributed import Client, Scheduler
import fpmdask
async def main():
    async with Scheduler(dashboard_address=":0", port=0, host="127.0.0.1") as s:
        async with Client(s.address, asynchronous=True) as c:
            await fpmdask.Balancer(c)
            print(sorted(name for name in sys.modules if name.startswith("fpmdask.dashboard")))
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, "Traceback" in done.stderr) == ("[]\n", False), done.stderr


def shown(url, session):
    """Return the data of all sources of an open page, as the server has them now.

    A session that pulls again would put its own document in the place of the server's.
    """
    again = pull_session(url=url, session_id=session.id)
    sources = again.document.select({"type": ColumnDataSource})
    again.close()
    return sorted(repr(sorted(source.data.items(), key=repr)) for source in sources)


def own_loop():
    """Prepare a thread for bokeh's client, which has an event loop of its own."""
    asyncio.set_event_loop(asyncio.new_event_loop())


def closed(session):
    session.close()
    asyncio.get_event_loop().close()


@pytest.mark.slow
@cluster()
async def test_what_a_page_shows_changes_during_a_product(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    a = c.persist(da.ones((3600, 3600), chunks=900))
    await wait(a)
    loop, url = asyncio.get_running_loop(), url_of(s, "/fpmdask")
    with ThreadPoolExecutor(1, initializer=own_loop) as thread:
        session = await loop.run_in_executor(thread, partial(pull_session, url=url))
        for _ in range(8):  # one may end before the page has been asked for twice
            seen = [await loop.run_in_executor(thread, shown, url, session)]
            product = asyncio.ensure_future(balancer.matmul(a, a, max_rounds=2))
            while not product.done():
                found = await loop.run_in_executor(thread, shown, url, session)
                if not product.done() and found != seen[-1]:
                    seen.append(found)
            await product
            if len(seen) > 2:
                break
        await loop.run_in_executor(thread, closed, session)
    assert len(seen) > 2, "nothing has changed while the product was computed"


def data_of(document):
    sources = document.select({"type": ColumnDataSource})
    return sorted(repr(sorted(source.data.items(), key=repr)) for source in sources)


async def changed(session, before, update):
    """Return the data of a document once it has changed; snapshots are shared for a moment."""
    while (found := data_of(session.document)) == before:
        await session.with_document_locked(update)
        await asyncio.sleep(0.02)
    return found


@pytest.mark.slow
@cluster()
async def test_a_page_that_was_closed_is_not_updated(c, s, *workers):
    balancer = await fpmdask.Balancer(c)
    loop, url = asyncio.get_running_loop(), url_of(s, "/fpmdask")
    with ThreadPoolExecutor(1, initializer=own_loop) as thread:
        opened = await loop.run_in_executor(thread, partial(pull_session, url=url))
        [session] = sessions_of(s, "/fpmdask")
        [regular] = session.document.session_callbacks
        [page] = session.document.components
        assert session.connection_count == 1
        before = data_of(session.document)
        await balancer.sort(da.ones(300, chunks=100))
        seen = await changed(session, before, regular.callback)
        await loop.run_in_executor(thread, closed, opened)
    while session.connection_count:
        await asyncio.sleep(0.01)
    await balancer.sort(da.ones(300, chunks=100))
    await asyncio.sleep(SAME_SECONDS)
    await session.with_document_locked(regular.callback)
    assert data_of(session.document) == seen
    await changed(session, seen, page.update)  # there was something to show
    context = session.document.session_context.server_context
    session.request_expiration()
    await context.application_context._cleanup_sessions(0)
    assert session.destroyed  # and with it what called back


@pytest.mark.slow
@cluster()
async def test_a_page_does_not_outlive_its_session(c, s, *workers):
    await fpmdask.Balancer(c)
    loop = asyncio.get_running_loop()
    for path in ("/fpmdask", "/individual-fpmdask-speed-functions"):
        with ThreadPoolExecutor(1, initializer=own_loop) as thread:
            opened = await loop.run_in_executor(thread, partial(pull_session, url=url_of(s, path)))
            [session] = sessions_of(s, path)
            [page] = session.document.components
            references = [weakref.ref(page), weakref.ref(session.document), weakref.ref(session)]
            references += [weakref.ref(drawing) for drawing in page.drawings]
            del page
            await loop.run_in_executor(thread, closed, opened)
        while session.connection_count:
            await asyncio.sleep(0.01)
        context = session.document.session_context.server_context
        session.request_expiration()
        await context.application_context._cleanup_sessions(0)
        del opened, context, session
        assert sessions_of(s, path) == []
        for _ in range(50):  # until what tornado still has to call has been called
            gc.collect()
            if all(reference() is None for reference in references):
                break
            await asyncio.sleep(0.05)
        assert [reference() for reference in references] == [None] * len(references)

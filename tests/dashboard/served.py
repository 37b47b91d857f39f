"""Clusters in this process whose dashboards are served, and what these answer."""

from distributed.utils_test import gen_cluster
from tornado.httpclient import AsyncHTTPClient

from tests.tuned import SHORT_ROUNDS


def cluster(**options):
    settings = {
        "client": True,
        "nthreads": [("127.0.0.1", 1)] * 3,
        "config": SHORT_ROUNDS,
        "timeout": 60,
        "scheduler_kwargs": {"dashboard": True, "dashboard_address": ":0"},
        # bokeh keeps what it has loaded
        "clean_kwargs": {"threads": False},
    }
    return gen_cluster(**{**settings, **options})


def url_of(scheduler, path):
    return f"http://127.0.0.1:{scheduler.http_server.port}{path}"


async def get(scheduler, path):
    answer = await AsyncHTTPClient().fetch(url_of(scheduler, path), raise_error=False)
    return answer.code, answer.body.decode()


def sessions_of(scheduler, page):
    """Return the sessions of a page, as the server has them."""
    applications = scheduler.http_application.applications
    served = [a for a in applications if page in getattr(a, "app_paths", ())]
    return served[-1].get_sessions(page)

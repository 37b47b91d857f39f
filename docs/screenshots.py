"""Takes the pictures of the dashboard in `docs/figures/`, of `fpmdask demo`'s workers and program.

    python docs/screenshots.py

Needs chromium and chromedriver (Debian's, say) and ``pip install -e ".[test]"``; no root.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import dask.array as da
from distributed import Client
from selenium import webdriver

import fpmdask
from fpmdask.cli.out_of_core import RowsTimesMatrix
from fpmdask.lab import Lab
from fpmdask.timing import TimingPolicy

FOLDER = Path(__file__).parent / "figures"
# So long a page is open before its picture is taken.
SHOWN_SECONDS = 4.0


def browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    definition = replace(Lab.from_toml("cliff4").definition, dashboard=True)
    definition = replace(definition, name=f"screenshots-{os.getpid()}")
    timing = TimingPolicy(min_seconds=0.2, budget_seconds=0.4, warmup=0, min_repetitions=1)
    driver = browser()
    with (
        Lab(definition) as lab,
        Client(lab.scheduler_address) as client,
        fpmdask.Balancer(client) as balancer,
    ):
        root = str(client.dashboard_link).removesuffix("/status")

        def take(name: str, page: str, width: int, height: int) -> None:
            driver.set_window_size(width, height)
            driver.get(root + page)
            time.sleep(SHOWN_SECONDS)
            driver.save_screenshot(str(FOLDER / f"{name}.png"))

        try:
            a = da.random.default_rng(0).random((2048, 2048), chunks=512).persist()
            balancer.matmul(a, a)
            balancer.partition(RowsTimesMatrix(0), 65536, epsilon=0.25, timing=timing)
            take("speed-functions", "/individual-fpmdask-speed-functions", 900, 500)
            take("dashboard", "/fpmdask", 1500, 1100)
            balancer.models.forget()
            balancer.matmul(a, a, epsilon=0.05, max_rounds=4)
            take("timeline", "/individual-fpmdask-timeline", 900, 400)
        finally:
            driver.quit()


if __name__ == "__main__":
    main()

"""Takes the pictures of the dashboard in `docs/figures/`, while products are computed.

    python docs/screenshots.py

Needs chromium and chromedriver (Debian's, say) and ``pip install -e ".[test]"``; no root.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import dask.array as da
from distributed import Client, wait
from selenium import webdriver

import fpmdask
from fpmdask.lab import Lab

FOLDER = Path(__file__).parent / "figures"
PAGES = {
    "dashboard": ("/fpmdask", 1500, 1100),
    "speed-functions": ("/individual-fpmdask-speed-functions", 900, 500),
    "timeline": ("/individual-fpmdask-timeline", 900, 400),
}
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
    definition = replace(Lab.from_toml("demo4").definition, dashboard=True)
    definition = replace(definition, name=f"screenshots-{os.getpid()}")
    with (
        Lab(definition) as lab,
        Client(lab.scheduler_address) as client,
        fpmdask.Balancer(client) as balancer,
    ):
        a = da.random.default_rng(0).random((4096, 4096), chunks=1024).persist()
        wait(a)
        ended = threading.Event()

        def products() -> None:
            while not ended.is_set():
                balancer.matmul(a, a, epsilon=0.05, max_rounds=4)
                balancer.models.forget()

        working = threading.Thread(target=products)
        working.start()
        driver = browser()
        try:
            root = str(client.dashboard_link).removesuffix("/status")
            for name, (page, width, height) in PAGES.items():
                driver.set_window_size(width, height)
                driver.get(root + page)
                time.sleep(SHOWN_SECONDS)
                driver.save_screenshot(str(FOLDER / f"{name}.png"))
        finally:
            driver.quit()
            ended.set()
            working.join()


if __name__ == "__main__":
    main()

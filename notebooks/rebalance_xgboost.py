# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # XGBoost on unequal workers, without a line of it changed
#
# A synchronous program that leaves data where it is takes as long as its slowest worker: after each
# level of a tree all workers add up their histograms. `rebalance` returns the same rows, placed so
# that all finish together. Everything here runs on this machine.

# %%
# %matplotlib inline
import os
import time
from urllib.parse import urlparse

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import xgboost
from distributed import Client, wait
from IPython.display import display
from xgboost.collective import Config
from xgboost.dask import DaskQuantileDMatrix, train

import fpmdask

# %% [markdown]
# ## Workers that are not equal
#
# A lab emulates a heterogeneous cluster. `demo4` has four workers with 0.60 to 0.15 of a core: here
# by root's CPU quotas, as XGBoost's sockets do not survive that a process is stopped and goes on,
# which is how labs work without root. On your own cluster leave this cell out and give the next one
# your scheduler's address.

# %%
lab = fpmdask.Lab.from_toml("demo4", name=f"xgboost-{os.getpid()}", backend="root").up()
quotas = {worker.name: worker.cpu for worker in lab.workers}
display(quotas)

# %%
client = Client(lab.scheduler_address)
balancer = fpmdask.Balancer(client)

# %% [markdown]
# ## Rows, placed evenly
#
# Each worker makes as many of them.

# %%
EACH, COLUMNS = 30_000, 10


def features(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((EACH, COLUMNS), dtype=np.float32)


def labels(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.float32)


made = {
    ("x", n, 0): client.submit(features, n, key=("x", n, 0), workers=[name])
    for n, name in enumerate(quotas)
}
chunks = (EACH,) * len(quotas)
x = da.Array(made, "x", (chunks, (COLUMNS,)), dtype=np.float32)
y = x.map_blocks(labels, drop_axis=1, dtype=np.float32).persist()
wait([x, y])
display(x)

# %% [markdown]
# ## Training
#
# On a lab the tracker has to be told its address; elsewhere `coll_cfg` is not needed.

# %%
params = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 6, "nthread": 1}
tracker = Config(tracker_host_ip=urlparse(lab.scheduler_address).hostname)


def trained(x: da.Array, y: da.Array) -> tuple[float, xgboost.Booster]:
    """Return the seconds that training takes, and the model."""
    began = time.perf_counter()
    data = DaskQuantileDMatrix(client, x, y)
    found = train(client, params, data, num_boost_round=10, coll_cfg=tracker)
    return time.perf_counter() - began, found["booster"]


trained(x, y)  # workers import xgboost
before, _ = trained(x, y)

# %% [markdown]
# ## Rebalanced
#
# The kernel is a small piece of the program: two trees of some of a worker's own rows. DFPA times
# it on all workers until the shares make them finish together; then only the rows move that must.


# %%
def two_trees(x: np.ndarray, y: np.ndarray) -> None:
    xgboost.train(params, xgboost.QuantileDMatrix(x, y, nthread=1), 2)


x2, y2 = balancer.rebalance(x, y, kernel=two_trees)
display(balancer.report)

# %%
after, _ = trained(x2, y2)
print(f"{before:.1f} s before, {after:.1f} s after")

# %% [markdown]
# The rows are the same, in the same order.

# %%
assert bool((x2 == x).all().compute())
assert bool((y2 == y).all().compute())

# %% [markdown]
# ## The picture
#
# Shares of the rows, and the seconds that the kernel takes with them by each worker's model.

# %%
report = balancer.report
names = list(report.workers)
models = [report.models[name] for name in names]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
at = np.arange(len(names))
for shift, label, rows in ((-0.2, "before", chunks), (0.2, "after", report.distribution)):
    left.bar(at + shift, np.array(rows) / len(x), 0.4, label=label)
    seconds = [float(model.time(n)) for model, n in zip(models, rows, strict=True)]
    right.bar(at + shift, seconds, 0.4, label=label)
for axes, title in ((left, "share of the rows"), (right, "seconds of the kernel")):
    axes.set(title=title, xticks=at, xticklabels=names)
    axes.legend()
display(figure)
plt.close(figure)

# %% [markdown]
# ## The next time
#
# What an iteration took on each worker is enough to adjust the shares: `seconds` instead of
# `kernel`. The last report repeats them.

# %%
x3 = balancer.rebalance(x, distribution=report)
assert x3.chunks == x2.chunks

# %% [markdown]
# ## Clean up

# %%
client.close()
lab.down()

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
# # A function of your own, on unequal workers
#
# `da.map_blocks` gives every worker chunks of the same size; whoever is slow, or holds the last
# one, is waited for. `Balancer.map_blocks` has the same meaning, but cuts the rows so that all
# workers finish together. It measures nothing apart: the first, short calls are a part of the
# result.

# %%
# %matplotlib inline
import os
import time

import dask.array as da
import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from distributed import Client, wait
from IPython.display import display

import fpmdask

# %%
lab = fpmdask.Lab.from_toml("demo4", name=f"notebook-{os.getpid()}").up()
client = Client(lab.scheduler_address)
balancer = fpmdask.Balancer(client)
{worker.name: worker.cpu for worker in lab.workers}


# %% [markdown]
# ## The function
#
# Any function that returns the same whatever the blocks are: here of each row by itself.


# %%
def smoothed(block: np.ndarray, times: int) -> np.ndarray:
    """Smooth each row, several times."""
    for _ in range(times):
        block = (block + np.roll(block, 1, axis=1) + np.roll(block, -1, axis=1)) / 3
    return block


x = da.random.default_rng(0).random((20_000, 64), chunks=(5_000, 64)).persist()
wait(x)
# %% [markdown]
# ## One chunk per worker, as Dask does it

# %%
began = time.perf_counter()
even = da.map_blocks(smoothed, x, 60, dtype=float).persist()
wait(even)
seconds = {"da.map_blocks, 4 chunks": time.perf_counter() - began}

# %% [markdown]
# ## Rows in proportion to speed

# %%
for call in ("first", "second"):
    began = time.perf_counter()
    y = balancer.map_blocks(smoothed, x, 60, dtype=float)
    seconds[f"balancer.map_blocks, {call} call"] = time.perf_counter() - began
display(balancer.report)
{what: round(spent, 2) for what, spent in seconds.items()}

# %% [markdown]
# The values are the same. Chunks of the result are what the workers computed, each on its worker.

# %%
np.testing.assert_array_equal(y.compute(), even.compute())
y.chunks[0]

# %% [markdown]
# ## The picture
#
# Left the rows that each worker got, right how long it was busy with them.

# %%
shares = balancer.report.shares
names = [share["worker"] for share in shares]
picture, (left, right) = plt.subplots(1, 2, figsize=(8, 2.5), layout="constrained")
left.barh(names, [share["units"] for share in shares])
left.set_xlabel("rows")
right.barh(names, [share["seconds"] for share in shares])
right.set_xlabel("seconds")
display(picture)
plt.close(picture)

# %% [markdown]
# ## Frames
#
# `map_partitions` does the same for rows of a DataFrame.

# %%
frame = pd.DataFrame({"x": np.arange(40_000.0), "kind": pd.Categorical(["a", "b"] * 20_000)})
ddf = dd.from_pandas(frame, npartitions=4)
roots = balancer.map_partitions(lambda part: part.assign(root=np.sqrt(part.x)), ddf)
display(balancer.report)
roots.divisions, roots.root.max().compute()

# %%
client.close()
lab.down()

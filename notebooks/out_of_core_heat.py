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
# # Heat in a plate that does not fit into memory
#
# A program that iterates over more data than some workers have memory for waits for the slowest
# worker, or for the first one that goes out of core. `Balancer.stencil` leaves each worker its
# rows for the whole run, streams what does not fit from the worker's own disk, and gives each
# worker the rows for which the prediction says that iterations are shortest.

# %%
# %matplotlib inline
import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import zarr
from distributed import Client
from IPython.display import display

import fpmdask
from fpmdask.apps.stencil import heat

# %% [markdown]
# ## Unequal workers
#
# `hy1` has four nodes: two are slow, the other two have faster disks.

# %%
lab = fpmdask.Lab.from_toml("hy1", name=f"notebook-{os.getpid()}").up()
client = Client(lab.scheduler_address)
balancer = fpmdask.Balancer(client)
{worker.name: worker.cpu for worker in lab.workers}

# %% [markdown]
# ## The plate
#
# It is cold, with two hot spots, and comes from a Zarr array on storage that all workers share.
# Each worker reads the rows that it needs; the scheduler and this client never see them.

# %%
temporary = tempfile.TemporaryDirectory()
folder = temporary.name
shape = (1600, 800)
plate = zarr.create_array(f"{folder}/plate", shape=shape, chunks=(100, 800), dtype="f8")
rows, columns = np.ogrid[: shape[0], : shape[1]]
for row, column, radius in ((500, 250, 120), (1100, 550, 160)):
    plate[...] = plate[...] + 100.0 * ((rows - row) ** 2 + (columns - column) ** 2 < radius**2)
display(plate.info)

# %% [markdown]
# ## The run
#
# The rows take 10 MB. `memory=` bounds what each worker may use: together they have 8 MB, and at
# least one of them goes out of core. A snapshot of every tenth
# iteration goes to Zarr, written by the workers that have the rows. Its chunks are small, since who
# writes one holds all of it. With `checkpoint=` the same call would go on after a failure.

# %%
snapshots = zarr.create_array(
    f"{folder}/snapshots", shape=(0, *shape), chunks=(1, 50, shape[1]), dtype="f8"
)
memory = {"n1": "2.5 MB", "n2": "2.5 MB", "n3": "1.5 MB", "n4": "1.5 MB"}
found = balancer.stencil(
    heat(0.2),
    plate,
    40,
    boundary=0.0,
    memory=memory,
    out=snapshots,
    save_every=10,
)
display(found)

# %% [markdown]
# Which worker had which rows, and in how many blocks it streamed them (0: in memory).

# %%
[
    {name: share[name] for name in ("worker", "units", "blocks", "io_seconds")}
    for share in balancer.report.shares
]

# %% [markdown]
# ## Predicted and measured
#
# An iteration of a sample of the rows was instrumented first; what it told made the prediction.

# %%
display(balancer.report)

# %% [markdown]
# ## The temperature

# %%
saved = snapshots.attrs["fpmdask.out"]["iterations"]
picture, axes = plt.subplots(1, 3, figsize=(8, 4), layout="constrained", sharey=True)
for axis, (title, field) in zip(
    axes,
    {"at the start": plate, **{f"iteration {saved[n]}": snapshots[n] for n in (0, -1)}}.items(),
    strict=True,
):
    image = axis.imshow(field[...][::4, ::4], vmin=0, vmax=100, cmap="inferno")
    axis.set_title(title)
picture.colorbar(image, ax=axes, label="temperature")
display(picture)
plt.close(picture)

# %% [markdown]
# The same as in one process:

# %%
expected = plate[...]
for _ in range(40):
    expected = heat(0.2)(np.pad(expected, 1))
np.testing.assert_array_equal(found.compute(), expected)

# %%
client.close()
lab.down()
temporary.cleanup()

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
# # Heat in a plate that does not fit
#
# A plate of 1024 × 1024 cells is heated at two places. Two of the four workers have slow disks and
# memory for half of an even share: with even rows they stream what does not fit, and all others
# wait for them in every iteration. `Balancer.stencil` instruments the first iteration, predicts
# what every distribution would take (MHETA: Nakazawa, Lowenthal and Zhou 2005), and moves rows.

# %%
# %matplotlib inline
import os

import matplotlib.pyplot as plt
import numpy as np
import zarr
from distributed import Client
from IPython.display import HTML, display

import fpmdask
from fpmdask.apps.stencil import heat

# %%
lab = fpmdask.Lab.from_toml("io", name=f"notebook-{os.getpid()}").up()
client = Client(lab.scheduler_address)
balancer = fpmdask.Balancer(client)
{worker.name: (worker.cpu, worker.disk_seconds_per_byte) for worker in lab.workers}

# %% [markdown]
# ## The plate is on disk, and so will be the result
#
# All workers reach both by the same path. Each reads the rows that it needs itself.

# %%
rows = columns = 1024
stored = {"shape": (rows, columns), "chunks": (16, columns), "dtype": "f8"}
plate = zarr.create_array("plate", **stored)
cold = np.zeros((rows, columns))
cold[300:380, 200:500] = cold[700:760, 600:900] = 100.0
plate[...] = cold
result = zarr.create_array("result", **stored)

even = rows // len(lab.workers)
row_nbytes = 8 * (columns + 2)
beside = 64 * row_nbytes  # halos, and what is written as one
few = even * row_nbytes + beside  # two buffers of half an even share
memory = {worker.name: few for worker in lab.workers if worker.disk_seconds_per_byte > 1e-8}
print(memory)

# %% [markdown]
# ## Sixty iterations


# %%
def step(block: np.ndarray) -> np.ndarray:
    """Make one step at the cost of ten: a larger program per row."""
    for _ in range(9):
        heat(0.2)(block)
    return heat(0.2)(block)


u = balancer.stencil(step, plate, 60, boundary="nearest", out=result, memory=memory)
report = balancer.report
display(HTML(report._repr_html_()))

# %% [markdown]
# ## Why the rows are where they are

# %%
said = report.mheta
print(said["why"])
{name: one["units"] for name, one in ((share["worker"], share) for share in report.shares)}

# %% [markdown]
# ## Predicted spectrum, and predicted against measured seconds per iteration

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.5))
spectrum = said["spectrum"]
left.plot(spectrum["seconds"])
left.set_xlabel("point on the path " + ", ".join(map(str, spectrum["corners"])))
left.set_ylabel("predicted seconds per iteration")
phase = said["phases"][-1]
places = np.arange(len(said["workers"]))
for shift, side in ((-0.2, "predicted"), (0.2, "measured")):
    right.bar(places + shift, phase[side]["seconds"], 0.4, label=side)
right.set_xticks(places, said["workers"])
right.set_ylabel("seconds per iteration")
right.legend()
plt.show()

# %% [markdown]
# ## The temperature

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 4.5))
for axis, field, title in zip(axes, (plate[...], result[...]), ("before", "after"), strict=True):
    image = axis.imshow(field, cmap="inferno", vmin=0, vmax=100)
    axis.set_title(title)
figure.colorbar(image, ax=axes)
plt.show()

# %%
client.close()
lab.down()

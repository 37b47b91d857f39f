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
# # A product that unequal workers finish together
#
# Where every worker gets an equal share, all wait for the slowest. fpmdask measures each worker
# while it works and gives each the rows that make all finish at the same moment. Everything here
# runs on this machine, without root.

# %%
# %matplotlib inline
import os

import numpy as np
from distributed import Client
from IPython.display import display

import fpmdask
from fpmdask.picture import figure

# %% [markdown]
# ## Workers that are not equal
#
# A lab emulates a heterogeneous cluster. `demo4` has four workers with 0.60 to 0.15 of a core. On
# your own cluster leave this cell out and give the next one your scheduler's address.

# %%
lab = fpmdask.Lab.from_toml("demo4", name=f"notebook-{os.getpid()}").up()
{worker.name: worker.cpu for worker in lab.workers}

# %% [markdown]
# ## A client, and a balancer on it
#
# The balancer installs the coordinator on the scheduler. The workers are plain Dask workers.

# %%
client = Client(lab.scheduler_address)
balancer = fpmdask.Balancer(client)

# %% [markdown]
# ## DFPA: who should get how much?
#
# Any function of a number of units can be balanced. This one sorts. Each round times it on all
# workers at once, with the units that the models of the rounds before suggest; the models are a
# few points per worker, where they were needed.


# %%
def sort_keys(units: int) -> None:
    """Sort that many thousand random keys."""
    np.sort(np.random.default_rng(0).random(1000 * units))


found = balancer.partition(sort_keys, 2000, epsilon=0.2, max_rounds=8)
display(found)

# %% [markdown]
# The first round is an even split. The imbalance is how much longer the slowest worker takes than
# the fastest.

# %%
[(dict(record.units), record.imbalance) for record in found.report.rounds]

# %% [markdown]
# ## The picture
#
# Speed as a function of units, one curve per worker. The straight line through the origin meets
# every curve where the workers take the same time; those are the shares.

# %%
display(figure(found.report, unit="thousand keys"))

# %% [markdown]
# ## The product
#
# `matmul` does the same with its own kernel, the update of a panel of C, and then multiplies. The
# result is a dask array, complete, its chunks on the workers that made them.

# %%
rng = np.random.default_rng(1)
A, B = rng.random((1500, 1200)), rng.random((1200, 1000))
C = balancer.matmul(A, B, epsilon=0.2, max_rounds=8)
display(balancer.report)

# %%
C.chunks[0]

# %% [markdown]
# It is NumPy's product, within rounding.

# %%
np.testing.assert_allclose(C.compute(), A @ B, rtol=1e-12)

# %% [markdown]
# ## Clean up
#
# The lab would also end with its driver.

# %%
client.close()
lab.down()

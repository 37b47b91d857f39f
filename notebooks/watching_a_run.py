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
# # Watching a run, and keeping what it has measured
#
# While a call runs, fpmdask shows how far it is; afterwards it says why each worker got its share.
# What it has measured of the workers can be looked at, stored, and used by the next cluster.

# %%
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import dask.array as da
from distributed import Client, wait
from IPython.display import display

import fpmdask
from fpmdask.store import ModelStore
from fpmdask.timing import TimingPolicy

# %%
folder = Path(tempfile.mkdtemp()) / "models"
definition = replace(
    fpmdask.Lab.from_toml("demo4").definition, name=f"watching-{os.getpid()}", dashboard=True
)
lab = fpmdask.Lab(definition).up()
client = Client(lab.scheduler_address)
{worker.name: worker.cpu for worker in lab.workers}

# %% [markdown]
# ## Progress
#
# In a notebook a bar is shown of its own accord, of calls that take longer than half a second;
# `progress=True` says so. `progress=` also takes a function, which hears of all events. (A duty
# cycle holds these workers: a measurement is to see ten periods of it.)

# %%
balancer = fpmdask.Balancer(client, progress=True)
policy = TimingPolicy(min_seconds=0.4, budget_seconds=0.8)
a = da.random.default_rng(0).random((3072, 3072), chunks=768).persist()
wait(a)
c = balancer.matmul(a, a, max_rounds=2, timing=policy)

# %%
events = []
listening = fpmdask.Balancer(client, progress=events.append)
x = da.random.default_rng(1).random(2_000_000, chunks=250_000).persist()
wait(x)
ordered = listening.sort(x)
[(event["event"], round(event["fraction"], 2)) for event in events][-4:]

# %% [markdown]
# ## The report
#
# What each worker did, how long it was planned to take, how long it took, and why it got its share.
# `explain()` is the same as text.

# %%
display(balancer.report)

# %%
print(balancer.report.explain())

# %% [markdown]
# ## Models
#
# The speed of each worker as a function of what it is given, for each kernel that was timed.

# %%
models = balancer.models
display(models)

# %% [markdown]
# Stored, they outlive the scheduler. One whose configuration names the same folder, or a URL that
# fsspec knows (`s3://…`), as `fpmdask.models-url` begins with them and stores what it measures.

# %%
saved = models.save(folder)
print(saved.documents, "documents,", len(ModelStore(folder).load()), "models")

# %% [markdown]
# ## In Dask's dashboard
#
# The page `fpmdask` shows all of this while it happens: speed functions, shares, a timeline of each
# worker, bytes per link, memory, and the runs. JupyterLab's extension lists its plots, too.

# %%
client.dashboard_link.replace("/status", "/fpmdask")

# %%
client.close()
lab.down()

# %% [markdown]
# ## The next cluster
#
# Its scheduler loads what is stored: what the first product has taught of the workers is enough for
# this one, and nothing is measured.

# %%
os.environ["DASK_FPMDASK__MODELS_URL"] = str(folder)  # or fpmdask.models-url in dask.yaml
with (
    fpmdask.Lab.from_toml("demo4", name=f"again-{os.getpid()}") as lab,
    Client(lab.scheduler_address) as client,
    fpmdask.Balancer(client) as balancer,
):
    print(len(balancer.models), "models are known before anything was measured")
    a = da.random.default_rng(0).random((3072, 3072), chunks=768).persist()
    wait(a)
    balancer.matmul(a, a)
    print(f"{len(balancer.report.rounds)} rounds of measuring: {balancer.report.reason}")

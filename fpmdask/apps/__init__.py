"""Applications: each has a kernel (NumPy), a plan (pure), and a part in every process."""

# Name → where its `App` is; nothing is imported for this.
APPS = {
    "load": "fpmdask.runtime.loading:APP",
    "partition": "fpmdask.apps.partition.app:APP",
    "matmul": "fpmdask.apps.matmul.app:APP",
    "matmul.tiles": "fpmdask.apps.matmul.app:TILES",
    "sort": "fpmdask.apps.sort.app:APP",
    "sort.deal": "fpmdask.apps.sort.app:DEAL",
    "frames": "fpmdask.apps.frames.app:APP",
    "blocks": "fpmdask.apps.blocks.app:APP",
    "stencil": "fpmdask.apps.stencil.app:APP",
    "rebalance": "fpmdask.apps.rebalance.app:APP",
    "records": "fpmdask.apps.records.app:APP",
}

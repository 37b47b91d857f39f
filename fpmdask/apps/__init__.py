"""Applications: each has a kernel (NumPy), a plan (pure), and a part in every process."""

# Name → where its `App` is; nothing is imported for this.
APPS = {
    "partition": "fpmdask.apps.partition:APP",
    "matmul": "fpmdask.apps.matmul:APP",
    "sort": "fpmdask.apps.sort:APP",
    "sort.deal": "fpmdask.apps.sort:DEAL",
    "records": "fpmdask.apps.records:APP",
}

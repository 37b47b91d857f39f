"""What is timed: some rows of the matrix times a vector."""

import numpy as np


class Rows:
    """The kernel "power.rows"; a unit is a row."""

    name = "power.rows"

    def __init__(self, context, columns):
        self.context, self.parameters = context, {"columns": columns}
        self.implementation = f"numpy {np.__version__}"

    def setup(self, units):
        shape = units, self.parameters["columns"]
        self.rows = self.context.scratch.take("power.rows", shape, np.dtype(float))
        self.rows[...] = 1.0
        self.vector = np.ones(shape[1])

    def run(self):
        self.rows @ self.vector

    def teardown(self):
        self.rows = self.vector = None

    def complexity(self, units):
        return 2.0 * units * self.parameters["columns"]

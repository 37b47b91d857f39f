import json
import math

import numpy as np
import pytest

from fpmdask.errors import KernelError
from fpmdask.models import ConstantModel, PiecewiseLinearModel, SurfaceModel
from fpmdask.timing import (
    EmulatedKernel,
    FullModelBuilder,
    Interruptible,
    Kernel,
    TimingPolicy,
    WorkerContext,
    make_kernel,
    measure,
)

MODELS = {
    "a": ConstantModel(50.0).to_json(),
    "b": PiecewiseLinearModel.from_points([100, 200], [1.0, 4.0]).to_json(),
}


def test_it_takes_its_seconds_from_the_workers_model():
    for name, seconds in (("a", 4.0), ("b", 4.0)):
        kernel = make_kernel("emulated", WorkerContext(name), models=MODELS)
        assert isinstance(kernel, Kernel)
        assert isinstance(kernel, Interruptible)
        assert measure(kernel, 200).seconds == seconds
    assert measure(EmulatedKernel(WorkerContext("b"), MODELS), 50).seconds == 0.5
    assert kernel.complexity(7) == 7.0


def test_a_star_stands_for_every_other_worker():
    models = {**MODELS, "*": ConstantModel(10.0).to_json()}
    assert measure(EmulatedKernel(WorkerContext("z"), models), 100).seconds == 10.0
    assert measure(EmulatedKernel(WorkerContext("a"), models), 100).seconds == 2.0


def test_a_worker_without_a_model_is_an_error():
    with pytest.raises(KernelError, match="no model for worker 'z'; there are a, b"):
        EmulatedKernel(WorkerContext("z"), MODELS)


def test_what_is_no_model_is_an_error():
    with pytest.raises(KernelError, match="'a' cannot be used"):
        EmulatedKernel(WorkerContext("a"), {"a": {"format": "x"}})


@pytest.mark.parametrize("values", [{"noise": -0.1}, {"noise": math.nan}, {"seed": -1}])
def test_values_out_of_range_are_refused(values):
    with pytest.raises(KernelError, match=">= 0"):
        EmulatedKernel(WorkerContext("a"), MODELS, **values)


def test_its_parameters_make_it_again():
    kernel = EmulatedKernel(WorkerContext("a"), MODELS, noise=0.1, seed=3, limits={"*": 9})
    parameters = json.loads(json.dumps(kernel.parameters))
    again = EmulatedKernel(WorkerContext("a"), **parameters)
    assert again.parameters == kernel.parameters
    kernel.setup(5)
    again.setup(5)
    assert kernel.run() == again.run()


def test_more_than_the_limit_is_too_large():
    kernel = EmulatedKernel(WorkerContext("a"), MODELS, limits={"a": 100})
    assert measure(kernel, 100).seconds == 2.0
    assert measure(kernel, 101).seconds == math.inf


def test_more_seconds_than_the_deadline_are_too_large_without_sleeping():
    kernel = EmulatedKernel(WorkerContext("a"), MODELS)
    assert measure(kernel, 1000, deadline_seconds=19.0).reason == "deadline"
    assert measure(kernel, 1000, deadline_seconds=21.0).seconds == 20.0


def test_a_surface_is_cut_at_a_width():
    surface = SurfaceModel.from_points([10, 20, 10], [4, 4, 8], [1.0, 2.0, 4.0])
    models = {"a": surface.to_json()}
    kernel = EmulatedKernel(WorkerContext("a"), models, width=6)
    assert measure(kernel, 10).seconds == pytest.approx(2.0)
    with pytest.raises(KernelError, match="width at which it is cut"):
        EmulatedKernel(WorkerContext("a"), models)


def runs(kernel, units, count):
    kernel.setup(units)
    return [kernel.run() for _ in range(count)]


def test_noise_has_the_mean_and_the_deviation_asked_for():
    kernel = EmulatedKernel(WorkerContext("a"), MODELS, noise=0.3)
    seconds = runs(kernel, 50, 20_000)
    assert np.mean(seconds) == pytest.approx(1.0, abs=0.01)
    assert np.std(seconds) == pytest.approx(0.3, abs=0.01)


def test_noise_repeats_with_its_history_and_only_then():
    def factor(worker="a", units=50, seed=0, before=0):
        kernel = EmulatedKernel(
            WorkerContext(worker), {"*": ConstantModel(1.0).to_json()}, noise=0.1, seed=seed
        )
        for _ in range(before):
            kernel.setup(units)
        return runs(kernel, units, 1)[0] / units

    assert factor() == factor()
    others = [factor("b"), factor(units=51), factor(seed=1), factor(before=1)]
    assert len({factor(), *others}) == 5


def test_it_sleeps_if_asked_and_looks_at_its_deadline():
    slept = []
    kernel = EmulatedKernel(WorkerContext("a"), MODELS, sleep=True, sleeper=slept.append)
    assert runs(kernel, 10, 1) == [0.2]
    assert sum(slept) == pytest.approx(0.2)
    assert max(slept) <= 0.05

    now = [0.0]

    def sleeper(seconds):
        now[0] += seconds

    kernel = EmulatedKernel(WorkerContext("a"), MODELS, sleep=True, sleeper=sleeper)
    timing = measure(kernel, 10_000, clock=lambda: now[0], deadline_seconds=1.0)
    assert timing.reason == "deadline"
    assert now[0] < 1.11


def test_a_full_model_of_an_emulated_kernel_is_its_model():
    model = PiecewiseLinearModel.from_points([100, 3000, 4000], [0.1, 3.0, 40.0])
    kernel = EmulatedKernel(WorkerContext("a"), {"a": model.to_json()}, noise=0.05)
    builder = FullModelBuilder(50, 6000)
    policy = TimingPolicy(budget_seconds=1e4)
    while (units := builder.ask()) is not None:
        timing = measure(kernel, units, policy)
        builder.tell(timing.seconds, timing.half_width)
    sizes = np.array([60, 500, 2000, 2900, 5000])
    np.testing.assert_allclose(builder.model.time(sizes), model.time(sizes), rtol=0.15)

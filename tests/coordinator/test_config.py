"""Defaults, schema and code agree."""

import subprocess
import sys
from importlib import resources

import dask
import jsonschema
import pytest
import yaml

from fpmdask import config
from fpmdask.errors import CoordinatorError
from fpmdask.timing import TimingPolicy


def schema():
    text = resources.files("fpmdask").joinpath("fpmdask-schema.yaml").read_text()
    return yaml.safe_load(text)


def test_the_defaults_fulfil_the_schema_and_the_schema_describes_each():
    jsonschema.validate(config.DEFAULTS, schema())
    described = schema()["properties"]["fpmdask"]["properties"]
    assert described.keys() == config.DEFAULTS["fpmdask"].keys()
    timing = config.DEFAULTS["fpmdask"]["timing"]
    assert described["timing"]["properties"].keys() == timing.keys()


def test_an_argument_beats_configuration_and_configuration_the_default():
    assert config.setting("epsilon") == 0.1
    with dask.config.set({"fpmdask.epsilon": 0.2, "fpmdask.hang": "2m"}):
        assert config.setting("epsilon") == 0.2
        assert config.setting("epsilon", 0.3) == 0.3
        assert config.seconds("hang") == 120.0
        assert config.seconds("hang", 5) == 5.0
    for bad in ("soon", "2 min", object(), float("nan"), -1):
        with pytest.raises(CoordinatorError, match="such as"):
            config.seconds("hang", bad)


def test_the_timing_settings_make_a_policy():
    assert TimingPolicy(**config.timing_settings()).min_seconds == pytest.approx(0.1)
    jsonschema.validate({"fpmdask": {"epsilon": 0.2}}, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"fpmdask": {"epsilon": 0}}, schema())


def test_thresholds_are_numbers_by_group():
    jsonschema.validate({"fpmdask": {"tuning": {"sort": {"few-keys": 0}}}}, schema())
    for wrong in ({"sort": 3}, {"sort": {"few-keys": "3"}}, {"sort": {"few-keys": -1}}, []):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"fpmdask": {"tuning": wrong}}, schema())


def test_defaults_survive_a_configuration_that_was_set_before_fpmdask_was_loaded():
    code = (
        "import dask, fpmdask\n"
        "with dask.config.set({'fpmdask.epsilon': 0.05}):\n"
        "    from fpmdask import config\n"
        "    assert config.setting('epsilon') == 0.05\n"
        "print(config.setting('epsilon'), config.seconds('hang') > 0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == f"{config.DEFAULTS['fpmdask']['epsilon']} True\n", answer.stderr

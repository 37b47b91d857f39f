"""Table 1 of the paper made concrete: four machines of eight nodes and five programs.

Powers, memory, disks and costs are chosen so that the paper's statements come out; they lie with
the tests' oracles, which check the anchors of every pair and their seconds.
"""

import json
from pathlib import Path
from typing import Any

from fpmdask.mheta import Machine, Program

ROWS = 4096
ORACLES = Path(__file__).parents[2] / "tests" / "mheta" / "oracles.json"


def pairs() -> dict[tuple[str, str], tuple[Program, Machine]]:
    """Return program and machine by (machine name, program name), in the order of the table."""
    table = json.loads(ORACLES.read_text(encoding="utf-8"))["table_1"]
    return {
        (machine, program): pair(table["machines"][machine], table["programs"][program])
        for machine in table["machines"]
        for program in table["programs"]
    }


def pair(machine: dict[str, Any], program: dict[str, Any]) -> tuple[Program, Machine]:
    """Return a program whose seconds per row follow from the nodes' powers, and the machine."""
    figures = dict(machine)
    power = figures.pop("power")
    sections = [
        section | {"stages": [_stage(stage, power) for stage in section["stages"]]}
        for section in program["sections"]
    ]
    made = Program.from_dict(program | {"sections": sections})
    return made, Machine.from_dict(figures, len(power))


def _stage(stage: dict[str, Any], power: list[float]) -> dict[str, Any]:
    figures = dict(stage)
    seconds = figures.pop("seconds_per_row_at_power_1")
    return figures | {"seconds_per_row": [seconds / share for share in power]}

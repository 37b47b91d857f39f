"""Table 1 drawn: predicted seconds along the path of anchors, as in figures 10 and 11 of the paper.

    python benchmarks/mheta_table1.py [--json FILE] [--plot FILE]

DC, IO, HY1 and HY2 with Jacobi, Jacobi with prefetch, CG, Lanczos and RNA: worst over best of the
path beside what the paper says (Nakazawa, Lowenthal and Zhou 2005, section 5.3), where the best
point lies, how far gbs goes below it, and why the best one is best. The picture goes to
benchmarks/figures/mheta_table1.png.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from mheta_parts.table1 import ROWS, pairs

from fpmdask.mheta import Machine, Program, anchors, evaluator, search, spectrum
from fpmdask.mheta.explain import explain
from fpmdask.mheta.spectrum_path import corner_names

STEPS = 8
# As many as the paper ran, for comparable times in the picture; the table is of one iteration.
ITERATIONS = {"Jacobi": 100, "JacobiPrefetch": 100, "CG": 10, "Lanczos": 5, "RNA": 10}
FIGURE = Path(__file__).parent / "figures" / "mheta_table1.png"
# Left and right column of the picture, as in the paper.
COLUMNS = (("Jacobi", "JacobiPrefetch", "CG"), ("Lanczos", "RNA"))
PAPER = {
    ("DC", "RNA"): "worst/best almost 4",
    ("HY1", "Lanczos"): "worst/best almost 3, best at Bal",
    ("HY1", "Jacobi"): "best between I-C/Bal and Bal, Bal 28 % slower",
}


def along_path(program: Program, machine: Machine, iterations: int) -> dict[str, Any]:
    """Return predicted seconds along the path, and what gbs finds from its anchors."""
    points, predicts = spectrum(program, machine, ROWS, STEPS), evaluator(program, machine)
    seconds = predicts(points)
    corners = anchors(program, machine, ROWS)
    names = corner_names(corners)
    labels = [names[i // STEPS] if i % STEPS == 0 else "" for i in range(len(points))]
    best = int(np.argmin(seconds))
    leg, step = divmod(best, STEPS)
    start = np.array([*corners.values(), corners["Blk"]])
    found = search.gbs(predicts, start, rng=np.random.default_rng(0))
    return {
        "labels": labels,
        "seconds": seconds.tolist(),
        "drawn": evaluator(program, machine, iterations=iterations)(points).tolist(),
        "best at": f"{names[leg]} → {names[leg + 1]} {step}/{STEPS}" if step else names[leg],
        "worst/best": float(seconds.max() / seconds.min()),
        "Bal/best": float(predicts(corners["Bal"][np.newaxis])[0] / seconds.min()),
        "gbs/best": float(found.seconds / seconds.min()),
        "why": "; ".join(explain(program, machine, points[best])),
    }


def draw(results: dict[tuple[str, str], dict[str, Any]], target: Path) -> None:
    """Draw four machines in rows, and the programs in the paper's two columns."""
    from matplotlib.figure import Figure

    from fpmdask.picture.mheta import draw_spectrum

    machines = list(dict.fromkeys(machine for machine, _ in results))
    drawn = Figure(figsize=(13, 3.1 * len(machines)), dpi=100, layout="constrained")
    grid = drawn.subplots(len(machines), len(COLUMNS), squeeze=False)
    for axes, machine in zip(grid, machines, strict=True):
        for cell, programs in zip(axes, COLUMNS, strict=True):
            curves = {
                f"{program} × {ITERATIONS[program]}": results[machine, program]["drawn"]
                for program in programs
            }
            draw_spectrum(cell, results[machine, programs[0]]["labels"], curves)
            cell.set_title(machine, loc="left", fontsize=11)
    drawn.savefig(target)


def main() -> None:
    """Print the table, draw the picture and, on request, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--plot", type=Path, default=FIGURE, help="where the picture goes")
    arguments = parser.parse_args()
    results = {name: along_path(*pair, ITERATIONS[name[1]]) for name, pair in pairs().items()}
    columns = ("worst/best", "Bal/best", "gbs/best")
    print(f"{'machine':8} {'program':15} " + " ".join(f"{c:>10}" for c in columns) + "  best at")
    for (machine, program), row in results.items():
        shown = " ".join(f"{row[c]:10.3f}" for c in columns)
        paper = PAPER.get((machine, program))
        note = f"   [paper: {paper}]" if paper else ""
        print(f"{machine:8} {program:15} {shown}  {row['best at']}{note}")
        print(f"{'':8} {'':15} {row['why']}")
    draw(results, arguments.plot)
    print(f"drawn: {arguments.plot}")
    if arguments.json:
        rows = [{"machine": m, "program": p} | row for (m, p), row in results.items()]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Count lines of code: without blank lines, comments and docstrings.

python benchmarks/code_lines.py
python benchmarks/code_lines.py fpmdask/apps/sort fpmdask/runtime --each
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
APPS = ["matmul", "sort", "frames", "records", "partition", "blocks", "rebalance", "stencil"]
HOUSE = [*(f"apps/{app}" for app in APPS), "sorting", "runtime"]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Return how many lines of a module have code.

    >>> code_lines('"A docstring."\\n\\n# a comment\\nx = 1\\ny = (\\n    2,\\n)\\n')
    4
    """
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings.update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - docstrings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = [ROOT / "fpmdask" / part for part in HOUSE]
    parser.add_argument("paths", nargs="*", type=Path, default=default)
    parser.add_argument("--each", action="store_true", help="every module, too")
    options = parser.parse_args()
    total = 0
    for path in options.paths:
        modules = [path] if path.is_file() else sorted(path.rglob("*.py"))
        counts = {module: code_lines(module.read_text(encoding="utf-8")) for module in modules}
        total += sum(counts.values())
        print(f"{sum(counts.values()):7,d}  {path.resolve().relative_to(ROOT)}")
        for module, count in sorted(counts.items(), key=lambda item: -item[1]):
            if options.each:
                print(f"         {count:7,d}  {module.resolve().relative_to(ROOT)}")
    print(f"{total:7,d}  together")


if __name__ == "__main__":
    main()

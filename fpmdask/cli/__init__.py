"""The command line: ``fpmdask …``, also ``dask fpm …``. Arguments and printing only.

Exit codes: 0 done, 1 an error with its remedy on stderr, 2 wrong usage, 3 the answer is no
(`replay` found differences, `doctor` something missing), 130 interrupted, 143 terminated.
"""

from fpmdask.cli.group import main as main

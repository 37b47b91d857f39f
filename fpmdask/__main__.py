"""The command line as ``python -m fpmdask``."""

from fpmdask.cli import main

if __name__ == "__main__":
    main()

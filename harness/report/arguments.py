"""Arguments of the verb `report`, apart from what it imports, so that the command line stays quick."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_report_arguments"]


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, nargs="?", help="folder of a sealed run")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="two bundles side by side")
    parser.add_argument(
        "--join", type=Path, nargs="+", metavar="RUN", help="interpret several runs of one plan together, as campaigns"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="with --join: write it as one JSON document")
    parser.add_argument("--junit", type=Path, metavar="OUT", help="write checks and axes as JUnit XML")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the whole report as one page")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="write it for a pull request; else it is printed")

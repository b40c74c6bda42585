"""python -m tests.fuzz TARGET [--seconds N]: look for inputs that a target does not stand; see README.md."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.fuzz import hunt

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("target", choices=hunt.NAMES)
parser.add_argument("--seconds", type=int, default=60, help="how long to look (default: 60)")
parser.add_argument("--found", type=Path, help="where new inputs and crashes go (default: .fuzz/TARGET)")
parser.add_argument("--lines", action="store_true", help="say which lines the corpus reaches, and end")
parser.add_argument("--grow", action="store_true", help="put what was found into the corpus, and end")
asked, for_the_fuzzer = parser.parse_known_args()

found = asked.found or Path(".fuzz") / asked.target
if asked.lines:
    hunt.tell_lines(asked.target)
elif asked.grow:
    hunt.grow(asked.target, found)
else:
    hunt.hunt(asked.target, found, asked.seconds, for_the_fuzzer)

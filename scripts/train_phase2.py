#!/usr/bin/env python
"""Phase 2: a student that sees other observations, depth instead of scandots say, learns to act as a teacher does.

    python scripts/train_phase2.py --teacher runs/quadruped-... --config configs/phase2_student.yaml --device cuda:0
    python scripts/train_phase2.py --resume runs/quadruped-...

This is `twostep train CONFIG --teacher RUN` and `twostep resume RUN_OR_CHECKPOINT`, whose options all work here, too.
`twostep eval` then shows student and teacher side by side. A run goes on from its newest checkpoint, or from the one
whose folder `--resume` names (`ls runs/quadruped-.../checkpoints`), and keeps its own settings.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from twostep.cli import main as twostep

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "phase2_student.yaml"


def main(argv: list[str] | None = None) -> int:
    """Hand the command line on to `twostep`."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--teacher", metavar="RUN_OR_POLICY", help="whose actions are learned")
    start.add_argument("--resume", metavar="RUN_OR_CHECKPOINT", help="go on with this run")
    parser.add_argument("--config", default=str(CONFIG), metavar="YAML", help="settings of a new run")
    known, options = parser.parse_known_args(argv)
    if known.resume is not None:
        return twostep(["resume", known.resume, *options])
    return twostep(["train", known.config, "--teacher", known.teacher, *options])


if __name__ == "__main__":
    sys.exit(main())

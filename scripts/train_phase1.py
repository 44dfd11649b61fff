#!/usr/bin/env python
"""Train the walking robot of phase 1: one recurrent policy for all terrains, told what lies ahead by scandots.

    python scripts/train_phase1.py --config configs/phase1_monolithic.yaml --device cuda:0
    python scripts/train_phase1.py --device cuda:0 --resume runs/quadruped-...

This is `twostep train CONFIG` and `twostep resume RUN_OR_CHECKPOINT`, whose options all work here, too:
`--num_envs 4096`, `--total_timesteps 20_000_000`, `--wandb online`. A run goes on from its newest checkpoint, or from
the one whose folder `--resume` names (`ls runs/quadruped-.../checkpoints`). It keeps its own settings, also where
`--config` is given again.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from twostep.cli import main as twostep

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "phase1_monolithic.yaml"


def main(argv: list[str] | None = None) -> int:
    """Hand the command line on to `twostep`."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--config", default=str(CONFIG), metavar="YAML", help="settings of a new run")
    parser.add_argument("--resume", metavar="RUN_OR_CHECKPOINT", help="go on with this run")
    known, options = parser.parse_known_args(argv)
    command = ["train", known.config] if known.resume is None else ["resume", known.resume]
    return twostep([*command, *options])


if __name__ == "__main__":
    sys.exit(main())

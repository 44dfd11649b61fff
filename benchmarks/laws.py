"""Finds laws of nature again: PPO from the shipped settings beside random search, expression for expression.

    python benchmarks/laws.py                          # every law, 3 seeds; writes docs/symbolic.md and its picture
    python benchmarks/laws.py --laws kepler,orbit --seeds 1
    python benchmarks/laws.py --report                 # writes the page again from the finished searches

Random search writes uniformly among the tokens that the same mask allows, and may finish as many expressions. A search
ends with the first expression that leaves no error; seconds are those of one core that nobody else should use.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from laws_report import write_report

from twostep.config import shipped_config
from twostep.worlds.symbolic import LAWS, Discovery, SymbolicConfig, SymbolicRows
from twostep.worlds.symbolic.machine import values

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs" / "laws"
MOST = 60_000
"""Expressions after which a search gives up."""
RANDOM_ROWS = 256

Result = dict[str, Any]


class Watch:
    """Notes how good the best expression was after how many, and whether a search is over."""

    def __init__(self, env: SymbolicRows, law: str, most: int) -> None:
        self.env, self.law, self.most = env, law, most
        self.curve: list[tuple[int, float]] = []
        self.started = time.process_time()

    def over(self) -> bool:
        """Take a note, and say whether the law is found or the last expression spent."""
        best = self.env.best().get(self.law)
        if best is None:
            return False
        written = self.env.search.tried[self.law]
        if not self.curve or best.error < self.curve[-1][1]:
            self.curve.append((min(best.expressions, written), best.error))
        return best.found or written >= self.most

    def result(self, **more: Any) -> Result:
        """Sum the search up."""
        best = self.env.best()[self.law]
        written = best.expressions if best.found else self.env.search.tried[self.law]
        seconds = time.process_time() - self.started
        found = {"best": best.to_dict(), "expressions": written, "seconds": seconds, "curve": self.curve}
        return found | {"elsewhere": error_elsewhere(self.env.config, best), "date": time.strftime("%Y-%m-%d"), **more}


def error_elsewhere(config: SymbolicConfig, best: Discovery) -> float:
    """Return what an expression, factor included, leaves of data that the search has not seen."""
    data = LAWS[best.law].dataset(config.points, config.data_seed + 1)
    said = best.scale * values(config.grammar, config.grammar.parse(best.words)[None], data.inputs)[0]
    return float(np.sqrt(np.mean((said - data.targets) ** 2)) / data.targets.std())


def ppo(law: str, seed: int, most: int = MOST) -> Result:
    """Search as `twostep train symbolic --env.kwargs.law LAW` does."""
    from twostep.cli.training import build
    from twostep.runtime import limit_threads

    config = shipped_config("symbolic", {"env.kwargs.law": law, "seed": seed, "device": "cpu"})
    assert config is not None
    env, trainer = build(config)
    assert isinstance(env, SymbolicRows)
    limit_threads(trainer.policy)
    watch = Watch(env, law, most)
    trainer.train(2**40, callback=lambda *_: not watch.over())
    return watch.result(steps=trainer.total_timesteps)


def random_search(law: str, seed: int, most: int = MOST) -> Result:
    """Write whatever is allowed."""
    env, rng = SymbolicRows(SymbolicConfig(law=law), RANDOM_ROWS), np.random.default_rng(seed)
    watch, step, steps = Watch(env, law, most), env.reset(seed), 0
    while not watch.over():
        step = env.step(np.where(step.action_masks, rng.random(step.action_masks.shape), -1.0).argmax(1))
        steps += RANDOM_ROWS
    return watch.result(steps=steps)


METHODS: dict[str, Callable[[str, int], Result]] = {"ppo": ppo, "random": random_search}


def main(argv: list[str] | None = None) -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laws", default=",".join(LAWS), help="which laws, comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="only write the page")
    options = parser.parse_args(argv)
    for law in () if options.report else options.laws.split(","):
        for seed in range(options.seeds):
            for method in METHODS:
                search(method, law, seed)
    write_report(RUNS, ROOT / "docs", MOST)
    return 0


def search(method: str, law: str, seed: int) -> None:
    """Search once, unless that was done before, and print what was found."""
    path = RUNS / method / law / f"seed{seed}.json"
    if path.exists():
        return
    result = METHODS[method](law, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    best = result["best"]
    how = "found" if best["found"] else f"leaves {best['error']:.2%}"
    count = f"{result['expressions']:7,} expressions, {result['seconds']:5.1f} s"
    print(f"{law:11} {method:6} seed {seed}: {how:13} {count}: {best['expression']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`twostep eval`: play a trained agent and say how well it does."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, pstdev

from twostep.cli.options import EvaluationRequest
from twostep.cli.runs import CHECKPOINT, CONFIG_FILE, find_run
from twostep.cli.training import build
from twostep.config import TrainingConfig
from twostep.errors import ConfigError


def run_evaluation(request: EvaluationRequest) -> int:
    """Evaluate a run's agent and print a small table; return the exit code."""
    folder = find_run(request.run)
    config = TrainingConfig.from_yaml(folder / CONFIG_FILE)
    if not (folder / CHECKPOINT).is_dir():
        raise ConfigError(f"{folder} has no {CHECKPOINT}: it was stopped before one was saved. Train again.")
    config = replace(
        config,
        seed=config.seed + 1 if request.seed is None else request.seed,
        device=request.device or config.device,
    )
    episodes = request.episodes or config.trainer.eval_episodes
    env, trainer = build(config, num_envs=min(config.env.num_envs, episodes))
    from twostep.evaluation import evaluate

    try:
        trainer.load_checkpoint(folder / CHECKPOINT)
        stats = evaluate(trainer.policy, env, episodes, seed=config.seed, deterministic=not request.sample)
    finally:
        env.close()
    acting = "acting by chance, as in training" if request.sample else "always taking the likeliest action"
    print(f"{folder}: {len(stats.returns)} episodes of {config.env.id}, {acting}")
    print(f"  {'':8}{'mean':>10}{'± std':>10}{'min':>10}{'max':>10}")
    for name, values in (("return", stats.returns), ("length", [float(length) for length in stats.lengths])):
        cells = (fmean(values), pstdev(values), min(values), max(values))
        print(f"  {name:8}" + "".join(f"{cell:10,.1f}" for cell in cells))
    return 0

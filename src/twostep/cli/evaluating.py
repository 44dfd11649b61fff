"""`twostep eval`: play a trained agent and say how well it does."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from twostep.cli.discoveries import SYMBOLIC, best_in, in_words, read_discoveries
from twostep.cli.evaluations import SKIRMISH
from twostep.cli.options import EvaluationRequest
from twostep.cli.runs import CONFIG_FILE
from twostep.cli.suites import run_suite
from twostep.cli.trained import Trained
from twostep.cli.training import build
from twostep.config import TrainingConfig

if TYPE_CHECKING:
    from twostep.protocols import RowEnv
    from twostep.trainer import PPOTrainer


def run_evaluation(request: EvaluationRequest) -> int:
    """Evaluate an agent and print how it did; return the exit code."""
    if request.suite is not None:
        return run_suite(request, request.suite)
    trained = Trained.found(request.run)
    config = TrainingConfig.from_yaml(trained.folder / CONFIG_FILE)
    config = replace(
        config,
        seed=config.seed + 1 if request.seed is None else request.seed,
        device=request.device or config.device,
    )
    episodes = request.episodes or config.trainer.eval_episodes
    plays_matches = config.env.id == SKIRMISH
    env, trainer = build(config, num_envs=1 if plays_matches else min(config.env.num_envs, episodes))
    try:
        trained.load_into(trainer)
        play = _matches if plays_matches else _episodes
        what, table = play(config, env, trainer, episodes, deterministic=not request.sample)
        if config.env.id == SYMBOLIC:
            said = in_words(best_in(env), "what it writes:")
            table = "\n".join((table, said, in_words(read_discoveries(trained.folder), "the best of its training:")))
    finally:
        env.close()
    acting = "acting by chance, as in training" if request.sample else "always taking the likeliest action"
    print(f"{trained}: {what}, {acting}")
    print(table)
    return 0


def _episodes(
    config: TrainingConfig, env: RowEnv, trainer: PPOTrainer, episodes: int, *, deterministic: bool
) -> tuple[str, str]:
    """Play episodes; say what was played, and the result as a small table."""
    from twostep.evaluation import evaluate

    stats = evaluate(trainer.policy, env, episodes, seed=config.seed, deterministic=deterministic)
    lines = [f"  {'':8}{'mean':>10}{'± std':>10}{'min':>10}{'max':>10}"]
    for name, values in (("return", stats.returns), ("length", [float(length) for length in stats.lengths])):
        cells = (fmean(values), pstdev(values), min(values), max(values))
        lines.append(f"  {name:8}" + "".join(f"{cell:10,.1f}" for cell in cells))
    return f"{len(stats)} episodes of {config.env.id}", "\n".join(lines)


def _matches(
    config: TrainingConfig, env: RowEnv, trainer: PPOTrainer, episodes: int, *, deterministic: bool
) -> tuple[str, str]:
    """Play matches against the scripted opponent, whose seeds no match of training had; say the same of them."""
    from twostep.evaluation import evaluate_vs_heuristic
    from twostep.worlds.skirmish import EnvConfig

    rules = EnvConfig.from_dict(config.env.kwargs)
    stats, _ = evaluate_vs_heuristic(
        trainer.policy, rules, episodes, config.seed, trainer.device, deterministic=deterministic
    )
    low, high = stats.win_interval
    ends = ", ".join(f"{count} by {reason}" for reason, count in stats.ends.items() if count)
    lines = (
        f"  won           {stats.win_rate:6.1%}  (95 % interval {low:.1%} to {high:.1%}): "
        f"{stats.wins} won, {stats.losses} lost, {stats.draws} drawn",
        f"  hit points    {stats.mean_hp_margin:+6.1%}  own part left at the end, minus the opponent's",
        f"  return        {stats.mean_return:6.2f}  of an agent",
        f"  length        {stats.mean_episode_length:6.1f}  steps; ended {ends}",
    )
    return f"{stats.episodes} matches of {config.env.id} against the heuristic", "\n".join(lines)

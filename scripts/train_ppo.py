#!/usr/bin/env python
"""Train a team of mechs with PPO against a scripted opponent, or against its own past.

    python scripts/train_ppo.py --size 60 --updates 200
    python scripts/train_ppo.py --train-mode league --wandb --wandb-run-name experiment-01
    python scripts/train_ppo.py --resume latest --updates 400

The run's folder gets config.json, metrics.jsonl, checkpoints, the best one by win rate, and replays that
`twostep play` turns into pages. `twostep train skirmish` does the same from a file of settings.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from twostep import (
    ActorCritic,
    AgentConfig,
    EvalStats,
    JsonLinesSink,
    League,
    PPOConfig,
    PPOTrainer,
    SelfPlay,
    StatsLogger,
    VectorEnv,
    WandbSink,
    evaluate_vs_heuristic,
    make_policy,
)
from twostep.worlds.skirmish import EnvConfig, save_replay

EVAL_SEED = 1_000_000
"""Matches of evaluation count from here: the same at every evaluation, and none that training plays."""

TEAM_PPO = PPOConfig(lr=3e-4, lr_schedule="linear", rollout_steps=64, normalize_returns=True)
"""What the command line starts from; everything else is the default."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run = parser.add_argument_group("run")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--device", default=None, help="cpu or cuda; by itself a GPU where there is one")
    run.add_argument("--updates", type=int, default=200)
    run.add_argument("--run-dir", type=Path, default=Path("runs/train_ppo"), help="folder of this run")
    run.add_argument("--resume", default=None, metavar="PATH|latest", help="go on from a checkpoint")
    run.add_argument("--save-every", type=int, default=50, help="updates between checkpoints; 0: only the last")
    run.add_argument("--eval-every", type=int, default=20, help="updates between evaluations; 0: none")
    run.add_argument("--eval-episodes", type=int, default=50)
    run.add_argument("--no-replays", action="store_true", help="keep no replays of evaluations")
    world = parser.add_argument_group("world")
    world.add_argument("--num-envs", type=int, default=16)
    world.add_argument("--num-workers", type=int, default=None, help="processes; as many as there are cores")
    world.add_argument("--size", type=float, default=60.0, help="side of the arena in metres")
    world.add_argument("--team", nargs="+", default=["scout", "light", "medium", "medium", "heavy"])
    world.add_argument("--control", choices=("discrete", "continuous"), default="discrete")
    world.add_argument("--episode-seconds", type=float, default=60.0)
    world.add_argument("--train-mode", choices=("heuristic", "league"), default="heuristic")
    world.add_argument("--league-every", type=int, default=10, help="updates between copies that join the league")
    world.add_argument("--league-size", type=int, default=8)
    agent = parser.add_argument_group("agent")
    agent.add_argument("--memory", choices=("gru", "lstm", "none"), default="gru")
    agent.add_argument("--hidden-size", type=int, default=128)
    learning = parser.add_argument_group("learning")
    for name, value in asdict(TEAM_PPO).items():
        if type(value) in (int, float):
            learning.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    wandb = parser.add_argument_group("Weights & Biases")
    wandb.add_argument("--wandb", action="store_true", help="report there, too")
    wandb.add_argument("--wandb-mode", choices=("offline", "online"), default="offline")
    wandb.add_argument("--wandb-project", default="twostep")
    wandb.add_argument("--wandb-run-name", default=None)
    return parser.parse_args(argv)


def build_config(args: argparse.Namespace) -> tuple[EnvConfig, PPOConfig]:
    """Turn the command line into the settings of the matches and of PPO."""
    env_cfg = EnvConfig(team=tuple(args.team), size=args.size, control=args.control, max_seconds=args.episode_seconds)
    given = {name: getattr(args, name) for name in asdict(TEAM_PPO) if hasattr(args, name)}
    return env_cfg, PPOConfig(**(asdict(TEAM_PPO) | given))


class Logger:
    """Rows of a run: to metrics.jsonl, to the terminal, and to Weights & Biases where that is wanted."""

    def __init__(self, run_dir: Path, resume_step: int | None, wandb: WandbSink | None) -> None:
        rows = JsonLinesSink(run_dir / "metrics.jsonl", resume_step=resume_step)
        self.sinks = StatsLogger([rows] if wandb is None else [rows, wandb])

    def log_update(self, update: int, metrics: dict[str, float]) -> None:
        """Write what an update brought."""
        self.sinks.log({"update": update, **metrics}, int(metrics["timesteps"]))
        names = ("mean_reward", "policy_loss", "value_loss", "entropy", "approx_kl", "steps_per_second")
        print(f"update {update:5}  " + "  ".join(f"{name} {metrics[name]:.4g}" for name in names), flush=True)

    def log_eval(self, update: int, stats: EvalStats, step: int) -> None:
        """Write how an evaluation went."""
        low, high = stats.win_interval
        row = {"win_rate": stats.win_rate, "win_rate_low": low, "win_rate_high": high}
        row |= {"mean_hp_margin": stats.mean_hp_margin, "mean_episode_length": stats.mean_episode_length}
        self.sinks.log({"update": update, **{f"eval/{name}": value for name, value in row.items()}}, step)
        print(f"update {update:5}  {stats}", flush=True)


def setup_logging(
    args: argparse.Namespace, run_dir: Path, resume_step: int | None = None
) -> tuple[Logger, WandbSink | None]:
    """Open the run's folder for writing: its settings, its metrics and, if wanted, Weights & Biases."""
    run_dir.mkdir(parents=True, exist_ok=True)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    (run_dir / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    wandb = None
    if args.wandb:
        name = args.wandb_run_name or run_dir.name
        wandb = WandbSink(run_dir, project=args.wandb_project, name=name, mode=args.wandb_mode, config=settings)
    return Logger(run_dir, resume_step, wandb), wandb


def save_checkpoint(run_dir: Path, model: ActorCritic, trainer: PPOTrainer, update: int) -> Path:
    """Save all that is needed to go on after an update: `model` learns inside `trainer`, which saves it, too."""
    assert trainer.model is model
    return trainer.save_checkpoint(run_dir / "checkpoints" / f"update_{update:05d}")


def find_checkpoint(run_dir: Path, resume: str) -> tuple[Path, int]:
    """Return the checkpoint to go on from, `latest` or a path, and its update."""
    found = sorted(run_dir.glob("checkpoints/update_*")) if resume == "latest" else [Path(resume)]
    if not found or not found[-1].is_dir():
        raise SystemExit(f"--resume {resume}: there is no checkpoint in {run_dir}; leave --resume out to begin anew.")
    return found[-1], int(found[-1].name.removeprefix("update_"))


def make_trainer(
    args: argparse.Namespace, env_cfg: EnvConfig, ppo_cfg: PPOConfig, vec_env: VectorEnv
) -> tuple[PPOTrainer, Any]:
    """Build the team's policy and its trainer, and what it plays in: the matches, or self-play around them."""
    model = make_policy(vec_env, AgentConfig(memory=args.memory, memory_size=args.hidden_size), seed=args.seed)
    if args.train_mode == "heuristic":
        return PPOTrainer(model, vec_env, ppo_cfg, device=args.device, run_dir=args.run_dir, seed=args.seed), vec_env
    league = League(model, args.league_size)
    arena = SelfPlay(vec_env, league, learners="blue_*", seed=args.seed)
    trainer = PPOTrainer(model, arena, ppo_cfg, device=args.device, run_dir=args.run_dir, seed=args.seed)
    trainer.companions["league"] = league
    return trainer, arena


def evaluate(args: argparse.Namespace, env_cfg: EnvConfig, trainer: PPOTrainer, update: int) -> EvalStats:
    """Play the matches of evaluation, and keep the first one as a replay."""
    seeds = [EVAL_SEED + match for match in range(args.eval_episodes)]
    stats, replay = evaluate_vs_heuristic(
        trainer.model, env_cfg, args.eval_episodes, seeds, trainer.device, save_replay=not args.no_replays
    )
    if replay is not None:
        save_replay(replay, args.run_dir / "replays" / f"update_{update:05d}.npz")
    return stats


def keep_best(run_dir: Path, trainer: PPOTrainer, stats: EvalStats, update: int) -> None:
    """Save the trainer where it won more matches than before or, among equals, kept more hit points."""
    path = run_dir / "best.json"
    before = json.loads(path.read_text()) if path.exists() else {"win_rate": -1.0, "mean_hp_margin": 0.0}
    if (stats.win_rate, stats.mean_hp_margin) > (before["win_rate"], before["mean_hp_margin"]):
        trainer.save_checkpoint(run_dir / "best")
        path.write_text(json.dumps({"update": update, **stats.to_dict()}, indent=1) + "\n")


def main(argv: list[str] | None = None) -> None:
    """Train: collect, learn, log, evaluate, save."""
    args = parse_args(argv)
    env_cfg, ppo_cfg = build_config(args)
    everybody = "*" if args.train_mode == "league" else "blue_*"
    vec_env = VectorEnv(args.num_envs, env_cfg, num_workers=args.num_workers, seed=args.seed, agent_ids=everybody)
    with ExitStack() as closing:
        closing.enter_context(vec_env)
        trainer, env = make_trainer(args, env_cfg, ppo_cfg, vec_env)
        start = 0
        if args.resume:
            checkpoint, start = find_checkpoint(args.run_dir, args.resume)
            trainer.load_checkpoint(checkpoint)
        logger, _ = setup_logging(args, args.run_dir, trainer.total_timesteps if args.resume else None)
        closing.callback(logger.sinks.close)
        for update in range(start + 1, args.updates + 1):
            trainer.learner.set_progress((update - 1) / args.updates)
            started, before = time.perf_counter(), trainer.total_timesteps
            buffer = trainer.collect_rollout(env, env.agent_ids)
            metrics = trainer.update(buffer)
            seconds = time.perf_counter() - started
            metrics |= {
                "timesteps": trainer.total_timesteps,
                "mean_reward": fmean(trainer.episode_rewards or [math.nan]),
                "steps_per_second": (trainer.total_timesteps - before) / seconds,
            }
            logger.log_update(update, metrics)
            if args.train_mode == "league" and update % args.league_every == 0:
                trainer.companions["league"].add(name=f"update_{update}")
            if args.eval_every > 0 and update % args.eval_every == 0:
                stats = evaluate(args, env_cfg, trainer, update)
                logger.log_eval(update, stats, trainer.total_timesteps)
                keep_best(args.run_dir, trainer, stats, update)
            if update == args.updates or (args.save_every > 0 and update % args.save_every == 0):
                save_checkpoint(args.run_dir, trainer.model, trainer, update)


if __name__ == "__main__":
    main()

#!/usr/bin/env python
"""Train a team of mechs with PPO against a scripted opponent, or against its own past.

    python scripts/train_ppo.py --size 60 --updates 200
    python scripts/train_ppo.py --train-mode arena --wandb --wandb-run-name experiment-01
    python scripts/train_ppo.py --resume latest --updates 400

The run's folder gets config.json, metrics.jsonl, checkpoints, the best one by win rate, and replays; `twostep eval` and
`twostep play` take it like any other. `twostep train skirmish` does the same from a file of settings.
"""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import ArgumentParser, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

from twostep import (
    ActorCritic,
    EvalStats,
    JsonLinesSink,
    League,
    PPOTrainer,
    SelfPlay,
    StatsLogger,
    VectorEnv,
    WandbSink,
    evaluate_vs_heuristic,
    make_policy,
)
from twostep.checkpoint import TrainingCheckpointer
from twostep.cli.locking import RunLock
from twostep.cli.stopping import Stopping
from twostep.config import SETTINGS_FILE, AgentConfig, EnvironmentConfig, PPOConfig, SelfPlayConfig, TrainingConfig
from twostep.config.arguments import add_settings, parse_run
from twostep.errors import CheckpointError, ConfigError
from twostep.files import replace_text
from twostep.worlds.skirmish import EnvConfig, save_replay

EVAL_SEED = 1_000_000
"""What matches of evaluation are drawn from: the same at every evaluation, and none that training plays."""
PACK = ("scout", "light", "medium", "medium", "heavy")
TEAM_PPO = PPOConfig(lr=3e-4, lr_schedule="linear", rollout_steps=64, normalize_returns=True)
"""What the command line starts from; everything else is the default."""
WORKERS = ("restarts", "step_timeout", "start_method")
FIXED = ("seed", "team", "packs_per_team", "size", "control", "dt_sim", "decision_repeat", "episode_seconds")
FIXED += ("train_mode", "memory", "hidden_size", "bptt_length", "optimizer", "weight_decay", "adam_eps")
"""What cannot change in the middle of a run."""


def parse_args(argv: list[str] | None = None) -> Namespace:
    """Read the command line; where a run goes on, its own settings are the defaults."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    run = parser.add_argument_group("run")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--device", default=None, help="cpu or cuda; by itself a GPU where there is one")
    run.add_argument("--updates", type=int, default=200)
    run.add_argument("--run-dir", type=Path, default=Path("runs/train"), help="folder of this run")
    run.add_argument("--resume", metavar="PATH|latest", help="go on from a checkpoint, or from the newest of --run-dir")
    run.add_argument("--save-every", type=int, default=50, help="updates between checkpoints; 0: only the last")
    run.add_argument("--eval-every", type=int, default=20, help="updates between evaluations; 0: none")
    run.add_argument("--eval-episodes", type=int, default=50)
    run.add_argument("--eval-seeds", default="", help="seeds of these matches, with commas, in place of drawn ones")
    run.add_argument("--save-eval-replay", action=BooleanOptionalAction, default=True)
    world = parser.add_argument_group("world")
    world.add_argument("--num-workers", type=int, default=None, help="processes; as many as there are cores")
    add_settings(world, EnvironmentConfig(num_envs=16), ("num_envs", *WORKERS))
    world.add_argument("--packs-per-team", type=int, default=1, help=f"a pack is {', '.join(PACK)}")
    world.add_argument("--team", nargs="+", default=None, metavar="CLASS", help="another team, mech by mech")
    add_settings(world, EnvConfig(), ("size", "control"))
    world.add_argument("--dt-sim", type=float, default=0.1, help="seconds of a step of motion")
    world.add_argument("--decision-repeat", type=int, default=4, help="steps of motion per decision")
    world.add_argument("--episode-seconds", type=float, default=60.0)
    world.add_argument("--train-mode", choices=("heuristic", "arena"), default="heuristic", help="arena: past selves")
    world.add_argument("--arena-every", type=int, default=10, help="updates between copies that join the arena")
    world.add_argument("--arena-size", type=int, default=8, help="copies that are kept")
    agent = parser.add_argument_group("agent")
    agent.add_argument("--memory", choices=("gru", "lstm", "none"), default="gru")
    agent.add_argument("--hidden-size", type=int, default=128)
    add_settings(parser.add_argument_group("learning"), TEAM_PPO)
    wandb = parser.add_argument_group("Weights & Biases")
    wandb.add_argument("--wandb", action="store_true", help="report there, too")
    wandb.add_argument("--wandb-mode", choices=("offline", "online"), default="offline")
    wandb.add_argument("--wandb-tags", nargs="*", default=None)
    for name in ("project", "entity", "run-name", "group", "id", "resume"):
        wandb.add_argument(f"--wandb-{name}", default=None)
    return parse_run(parser, argv, FIXED)


def build_config(args: Namespace) -> tuple[EnvConfig, PPOConfig]:
    """Turn the command line into the settings of the matches and of PPO."""
    how = {"tick_seconds": args.dt_sim, "ticks_per_step": args.decision_repeat, "max_seconds": args.episode_seconds}
    team = args.team or PACK * args.packs_per_team
    env_cfg = EnvConfig(team=tuple(team), size=args.size, control=args.control, **how)
    return env_cfg, PPOConfig(**{field.name: getattr(args, field.name) for field in fields(PPOConfig)})


class Logger:
    """Rows of a run: to metrics.jsonl, to the terminal, and to Weights & Biases where that is wanted."""

    def __init__(self, run_dir: Path, resume_step: int | None, wandb: WandbSink | None) -> None:
        self.rows = JsonLinesSink(run_dir / "metrics.jsonl", resume_step=resume_step)
        self.service = StatsLogger([] if wandb is None else [wandb])
        self.rows.log({"type": "start"}, resume_step or 0)

    def log_update(self, update: int, metrics: dict[str, float]) -> None:
        """Write what an update brought."""
        self._log("update", update, metrics, int(metrics["timesteps"]))
        names = ("mean_reward", "policy_loss", "value_loss", "entropy", "approx_kl", "steps_per_second")
        print(f"update {update:5}  " + "  ".join(f"{name} {metrics[name]:.4g}" for name in names), flush=True)

    def log_eval(self, update: int, stats: EvalStats, step: int) -> None:
        """Write how an evaluation went."""
        self._log("eval", update, {f"eval/{name}": value for name, value in stats.metrics().items()}, step)
        print(f"update {update:5}  {stats}", flush=True)

    def _log(self, kind: str, update: int, metrics: dict[str, float], step: int) -> None:
        self.rows.log({"type": kind, "update": update, **metrics}, step)
        self.service.log({"update": update, **metrics}, step)

    def close(self) -> None:
        """Write what is left."""
        self.rows.close()
        self.service.close()


def setup_logging(args: Namespace, run_dir: Path, resume_step: int | None = None) -> tuple[Logger, WandbSink | None]:
    """Open the run's folder for writing: its settings, its metrics and, if wanted, Weights & Biases."""
    settings = {name: value for name, value in vars(args).items() if name not in ("run_dir", "resume", "checkpoint")}
    if resume_step is None:
        replace_text(run_dir / SETTINGS_FILE, json.dumps(settings, indent=1) + "\n")
    wandb = None
    if args.wandb:
        names = ("mode", "project", "entity", "group", "tags", "id", "resume")
        given = {name: settings[f"wandb_{name}"] for name in names if settings[f"wandb_{name}"] is not None}
        wandb = WandbSink(run_dir, config=settings, name=args.wandb_run_name or run_dir.name, **given)
    return Logger(run_dir, resume_step, wandb), wandb


def save_checkpoint(run_dir: Path, model: ActorCritic, trainer: PPOTrainer, update: int) -> Path:
    """Save all that is needed to go on after an update: `model` learns inside `trainer`, which saves it, too."""
    assert trainer.model is model
    path = trainer.save_checkpoint(run_dir / "checkpoints" / f"step_{trainer.total_timesteps:012d}")
    print(f"update {update:5}  saved {path}", flush=True)
    return path


def make_trainer(args: Namespace, ppo_cfg: PPOConfig, vec_env: VectorEnv) -> tuple[PPOTrainer, Any]:
    """Build the team's policy and its trainer, and what it plays in: the matches, or self-play around them."""
    model = make_policy(vec_env, AgentConfig(memory=args.memory, memory_size=args.hidden_size), seed=args.seed)
    league = League(model, args.arena_size)
    plays_itself = args.train_mode == "arena"
    env = SelfPlay(vec_env, league, learners="blue_*", seed=args.seed) if plays_itself else vec_env
    trainer = PPOTrainer(model, env, ppo_cfg, device=args.device, run_dir=args.run_dir, seed=args.seed)
    trainer.companions |= {"league": league} if plays_itself else {}
    return trainer, env


def describe_run(args: Namespace, env_cfg: EnvConfig, ppo_cfg: PPOConfig) -> TrainingConfig:
    """Say it all as `twostep eval` and `twostep play` read it."""
    agent = AgentConfig(memory=args.memory, memory_size=args.hidden_size)
    rules = {name: value for name, value in env_cfg.to_dict().items() if name != "seed"}
    env = EnvironmentConfig(id="skirmish", num_envs=args.num_envs, kwargs=rules)
    arena = SelfPlayConfig(snapshot_every=args.arena_every * (args.train_mode == "arena"), league_size=args.arena_size)
    return TrainingConfig(seed=args.seed, env=env, agent=agent, ppo=ppo_cfg, self_play=arena)


def evaluate(args: Namespace, env_cfg: EnvConfig, trainer: PPOTrainer, update: int) -> EvalStats:
    """Play the matches of evaluation, and keep the first one as a replay."""
    seeds = [int(seed) for seed in args.eval_seeds.split(",") if seed]
    matches = (env_cfg, len(seeds) or args.eval_episodes, seeds or EVAL_SEED)
    stats, replay = evaluate_vs_heuristic(trainer.model, *matches, trainer.device, save_replay=args.save_eval_replay)
    if replay is not None:
        save_replay(replay, args.run_dir / "replays" / f"update_{update:05d}.npz")
    return stats


def keep_best(run_dir: Path, trainer: PPOTrainer, stats: EvalStats, update: int) -> None:
    """Save the trainer where it won more matches than before or, among equals, kept more hit points."""
    path = run_dir / "best.json"
    before = json.loads(path.read_text()) if path.exists() else {"update": update}
    rank = (before["win_rate"], before["mean_hp_margin"]) if before["update"] < update else (-1.0, 0.0)
    if (stats.win_rate, stats.mean_hp_margin) > rank:
        trainer.save_checkpoint(run_dir / "best")
        replace_text(path, json.dumps({"update": update, **stats.to_dict()}, indent=1) + "\n")


def train(args: Namespace) -> int:
    """Collect, learn, log, evaluate, save; return the exit code."""
    env_cfg, ppo_cfg = build_config(args)
    everybody = "*" if args.train_mode == "arena" else "blue_*"
    how = {name: getattr(args, name) for name in ("num_workers", "seed", *WORKERS)}
    with ExitStack() as closing:
        args.run_dir.mkdir(parents=True, exist_ok=True)
        closing.enter_context(RunLock(args.run_dir))
        vec_env = closing.enter_context(VectorEnv(args.num_envs, env_cfg, agent_ids=everybody, **how))
        trainer, env = make_trainer(args, ppo_cfg, vec_env)
        if args.resume:
            TrainingCheckpointer(args.run_dir / "checkpoints").resume(trainer, args.checkpoint)
        else:
            describe_run(args, env_cfg, ppo_cfg).save_yaml(args.run_dir / "config.yaml")
        logger, _ = setup_logging(args, args.run_dir, trainer.total_timesteps if args.resume else None)
        closing.callback(logger.close)
        stopping = closing.enter_context(Stopping())
        for update in range(trainer.n_updates + 1, args.updates + 1):
            trainer.learner.set_progress((update - 1) / args.updates)
            started, before = time.perf_counter(), trainer.total_timesteps
            buffer = trainer.collect_rollout(env, env.agent_ids)
            metrics = trainer.update(buffer) | {
                "timesteps": trainer.total_timesteps,
                "mean_reward": fmean(trainer.episode_rewards or [math.nan]),
                "steps_per_second": (trainer.total_timesteps - before) / (time.perf_counter() - started),
            }
            logger.log_update(update, metrics)
            if args.train_mode == "arena" and update % args.arena_every == 0:
                trainer.companions["league"].add(name=f"update_{update}")
            if args.eval_every > 0 and update % args.eval_every == 0:
                stats = evaluate(args, env_cfg, trainer, update)
                logger.log_eval(update, stats, trainer.total_timesteps)
                keep_best(args.run_dir, trainer, stats, update)
            last = update == args.updates or stopping.received is not None
            if last or (args.save_every > 0 and update % args.save_every == 0):
                save_checkpoint(args.run_dir, trainer.model, trainer, update)
            if last:
                break
    return stopping.exit_code


def main(argv: list[str] | None = None) -> int:
    """Train as the command line says; what is wrong with it is said in one line."""
    try:
        return train(parse_args(argv))
    except (ConfigError, CheckpointError) as error:
        print(f"train_ppo: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())

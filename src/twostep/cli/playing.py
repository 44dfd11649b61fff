"""`twostep play`: look at a match, or at an agent in its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image

from twostep.cli.evaluations import REPLAYS, SKIRMISH
from twostep.cli.options import PlayRequest, UsageError
from twostep.cli.runs import find_run
from twostep.cli.terrains import (
    FILM_FILE,
    QUADRUPED,
    cells_of,
    draw_terrains,
    film_terrains,
    score_on_terrains,
)
from twostep.cli.trained import Trained, names_policy
from twostep.cli.training import build
from twostep.config import TrainingConfig
from twostep.config.environments import make_configured
from twostep.errors import ConfigError
from twostep.replay import read_replay, write_animation, write_page
from twostep.replay.animation import write_film
from twostep.replay.events import describe

REPLAY_SUFFIX = ".npz"
_FILM_WIDTH, _FILM_FPS, _FILM_PICTURES = 360, 12.5, 400
"""Films of other environments have pixels of any kind, and so need more room than drawn matches: keep them small."""
_USUAL_FPS = 30
_PER_CELL = 2
"""Episodes in each cell of a grid of terrains, unless so many are asked for."""


def run_play(request: PlayRequest) -> int:
    """Write what can be watched, and say where it is; return the exit code."""
    given = Path(request.what)
    if given.suffix == REPLAY_SUFFIX or given.is_file():
        if request.seed is not None or request.episodes is not None:
            raise UsageError(
                f"--seed and --episodes are for runs, but {given} is a match that was played. Leave them out."
            )
        _show(read_replay(given), given, request, given.parent)
        return 0
    if request.seed is None and request.episodes is None and not names_policy(request.what):
        folder = find_run(request.what)
        newest = _newest_replay(folder)
        if newest is not None:
            _show(read_replay(newest), newest, request, folder)
            return 0
    trained = Trained.found(request.what)
    config = trained.config()
    seed = config.seed + 1 if request.seed is None else request.seed
    config = replace(config, seed=seed, device=request.device or config.device)
    play = {SKIRMISH: _play_match, QUADRUPED: _play_terrains}.get(config.env.id, _film)
    play(config, trained, request)
    return 0


def _newest_replay(folder: Path) -> Path | None:
    found = (folder / REPLAYS).glob(f"*{REPLAY_SUFFIX}")
    return max(found, key=lambda file: (file.stat().st_mtime_ns, file.name), default=None)


def _show(replay: dict[str, Any], named: Path, request: PlayRequest, beside: Path) -> None:
    """Write page and animation under the replay's name."""
    stem = Path(request.out or beside) / named.stem
    page = write_page(replay, _ending(stem, ".html"))
    print(f"{describe(replay)}\n  {page}: open it in a browser")
    if request.animation:
        print(f"  {write_animation(replay, _ending(stem, '.gif'))}: the same as an animation")


def _ending(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)


def _play_match(config: TrainingConfig, trained: Trained, request: PlayRequest) -> None:
    """Play new matches against the scripted opponent, and show the first."""
    from twostep.evaluation import evaluate_vs_heuristic
    from twostep.worlds.skirmish import EnvConfig

    env, trainer = build(config, num_envs=1)
    try:
        trained.load_into(trainer)
        episodes = request.episodes or 1
        seeds = [config.seed + number for number in range(episodes)]
        rules = EnvConfig.from_dict(config.env.kwargs)
        stats, replay = evaluate_vs_heuristic(trainer.policy, rules, episodes, seeds, trainer.device, save_replay=True)
    finally:
        env.close()
    assert replay is not None
    if episodes > 1:
        print(stats)
    _show(replay, Path(f"match_seed_{config.seed}"), request, trained.folder)


def _play_terrains(config: TrainingConfig, trained: Trained, request: PlayRequest) -> None:
    """Draw how a robot does on its whole grid of terrains, and film it on every type."""
    env, trainer = build(config, num_envs=1)
    env.close()
    trained.load_into(trainer)
    folder = Path(request.out or trained.folder)
    scores = score_on_terrains(config, trainer.policy, request.episodes or _PER_CELL * len(cells_of(config)))
    print(scores.table())
    print(f"  {draw_terrains(scores, folder, trained.folder.name)}: success in every cell")
    if request.animation:
        print(f"  {film_terrains(config, trainer.policy, scores, folder / FILM_FILE)}: open it in a browser")


def _film(config: TrainingConfig, trained: Trained, request: PlayRequest) -> None:
    """Film episodes of an environment that draws itself."""
    if not request.animation:
        raise UsageError(f"{config.env.id} can only be shown as an animation: leave --no_animation out.")
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        # Pictures need no screen; these libraries draw without one where they are told to.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    rendered = _drawing(config)
    env, trainer = build(rendered, num_envs=1)
    try:
        trained.load_into(trainer)
        film = _Film(env, trainer.policy, request.episodes or 1, config.seed)
        target = Path(request.out or trained.folder) / f"episode_seed_{config.seed}.gif"
        path = write_film(film.pictures(), target, film.fps)
    finally:
        env.close()
    print(f"{config.env.id}, seed {config.seed}: {film.outcome()}")
    print(f"  {path}: open it in a browser")


def _drawing(config: TrainingConfig) -> TrainingConfig:
    """Return the settings of the same environment, alone, with pictures of itself."""
    plain = replace(config.env, vectorization="serial", num_workers=0, num_envs=1)
    env = make_configured(replace(config, env=plain), 1)
    modes = [mode for single in getattr(env, "envs", ()) for mode in _about(single).get("render_modes") or ()]
    env.close()
    if "rgb_array" not in modes:
        known = f"knows only {', '.join(modes)}" if modes else "draws nothing"
        raise ConfigError(
            f"{config.env.id} cannot be filmed: it {known}, and render_mode='rgb_array' is needed. "
            f"'twostep eval' says how well the agent does."
        )
    return replace(config, env=replace(plain, kwargs={**plain.kwargs, "render_mode": "rgb_array"}))


def _about(single: Any) -> dict[str, Any]:
    """Return what an environment says about how it draws itself."""
    return getattr(getattr(single, "unwrapped", single), "metadata", None) or {}


@dataclass
class _Film:
    """A policy in an environment, picture by picture."""

    env: Any
    policy: Any
    episodes: int
    seed: int

    def __post_init__(self) -> None:
        self._returns, self._steps = [0.0], 0
        self._camera = self.env.envs[0]
        fps = float(_about(self._camera).get("render_fps") or _USUAL_FPS)
        self._every = max(1, round(fps / _FILM_FPS))
        self.fps = fps / self._every

    def pictures(self) -> Iterator[Image.Image]:
        """Play, and yield a picture every so many steps, before the step is taken; so many pictures at most."""
        from twostep.policies.playing import Player

        step = self.env.reset(self.seed)
        with Player(self.policy, self.env.action_space, self.env.num_rows, None) as player:
            while len(self._returns) <= self.episodes and self._steps < _FILM_PICTURES * self._every:
                if self._steps % self._every == 0:
                    yield self._picture()
                step = self.env.step(player.act(step))
                self._steps += 1
                self._returns[-1] += float(np.mean(step.rewards))
                if np.all(step.episode_starts):
                    self._returns.append(0.0)

    def outcome(self) -> str:
        """Say how far it got, and what that brought."""
        *ended, going_on = self._returns
        if not ended:
            return f"return {going_on:,.1f} in the first {self._steps:,} steps, with which the film ends"
        episodes = f"{len(ended)} episodes" if len(ended) > 1 else "an episode"
        cut = "" if len(ended) == self.episodes else f"; the film ends before the other {self.episodes - len(ended)}"
        return f"mean return {fmean(ended):,.1f} of {episodes}, {self._steps:,} steps{cut}"

    def _picture(self) -> Image.Image:
        try:
            drawn = np.asarray(self._camera.render())
        except Exception as error:  # whatever a foreign drawing library raises
            raise ConfigError(
                f"the environment cannot draw itself here: {type(error).__name__}: {error}. Install what it needs for "
                f"render_mode='rgb_array'; 'twostep eval' says how well the agent does."
            ) from error
        if drawn.ndim != 3 or drawn.shape[2] != 3 or drawn.dtype != np.uint8:
            raise ConfigError(
                f"the environment draws {drawn.dtype} of shape {drawn.shape}, not pictures [H, W, 3] of bytes."
            )
        picture = Image.fromarray(drawn)
        picture.thumbnail((_FILM_WIDTH, _FILM_WIDTH))
        return picture

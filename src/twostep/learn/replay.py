"""Past rollouts to learn from again: kept in memory or as files, the recent ones drawn more often."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from twostep.checkpoint import generator_state, restore_generator
from twostep.columns import TREES
from twostep.errors import ConfigError, RolloutError
from twostep.experience import combine_rollouts, load_rollouts, rollout_digest, save_rollouts, select_rows
from twostep.learn.revaluing import judged, revalued, staleness
from twostep.rollout import RolloutBuffer
from twostep.tree import tree_map

if TYPE_CHECKING:
    from twostep.learn.ppo import PPOOptimizer

_LOG = logging.getLogger("twostep.replay")


@dataclass(frozen=True)
class Replayed:
    """Past experience for one update."""

    rollout: RolloutBuffer | None
    """Rows of past rollouts as the present critic values them; what was not drawn is not valid. None without any."""
    metrics: dict[str, float]
    """`replay_share` of the update, and how stale it is: `replay_kl`, `replay_clipfrac`, and its mean age in updates
    (`replay_age`) and in steps collected since (`replay_age_steps`)."""


@dataclass
class _Kept:
    """A rollout that is kept, and what must be known of it to draw from it."""

    number: int
    """How many came before it."""
    steps: int
    """How many steps had been collected when it was complete."""
    counts: list[int]
    """Steps of each row that count."""
    where: RolloutBuffer | Path


class ReplayBuffer:
    """Keeps the newest rollouts, and draws from them what is learned from beside a fresh one.

    >>> replay = ReplayBuffer(ratio=0.5)
    >>> rollout = collector.rollout()
    >>> metrics = learner.update(rollout, replayed=replay.draw(learner, rollout))
    >>> replay.add(rollout)

    What is drawn is learned from like anything else: weighted by the probability ratio to the policy that acted, and
    clipped. Its values and advantages are those of the present critic. Advantages are not corrected for the actions
    that the present policy would have taken afterwards, so the older the experience, the less they mean.

    Args:
        folder: Where rollouts are kept as files; None keeps them in memory.
        keep: How many rollouts are kept.
        ratio: Part of everything an update learns from that is past experience; 0 draws nothing.
        recency: The newest rollout is drawn e^recency times as often as the oldest, those between in even steps.
        seed: What is drawn grows from it.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        keep: int = 50,
        ratio: float = 0.5,
        recency: float = 2.0,
        seed: int = 0,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"keep={keep} must be 1 or more: 50 rollouts are usual.")
        if not 0 <= ratio < 1:
            raise ConfigError(
                f"ratio={ratio} must be at least 0 and below 1: 0.5 learns as much from past as from new."
            )
        if not (math.isfinite(recency) and recency >= 0):
            raise ConfigError(f"recency={recency} must be 0 or more: 0 draws all alike, 2 is usual.")
        self.folder = Path(folder) if folder is not None else None
        self.keep, self.ratio, self.recency = keep, ratio, recency
        self.generator = torch.Generator().manual_seed(seed)
        self.added = 0
        """How many rollouts were ever added, which is also the number of updates where each is learned from once."""
        self.steps = 0
        """How many steps were in them."""
        self._kept: deque[_Kept] = deque()
        self._could_not_save = False

    def __len__(self) -> int:
        """Return how many rollouts are kept."""
        return len(self._kept)

    # ------------------------------------------------------------------ keeping

    def add(self, rollout: RolloutBuffer | Mapping[str, Any]) -> None:
        """Keep a copy of a rollout; the oldest goes where there are more than `keep`.

        A disk that fails is warned of once, and the rollout is not kept; nor is one in which no step counts.
        """
        buffer = rollout if isinstance(rollout, RolloutBuffer) else RolloutBuffer.from_dict(rollout)
        counts = buffer.valid.sum(0).tolist()
        number = self.added
        self.added += 1
        self.steps += sum(counts)
        if not sum(counts):
            return
        where = _copied(buffer) if self.folder is None else self._saved(buffer, self.folder)
        if where is not None:
            self._kept.append(_Kept(number, self.steps, counts, where))
        self._forget_oldest()

    def _saved(self, rollout: RolloutBuffer, folder: Path) -> Path | None:
        try:
            return save_rollouts(rollout, folder / f"step_{self.steps:012d}.safetensors")
        except RolloutError as error:
            if not self._could_not_save:
                _LOG.warning("training goes on without keeping this rollout: %s", error)
            self._could_not_save = True
            return None

    def _forget_oldest(self) -> None:
        while len(self._kept) > self.keep:
            _remove(self._kept.popleft().where)

    # ------------------------------------------------------------------ drawing

    def draw(self, learner: PPOOptimizer, fresh: RolloutBuffer) -> Replayed | None:
        """Draw what is learned from beside `fresh`: past steps so that they are `ratio` of all, or all there are.

        Rows are drawn whole, so that advantages are those of whole stretches of time; then single sequences are left
        out until the number is right. None where `ratio` is 0.
        """
        if not self.ratio:
            return None
        fresh_steps = int(fresh.valid.sum())
        wanted = round(fresh_steps * self.ratio / (1 - self.ratio))
        parts: list[RolloutBuffer] = []
        ages: list[tuple[int, int]] = []
        for kept, rows in self._drawn_rows(wanted):
            rollout = self._loaded(kept)
            if rollout is not None:
                parts.append(select_rows(rollout, rows).to(learner.device))
                ages += [(self.added - kept.number, self.steps + fresh_steps - kept.steps)] * len(rows)
        if not parts:
            return Replayed(None, dict.fromkeys(_METRICS, math.nan) | {"replay_share": 0.0})
        joined = replace(combine_rollouts(parts), episodes=[])
        return self._thinned(learner, joined, wanted, fresh_steps, torch.tensor(ages, dtype=torch.float64))

    def _drawn_rows(self, wanted: int) -> Iterator[tuple[_Kept, list[int]]]:
        """Choose rows without taking one twice until they have as many steps as wanted; yield them by rollout."""
        if not self._kept or not wanted:
            return
        kept = list(self._kept)
        weights = torch.linspace(-self.recency, 0.0, len(kept)).exp().tolist()
        places = [(i, row) for i, one in enumerate(kept) for row, count in enumerate(one.counts) if count]
        alike = [sum(count > 0 for count in one.counts) for one in kept]
        chances = torch.tensor([weights[i] / alike[i] for i, _ in places])
        order = torch.multinomial(chances, len(places), generator=self.generator).tolist()
        chosen: dict[int, list[int]] = {}
        steps = 0
        for place in order:
            if steps >= wanted:
                break
            i, row = places[place]
            chosen.setdefault(i, []).append(row)
            steps += kept[i].counts[row]
        for i in sorted(chosen):
            yield kept[i], sorted(chosen[i])

    def _loaded(self, kept: _Kept) -> RolloutBuffer | None:
        """Return a kept rollout, or forget it, loudly, where its file is gone or damaged."""
        if isinstance(kept.where, RolloutBuffer):
            return kept.where
        try:
            return load_rollouts(kept.where)
        except RolloutError as error:
            _LOG.warning("a rollout is not learned from again: %s", error)
            self._kept.remove(kept)
            return None

    def _thinned(
        self, learner: PPOOptimizer, past: RolloutBuffer, wanted: int, fresh_steps: int, ages: Tensor
    ) -> Replayed:
        """Value rows anew, leave out what is too much, and measure the rest."""
        present = judged(learner.policy, past)
        past = revalued(past, present.values)
        past.compute_gae(gamma=learner.config.gamma, gae_lambda=learner.config.gae_lambda)
        past.valid = past.valid & self._share(past, wanted)
        counts = past.valid.sum(0).double().cpu()
        steps = float(counts.sum())
        age, age_steps = (counts @ ages / steps).tolist()
        moved = staleness(past, present.logprobs, learner.config.clip_coef)
        return Replayed(
            past,
            {
                "replay_share": steps / (steps + fresh_steps),
                "replay_kl": moved["approx_kl"],
                "replay_clipfrac": moved["clipfrac"],
                "replay_age": age,
                "replay_age_steps": age_steps,
            },
        )

    def _share(self, rollout: RolloutBuffer, wanted: int) -> Tensor:
        """Return a mask `[T, B]` of whole sequences, drawn evenly, that have as many valid steps as wanted."""
        steps, length = rollout.num_steps, rollout.sequence_length
        per_row = -(-steps // length)
        padded = torch.nn.functional.pad(rollout.valid.cpu(), (0, 0, 0, per_row * length - steps))
        counts = padded.unflatten(0, (per_row, length)).sum(1).flatten()
        order = torch.randperm(len(counts), generator=self.generator)
        before = counts[order].cumsum(0) - counts[order]
        chosen = torch.zeros(len(counts), dtype=torch.bool)
        chosen[order] = before < wanted
        by_step = chosen.unflatten(0, (per_row, -1)).repeat_interleave(length, dim=0)[:steps]
        return by_step.to(rollout.device)

    # ------------------------------------------------------------------ going on

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on: of files their names and digests, of memory the rollouts themselves."""
        kept = [{"number": one.number, "steps": one.steps, "counts": one.counts} | _stored(one) for one in self._kept]
        return {"added": self.added, "steps": self.steps, "kept": kept, "rng": generator_state(self.generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`.

        Files that are gone or are not those of then are named in a warning and not drawn from any more. Files of later
        steps are removed: they are collected again.
        """
        self.added, self.steps = state["added"], state["steps"]
        restore_generator(self.generator, state["rng"])
        self._kept.clear()
        missing: list[str] = []
        for one in state["kept"]:
            where = self._found(one)
            if where is None:
                missing.append(str(one["file"]))
            else:
                self._kept.append(_Kept(one["number"], one["steps"], list(one["counts"]), where))
        if missing:
            _LOG.warning(
                "%d of %d rollouts are not where they were when the checkpoint was saved, %s, and are not learned from "
                "again: %s",
                *(len(missing), len(state["kept"]), self.folder, ", ".join(missing)),
            )
        self._remove_later()
        self._forget_oldest()

    def _found(self, one: dict[str, Any]) -> RolloutBuffer | Path | None:
        if "rollout" in one:
            return RolloutBuffer.from_dict(one["rollout"])
        if self.folder is None:
            return None
        path = self.folder / one["file"]
        try:
            return path if rollout_digest(path) == one["digest"] else None
        except RolloutError:
            return None

    def _remove_later(self) -> None:
        for path in sorted(self.folder.glob(_PATTERN)) if self.folder is not None else ():
            if _step_of(path) > self.steps:
                _remove(path)


_METRICS = ("replay_share", "replay_kl", "replay_clipfrac", "replay_age", "replay_age_steps")
_PATTERN = "step_*.safetensors"


def make_replay(settings: Any, seed: int, folder: Path | None = None) -> ReplayBuffer:
    """Make what the section `replay` of a configuration describes; rollouts are kept in `folder`, or in memory."""
    return ReplayBuffer(folder, keep=settings.kept, ratio=settings.ratio, recency=settings.recency, seed=seed)


def _step_of(path: Path) -> int:
    digits = path.stem.removeprefix("step_")
    return int(digits) if digits.isdecimal() else -1


def _copied(rollout: RolloutBuffer) -> RolloutBuffer:
    """Copy every tensor to the CPU: collectors may fill the same memory again."""
    columns = {
        name: tree_map(lambda leaf: leaf.detach().to("cpu", copy=True), getattr(rollout, name)) for name in TREES
    }
    return replace(rollout, **columns)


def _stored(kept: _Kept) -> dict[str, Any]:
    if isinstance(kept.where, RolloutBuffer):
        return {"rollout": kept.where.to_dict()}
    try:
        return {"file": kept.where.name, "digest": rollout_digest(kept.where)}
    except RolloutError:  # gone already: going on will say so
        return {"file": kept.where.name, "digest": None}


def _remove(where: RolloutBuffer | Path) -> None:
    if isinstance(where, Path):
        with contextlib.suppress(OSError):  # what stays only takes room
            where.unlink(missing_ok=True)

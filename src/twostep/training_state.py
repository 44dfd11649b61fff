"""How far a training is: what it counted, and the last episodes it saw."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import merge
from typing import Any

from twostep.group import ALONE, Group
from twostep.rollout import RolloutBuffer

RECENT_EPISODES = 100
"""How many episodes a mean return is over."""


def _recent() -> deque[float]:
    return deque(maxlen=RECENT_EPISODES)


@dataclass
class TrainingState:
    """The counters of a training loop, and the only thing that it changes besides its components.

    Processes that learn together count together, so that all of them have the same numbers.
    """

    agent_steps: int = 0
    """Steps of agents that counted, over all rows."""
    epoch: int = 0
    """Rollouts learned from."""
    episodes: int = 0
    """Episodes that ended."""
    rewarded: bool = False
    """Whether any reward so far was not 0."""
    episode_rewards: deque[float] = field(default_factory=_recent)
    """Returns of the last episodes."""
    episode_lengths: deque[float] = field(default_factory=_recent)
    statistics: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    """What the environment tells of the last episodes, by name."""
    should_stop: bool = False
    """Whoever sets this ends the loop after the present step."""
    group: Group = field(default=ALONE, compare=False, repr=False)
    """Whose steps and episodes are counted."""

    def count(self, rollout: RolloutBuffer, statistics: Iterable[str] = ()) -> int:
        """Take in what was collected, and return how many agent steps that were.

        `statistics` names the numbers of the episodes' last infos whose means are metrics, too.
        """
        names = tuple(statistics)
        own = [(one.step, one.ret, one.length, _numbers(one.info, names)) for one in rollout.episodes]
        rewarded = self.rewarded or bool(rollout.rewards[rollout.valid].any())
        told = self.group.tell((int(rollout.valid.sum()), rewarded, own))
        steps = sum(part for part, *_ in told)
        self.agent_steps += steps
        self.rewarded = any(part for _, part, _ in told)
        for _, episode_return, length, numbers in merge(*(ended for *_, ended in told), key=lambda ended: ended[0]):
            self.episodes += 1
            self.episode_rewards.append(episode_return)
            self.episode_lengths.append(length)
            for name, number in numbers.items():
                self.statistics.setdefault(name, _recent()).append(number)
        return steps

    def reached(self, solved_at: float | None) -> bool:
        """Say whether the mean return of a full window of episodes is at least that; None is never reached."""
        full = len(self.episode_rewards) == RECENT_EPISODES
        return solved_at is not None and full and mean(self.episode_rewards) >= solved_at

    def metrics(self) -> dict[str, float]:
        """Return the counters and the means over the last episodes, NaN before the first one."""
        return {
            "mean_reward": mean(self.episode_rewards),
            "mean_length": mean(self.episode_lengths),
            "timesteps": float(self.agent_steps),
            "updates": float(self.epoch),
            "episodes": float(self.episodes),
            **{f"episode/{name}": mean(told) for name, told in self.statistics.items()},
        }

    def about(self) -> dict[str, Any]:
        """Return what a saved policy says of how far it had come; its score is None before the first episode's end."""
        score = mean(self.episode_rewards) if self.episode_rewards else None
        return {"agent_step": self.agent_steps, "epoch": self.epoch, "score": score}

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as plain containers, by the names that checkpoints have for it."""
        return {
            "total_timesteps": self.agent_steps,
            "n_updates": self.epoch,
            "episodes": self.episodes,
            "rewarded": self.rewarded,
            "episode_rewards": list(self.episode_rewards),
            "episode_lengths": list(self.episode_lengths),
            "statistics": {name: list(told) for name, told in self.statistics.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.agent_steps, self.epoch, self.episodes = state["total_timesteps"], state["n_updates"], state["episodes"]
        self.rewarded = state.get("rewarded", True)
        self.episode_rewards = deque(state["episode_rewards"], maxlen=RECENT_EPISODES)
        self.episode_lengths = deque(state["episode_lengths"], maxlen=RECENT_EPISODES)
        self.statistics = {name: deque(told, maxlen=RECENT_EPISODES) for name, told in state["statistics"].items()}


class Counted:
    """Shows the counters of its `state` by the names that trainers have for them."""

    state: TrainingState

    @property
    def total_timesteps(self) -> int:
        """Steps of agents that counted, over all rows."""
        return self.state.agent_steps

    @total_timesteps.setter
    def total_timesteps(self, steps: int) -> None:
        """Count anew, for collecting of one's own in a trainer's place."""
        self.state.agent_steps = steps

    @property
    def n_updates(self) -> int:
        """Rollouts learned from."""
        return self.state.epoch

    @property
    def n_episodes(self) -> int:
        """Episodes that ended."""
        return self.state.episodes

    @property
    def episode_rewards(self) -> deque[float]:
        """Returns of the last episodes."""
        return self.state.episode_rewards

    @property
    def episode_lengths(self) -> deque[float]:
        """Lengths of the last episodes."""
        return self.state.episode_lengths


def _numbers(info: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    return {name: float(info[name]) for name in names if name in info}


def timings(steps: int, started: float, collected: float, learned: float) -> dict[str, float]:
    """Return how long both phases took, in seconds, and how many steps a second that makes."""
    return {
        "collect_time": collected - started,
        "learn_time": learned - collected,
        "steps_per_second": steps / (learned - started),
    }


def mean(numbers: Iterable[float]) -> float:
    """Return the mean, NaN of nothing."""
    values = list(numbers)
    return sum(values) / len(values) if values else math.nan

"""The settings of a whole run as one tree of dataclasses, from Python, dicts, YAML or a command line alike.

>>> config = TrainingConfig.from_dict({"env": "CartPole-v1", "learning_rate": "1e-3", "trainer": {"timesteps": 50_000}})
>>> config.ppo.lr, config.trainer.total_timesteps
(0.001, 50000)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from twostep.config.files import read_yaml, write_yaml
from twostep.config.loading import Entry, Path, Source, UnknownSettingError, Vocabulary, build, place
from twostep.config.names import ALIASES
from twostep.curriculum.settings import CurriculumConfig
from twostep.errors import ConfigError
from twostep.learn.settings import ImitationConfig, PPOConfig
from twostep.policies.settings import AgentConfig
from twostep.values import convert, settle
from twostep.vector.makers import require_own

_MOST_ENVS = 65_536
_SEEDS = 2**32
_USUAL_REPLAY = 50


@dataclass(kw_only=True)
class EnvironmentConfig:
    """What is trained on."""

    id: str = ""
    """A Gymnasium id such as `CartPole-v1`, `envpool:Pong-v5`, or `module:function` that makes an environment."""
    num_envs: int = 8
    """Environments stepped together."""
    num_workers: int = 0
    """Processes that step them, each its share; 0 steps them in this process, which is right for quick environments."""
    restarts: int = 3
    """How often in a row such a process may die, hang or raise, and be replaced: its episodes are lost; 0 stops."""
    step_timeout: float = 60.0
    """Seconds that a step or a reset may take in such a process before it counts as hanging."""
    start_method: Literal["spawn", "forkserver"] = "spawn"
    """How such processes start: each a new interpreter (spawn), or forked off one that has loaded what they need."""
    agent_ids: tuple[str, ...] = ()
    """Whom of many agents the policy controls, by ids or patterns such as `blue_*`; none: as the environment says."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the environment itself takes: `--env.kwargs.render_mode human`."""
    vectorization: Literal["serial", "sync", "async", "vector_entry_point"] = "serial"
    """How environments become one: in turn (serial; sync is Gymnasium's), in processes (async), or as they bring it."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        _require(self, "num_envs", 1 <= self.num_envs <= _MOST_ENVS, f"from 1 to {_MOST_ENVS}", "8 is a good start")
        rule = f"from 0 to num_envs={self.num_envs}"
        _require(self, "num_workers", 0 <= self.num_workers <= self.num_envs, rule, "0 steps them in this process")
        _require(self, "restarts", self.restarts >= 0, "0 or more", "3 is usual, 0 stops at the first failure")
        _require(self, "step_timeout", 0 < self.step_timeout <= 1e6, "above 0 and at most 1e6 seconds", "60 is usual")
        require_own(self.kwargs)


@dataclass(kw_only=True)
class TrainerConfig:
    """How long to train, and what to do on the way."""

    total_timesteps: int = 1_000_000
    """Agent steps to train for, over all environments."""
    log_interval: int = 1
    """Updates between rows of metrics."""
    checkpoint_every: int = 0
    """Steps between checkpoints on the way; 0 saves at the end only."""
    keep_last: int = 3
    """Checkpoints that are kept of the newest ones."""
    keep_every: int = 0
    """Steps between checkpoints that are kept for good; 0 keeps the newest only."""
    solved_at: float | None = None
    """Stop when the mean return of the last 100 episodes reaches this; none trains to the end."""
    eval_every: int = 0
    """Steps between evaluations on the way, which keep the best agent; 0 evaluates never."""
    eval_episodes: int = 20
    """Episodes of an evaluation."""
    suite: str = ""
    """A YAML file of cases that evaluations play instead of the run's own environment; empty plays that one."""
    group_timeout: float = 1800.0
    """Seconds that processes which learn together wait for one another, also while one evaluates or saves."""
    eval_background: bool = False
    """Whether a suite is played by a frozen copy of the agent while training goes on, one evaluation at a time."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        for name in ("total_timesteps", "log_interval", "eval_episodes", "keep_last"):
            _require(self, name, getattr(self, name) >= 1, "1 or more", "see its documentation")
        _require(self, "checkpoint_every", self.checkpoint_every >= 0, "0 or more", "0 saves at the end only")
        _require(self, "keep_every", self.keep_every >= 0, "0 or more", "0 keeps the newest only")
        _require(self, "eval_every", self.eval_every >= 0, "0 or more", "0 evaluates never")
        _require(self, "suite", not self.suite or self.eval_every > 0, "empty where eval_every=0", "set eval_every")
        _require(self, "group_timeout", 0 < self.group_timeout <= 1e6, "above 0, at most 1e6 seconds", "1800 is usual")
        has_suite = bool(self.suite) or not self.eval_background
        _require(self, "eval_background", has_suite, "false without a suite", "name one, which plays this env, say")


@dataclass(kw_only=True)
class SelfPlayConfig:
    """Playing against frozen past selves, where an environment has a side that the policy does not control."""

    snapshot_every: int = 0
    """Steps between copies of the policy that join the league; 0 leaves the other side to the environment's player."""
    league_size: int = 8
    """Copies that are kept."""
    heuristic_share: float = 0.25
    """Part of the episodes that are played against the environment's own player, so that it is not forgotten."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        _require(self, "snapshot_every", self.snapshot_every >= 0, "0 or more", "0 switches self-play off")
        _require(self, "league_size", self.league_size >= 1, "1 or more", "8 is a good start")
        _require(self, "heuristic_share", 0 <= self.heuristic_share <= 1, "between 0 and 1", "0.25 is a good start")


@dataclass(kw_only=True)
class ReplayConfig:
    """Keeping past experience, and learning from it again."""

    ratio: float = 0.0
    """Part of what every update learns from that is past experience; 0 learns from fresh experience only."""
    keep: int = 0
    """Newest rollouts kept as files in the run's folder; 0 keeps none, or 50 where `replay.ratio` is above 0."""
    recency: float = 2.0
    """The newest rollout is drawn e^recency times as often as the oldest; 0 draws all alike."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        _require(
            self, "ratio", 0 <= self.ratio < 1, "at least 0 and below 1", "0.5 learns as much from past as from new"
        )
        _require(self, "keep", self.keep >= 0, "0 or more", "50 is usual")
        _require(self, "recency", self.recency >= 0, "0 or more", "2 is usual")

    @property
    def kept(self) -> int:
        """How many rollouts are kept."""
        return self.keep or (_USUAL_REPLAY if self.ratio else 0)


@dataclass(kw_only=True)
class LoggingConfig:
    """What is written and shown."""

    run_dir: str = "runs"
    """The folder in which every run gets a folder of its own."""
    tensorboard: bool = True
    """Whether to write TensorBoard events, where TensorBoard is installed."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Whether to report to Weights & Biases; offline keeps it in the run's folder for a later `wandb sync`."""
    wandb_project: str = "twostep"
    """Where in Weights & Biases the run is found."""
    csv: bool = False
    """Whether to write `metrics.csv` beside `metrics.jsonl`."""
    progress: bool = True
    """Whether to show progress while training."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        usable = bool(self.run_dir.strip()) and "\0" not in self.run_dir
        _require(self, "run_dir", usable, "the name of a folder", "'runs' is usual")


@dataclass(kw_only=True)
class TrainingConfig:
    """Everything about a run."""

    experiment_name: str = ""
    """Names the run's folder; empty takes the environment's name."""
    seed: int = 0
    """What all randomness grows from: the same seed gives the same run on the same machine."""
    device: str = "auto"
    """Where the network lives: cpu, cuda, cuda:1, mps; auto takes a GPU if there is one."""
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    """What is trained on."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The network that acts and judges."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """How experience is gathered and learned from."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """How long to train, and what to do on the way."""
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    """Playing against frozen past selves."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Keeping past experience, and learning from it again."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    """What environments play when."""
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    """Learning to act as a teacher does, from observations that may be others, instead of by rewards."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """What is written and shown."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        _require(self, "seed", 0 <= self.seed < _SEEDS, f"from 0 to {_SEEDS - 1}", "0 is a good start")
        known = re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:\d{1,3})?", self.device) is not None
        _require(self, "device", known, "auto, cpu, cuda, cuda:N or mps", "auto finds a GPU by itself")
        for name in _PARTS:
            part, wanted = getattr(self, name), _PARTS[name]
            _require(self, name, isinstance(part, wanted), wanted.__name__, "dicts go through TrainingConfig.from_dict")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> TrainingConfig:
        """Read settings nested, flat or dotted, by any of their names; what is missing keeps its default.

        `changes` are read the same way and win over `data`.
        """
        return _build(place(data, VOCABULARY), changes or {})

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> TrainingConfig:
        """Read a YAML file as `from_dict` reads a dict; errors name the line."""
        data, source = read_yaml(path)
        return _build(place(data, VOCABULARY, source), changes or {})

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain containers that share nothing with this config and give it back by `from_dict`."""
        data = {name: _listed(part) if name != "env" else part for name, part in asdict(deepcopy(self)).items()}
        data["env"]["agent_ids"] = list(self.env.agent_ids)
        data["curriculum"]["tasks"] = deepcopy(self.curriculum.tasks)
        return data

    def save_yaml(self, path: str | os.PathLike[str], heading: str = "") -> None:
        """Write every setting, defaults included; `heading` goes on top, each line a comment."""
        write_yaml(self.to_dict(), path, "".join(f"# {line}\n" for line in heading.splitlines()))


_PARTS: dict[str, type] = {
    "env": EnvironmentConfig,
    "agent": AgentConfig,
    "ppo": PPOConfig,
    "trainer": TrainerConfig,
    "self_play": SelfPlayConfig,
    "replay": ReplayConfig,
    "curriculum": CurriculumConfig,
    "imitation": ImitationConfig,
    "logging": LoggingConfig,
}

VOCABULARY = Vocabulary(
    root=TrainingConfig,
    aliases=ALIASES,
    sections={name: name for name in _PARTS}
    | {"environment": "env", "env_kwargs": "env.kwargs", "training": "trainer", "policy": "agent"},
    short_forms={"env": "env.id", "agent": "agent.name", "curriculum": "curriculum.kind"},
    only_dotted=frozenset(
        {"id", "name", "kwargs", "std", "ratio", "keep", "recency", *(one.name for one in fields(CurriculumConfig))}
    ),
    derived=frozenset({("ppo", "minibatch_sequences")}),
    infinite=frozenset({("ppo", "max_grad_norm")}),
)
"""All names under which a setting can be given."""

_MINIBATCHES = tuple(("ppo", name) for name in ("minibatch_sequences", "minibatch_size", "num_minibatches"))
"""Three ways to say one thing: whoever gives one of them later does not mean the others any more."""


@dataclass(kw_only=True)
class _OnlyPPO:
    ppo: PPOConfig = field(default_factory=PPOConfig)


_PPO_VOCABULARY = replace(
    VOCABULARY,
    root=_OnlyPPO,
    aliases={name: target for name, target in ALIASES.items() if target.startswith("ppo.")},
    sections={"ppo": "ppo"},
    short_forms={},
)


def resolve_ppo_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for `PPOConfig` from settings of PPO by any of their names.

    Raises:
        UnknownSettingError: a name that PPO does not have; it is a `ConfigError` and a `TypeError`.
    """
    for name in settings:
        _refuse_foreign(name)
    entries = _without_sequences(place(settings, _PPO_VOCABULARY))
    ppo = build(entries, _PPO_VOCABULARY).ppo
    return {path[-1]: getattr(ppo, path[-1]) for path in entries}


def _build(entries: dict[Path, Entry], changes: Mapping[str, Any]) -> TrainingConfig:
    changed = place(changes, VOCABULARY)
    if any(path in changed for path in _MINIBATCHES):
        entries = {path: entry for path, entry in entries.items() if path not in _MINIBATCHES}
    return build(_without_sequences(entries | changed), VOCABULARY)


def _without_sequences(entries: dict[Path, Entry]) -> dict[Path, Entry]:
    """Turn a minibatch counted in sequences into one counted in transitions."""
    sequences = entries.get(("ppo", "minibatch_sequences"))
    if sequences is None:
        return entries
    kept = {path: entry for path, entry in entries.items() if path != ("ppo", "minibatch_sequences")}
    where = sequences.source.at(sequences.written)
    if ("ppo", "minibatch_size") in kept:
        raise ConfigError(f"{where}minibatch_sequences={sequences.value!r} and minibatch_size say the same: keep one.")
    try:
        count = convert("minibatch_sequences", sequences.value, int, default=64)
        length_entry = kept.get(("ppo", "bptt_length"))
        length = PPOConfig().bptt_length if length_entry is None else length_entry.value
        size = count * convert("bptt_length", length, int, default=16)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    if count < 1:
        raise ConfigError(f"{where}minibatch_sequences={count} must be 1 or more: 64 is usual.")
    return {**kept, ("ppo", "minibatch_size"): replace(sequences, value=size)}


def _refuse_foreign(name: str) -> None:
    """Say whose setting a name is, where it is one but not of PPO; leave unknown names to be refused as such."""
    try:
        path = VOCABULARY.resolve((name,), Source())
    except UnknownSettingError:
        return
    if path[0] != "ppo":
        whose = f"of {path[0]!r}" if len(path) > 1 else "of the whole run"
        raise UnknownSettingError(f"{name!r} is a setting {whose}, not of PPO: give it to TrainingConfig.")


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _require(config: Any, name: str, holds: bool, rule: str, way_out: str) -> None:
    if not holds:
        raise ConfigError(f"{name}={getattr(config, name)!r} must be {rule}: {way_out}.")

"""PPO in two steps: collect, then learn.

The public names are loaded when they are first used, so that `import twostep` is quick and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twostep.advantages import gae
    from twostep.checkpoint import TrainingCheckpointer
    from twostep.collect.collector import RolloutCollector
    from twostep.collect.league import League
    from twostep.collect.opponents import PolicyOpponent
    from twostep.collect.overlapped import CollectorTeam, OverlappedCollector
    from twostep.collect.selfplay import SelfPlay
    from twostep.config import (
        TrainerConfig,
        TrainingConfig,
        large_distributed_config,
        medium_config,
        small_fast_config,
    )
    from twostep.curriculum import (
        LearningProgressCurriculum,
        LowRewardCurriculum,
        StagedCurriculum,
        SuccessRateCurriculum,
        TerrainGrid,
        UniformCurriculum,
    )
    from twostep.distill import Distiller, teacher_for
    from twostep.errors import (
        CheckpointError,
        ConfigError,
        EnvError,
        ExportError,
        GroupError,
        NumericsError,
        PolicyError,
        RatioError,
        RolloutError,
        TwostepError,
    )
    from twostep.evaluation import (
        BackgroundEvaluator,
        Comparison,
        EpisodeStats,
        EvalStats,
        PolicyEvaluator,
        SuiteScores,
        compare,
        evaluate,
        evaluate_vs_heuristic,
        plot_comparison,
    )
    from twostep.experience import combine_rollouts, create_fake_rollout_data, load_rollouts, save_rollouts
    from twostep.export import export_policy
    from twostep.functional import (
        TrainingComponents,
        create_training_components,
        default_training_step,
        functional_training_loop,
    )
    from twostep.group import joined_group
    from twostep.learn.custom import RecordableLoss
    from twostep.learn.losses import ppo_loss
    from twostep.learn.meta import reptile
    from twostep.learn.ppo import PPOOptimizer
    from twostep.learn.replay import ReplayBuffer
    from twostep.learn.settings import PPOConfig
    from twostep.normalization import ReturnNormalizer, RunningMeanStd
    from twostep.policies.actor_critic import ActorCritic, ActorCriticLSTM, make_policy
    from twostep.policies.adapters import as_policy
    from twostep.policies.settings import AgentConfig
    from twostep.policies.tasks import TaskActorCritic, TaskEncoder
    from twostep.protocols import Curriculum, Distribution, Policy, PolicyOutput, RowEnv, Sink, Step, Task
    from twostep.rollout import Episode, RolloutBuffer
    from twostep.stats import (
        CsvSink,
        JsonLinesSink,
        Progress,
        StatsLogger,
        TensorBoardSink,
        WandbSink,
        plot_learning_curve,
    )
    from twostep.store import PolicyRecord, PolicyStore
    from twostep.suites import SimulationCase, SimulationSuite
    from twostep.tensors import TensorEnv
    from twostep.trainer import PPOTrainer
    from twostep.training_state import TrainingState
    from twostep.vector import as_env, check_env, make_env
    from twostep.vector.processes import VectorEnv

__version__ = "0.1.0"

_NAMES_IN = {
    "twostep.checkpoint": ("TrainingCheckpointer",),
    "twostep.collect.collector": ("RolloutCollector",),
    "twostep.collect.league": ("League",),
    "twostep.collect.opponents": ("PolicyOpponent",),
    "twostep.collect.overlapped": ("CollectorTeam", "OverlappedCollector"),
    "twostep.collect.selfplay": ("SelfPlay",),
    "twostep.config": (
        "TrainerConfig",
        "TrainingConfig",
        "large_distributed_config",
        "medium_config",
        "small_fast_config",
    ),
    "twostep.curriculum": (
        "LearningProgressCurriculum",
        "LowRewardCurriculum",
        "StagedCurriculum",
        "SuccessRateCurriculum",
        "TerrainGrid",
        "UniformCurriculum",
    ),
    "twostep.distill": ("Distiller", "teacher_for"),
    "twostep.errors": (
        "CheckpointError",
        "ConfigError",
        "EnvError",
        "ExportError",
        "GroupError",
        "NumericsError",
        "PolicyError",
        "RatioError",
        "RolloutError",
        "TwostepError",
    ),
    "twostep.evaluation": (
        "BackgroundEvaluator",
        "Comparison",
        "EpisodeStats",
        "EvalStats",
        "PolicyEvaluator",
        "SuiteScores",
        "compare",
        "evaluate",
        "evaluate_vs_heuristic",
        "plot_comparison",
    ),
    "twostep.experience": ("combine_rollouts", "create_fake_rollout_data", "load_rollouts", "save_rollouts"),
    "twostep.advantages": ("gae",),
    "twostep.export": ("export_policy",),
    "twostep.functional": (
        "TrainingComponents",
        "create_training_components",
        "default_training_step",
        "functional_training_loop",
    ),
    "twostep.group": ("joined_group",),
    "twostep.learn.custom": ("RecordableLoss",),
    "twostep.learn.losses": ("ppo_loss",),
    "twostep.learn.meta": ("reptile",),
    "twostep.learn.ppo": ("PPOOptimizer",),
    "twostep.learn.replay": ("ReplayBuffer",),
    "twostep.learn.settings": ("PPOConfig",),
    "twostep.normalization": ("ReturnNormalizer", "RunningMeanStd"),
    "twostep.policies.actor_critic": ("ActorCritic", "ActorCriticLSTM", "make_policy"),
    "twostep.policies.adapters": ("as_policy",),
    "twostep.policies.settings": ("AgentConfig",),
    "twostep.policies.tasks": ("TaskActorCritic", "TaskEncoder"),
    "twostep.protocols": ("Curriculum", "Distribution", "Policy", "PolicyOutput", "RowEnv", "Sink", "Step", "Task"),
    "twostep.rollout": ("Episode", "RolloutBuffer"),
    "twostep.stats": (
        "CsvSink",
        "JsonLinesSink",
        "Progress",
        "StatsLogger",
        "TensorBoardSink",
        "WandbSink",
        "plot_learning_curve",
    ),
    "twostep.store": ("PolicyRecord", "PolicyStore"),
    "twostep.suites": ("SimulationCase", "SimulationSuite"),
    "twostep.tensors": ("TensorEnv",),
    "twostep.trainer": ("PPOTrainer",),
    "twostep.training_state": ("TrainingState",),
    "twostep.vector": ("as_env", "check_env", "make_env"),
    "twostep.vector.processes": ("VectorEnv",),
}
_HOME_OF = {name: module for module, names in _NAMES_IN.items() for name in names}

__all__ = [
    "ActorCritic",
    "ActorCriticLSTM",
    "AgentConfig",
    "BackgroundEvaluator",
    "CheckpointError",
    "CollectorTeam",
    "Comparison",
    "ConfigError",
    "CsvSink",
    "Curriculum",
    "Distiller",
    "Distribution",
    "EnvError",
    "Episode",
    "EpisodeStats",
    "EvalStats",
    "ExportError",
    "GroupError",
    "JsonLinesSink",
    "League",
    "LearningProgressCurriculum",
    "LowRewardCurriculum",
    "NumericsError",
    "OverlappedCollector",
    "PPOConfig",
    "PPOOptimizer",
    "PPOTrainer",
    "Policy",
    "PolicyError",
    "PolicyEvaluator",
    "PolicyOpponent",
    "PolicyOutput",
    "PolicyRecord",
    "PolicyStore",
    "Progress",
    "RatioError",
    "RecordableLoss",
    "ReplayBuffer",
    "ReturnNormalizer",
    "RolloutBuffer",
    "RolloutCollector",
    "RolloutError",
    "RowEnv",
    "RunningMeanStd",
    "SelfPlay",
    "SimulationCase",
    "SimulationSuite",
    "Sink",
    "StagedCurriculum",
    "StatsLogger",
    "Step",
    "SuccessRateCurriculum",
    "SuiteScores",
    "Task",
    "TaskActorCritic",
    "TaskEncoder",
    "TensorBoardSink",
    "TensorEnv",
    "TerrainGrid",
    "TrainerConfig",
    "TrainingCheckpointer",
    "TrainingComponents",
    "TrainingConfig",
    "TrainingState",
    "TwostepError",
    "UniformCurriculum",
    "VectorEnv",
    "WandbSink",
    "__version__",
    "as_env",
    "as_policy",
    "check_env",
    "combine_rollouts",
    "compare",
    "create_fake_rollout_data",
    "create_training_components",
    "default_training_step",
    "evaluate",
    "evaluate_vs_heuristic",
    "export_policy",
    "functional_training_loop",
    "gae",
    "joined_group",
    "large_distributed_config",
    "load_rollouts",
    "make_env",
    "make_policy",
    "medium_config",
    "plot_comparison",
    "plot_learning_curve",
    "ppo_loss",
    "reptile",
    "save_rollouts",
    "small_fast_config",
    "teacher_for",
]


def __getattr__(name: str) -> Any:
    """Import the module that holds a public name, and remember the name here."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'twostep' has no attribute {name!r}; its public names are in twostep.__all__.")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})

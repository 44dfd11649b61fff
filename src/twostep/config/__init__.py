"""The settings of a whole run, from Python, dicts, YAML or a command line alike, with errors that help."""

from twostep.config.arguments import SETTINGS_FILE
from twostep.config.loading import UnknownSettingError
from twostep.config.names import ALIASES
from twostep.config.presets import (
    echelon,
    janus,
    large_distributed_config,
    locomotion,
    medium_config,
    metta,
    ppo_settings,
    require_own_rewards,
    small_fast_config,
)
from twostep.config.shipped import shipped_config, shipped_configs
from twostep.config.tree import (
    VOCABULARY,
    EnvironmentConfig,
    LoggingConfig,
    SelfPlayConfig,
    TrainerConfig,
    TrainingConfig,
    resolve_ppo_settings,
)
from twostep.learn.settings import PPOConfig
from twostep.policies.settings import AgentConfig

__all__ = [
    "ALIASES",
    "SETTINGS_FILE",
    "VOCABULARY",
    "AgentConfig",
    "EnvironmentConfig",
    "LoggingConfig",
    "PPOConfig",
    "SelfPlayConfig",
    "TrainerConfig",
    "TrainingConfig",
    "UnknownSettingError",
    "echelon",
    "janus",
    "large_distributed_config",
    "locomotion",
    "medium_config",
    "metta",
    "ppo_settings",
    "require_own_rewards",
    "resolve_ppo_settings",
    "shipped_config",
    "shipped_configs",
    "small_fast_config",
]

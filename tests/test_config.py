"""Settings: E9, M2, M10, MB7, LB13, JB10, and contradictions C2 to C10."""

import copy
import doctest
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import twostep.config.tree
from twostep.config import (
    ALIASES,
    VOCABULARY,
    AgentConfig,
    EnvironmentConfig,
    PPOConfig,
    TrainerConfig,
    TrainingConfig,
    UnknownSettingError,
    echelon,
    janus,
    large_distributed_config,
    locomotion,
    medium_config,
    metta,
    resolve_ppo_settings,
    shipped_config,
    shipped_configs,
    small_fast_config,
)
from twostep.config.environments import make_configured
from twostep.errors import ConfigError, EnvError

SOME_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**32 - 1),
        "experiment_name": st.text(max_size=8),
        "env": st.fixed_dictionaries(
            {},
            optional={
                "id": st.text(max_size=8),
                "kwargs": st.dictionaries(
                    st.text(min_size=1, max_size=5).filter(lambda key: key not in ("seed", "spec")),
                    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.floats(-1, 1))),
                    max_size=3,
                ),
            },
        ),
        "agent": st.fixed_dictionaries(
            {},
            optional={
                "memory": st.sampled_from(["none", "gru", "lstm"]),
                "action_hidden": st.lists(st.integers(1, 512), max_size=3),
                "shared": st.sampled_from([None, True, False]),
                "encoders": st.dictionaries(
                    st.sampled_from(["camera", "speed"]), st.lists(st.integers(1, 9), max_size=2), max_size=2
                ),
            },
        ),
        "ppo": st.fixed_dictionaries(
            {},
            optional={
                "lr": st.floats(1e-9, 1.0),
                "max_grad_norm": st.just(math.inf) | st.floats(1e-3, 10),
                "adaptive_minibatch": st.none() | st.just([32, 512]),
                "normalize_obs": st.booleans(),
            },
        ),
        "trainer": st.fixed_dictionaries({}, optional={"solved_at": st.none() | st.floats(-1e6, 1e6)}),
    },
)


@given(SOME_SETTINGS)
@settings(max_examples=60, deadline=None)
def test_dict_round_trip(data):
    """MB7, M10: from_dict never changes its input; to_dict is deep and gives the same config back."""
    before = copy.deepcopy(data)
    config = TrainingConfig.from_dict(data)
    assert data == before
    written = config.to_dict()
    assert TrainingConfig.from_dict(written) == config
    written["env"]["kwargs"]["new"] = 1
    written["agent"]["encoders"]["new"] = [1]
    assert "new" not in config.env.kwargs
    assert "new" not in config.agent.encoders


@given(SOME_SETTINGS)
@example({"experiment_name": "two\x85lines\u2028or\u2029three"})
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_yaml_round_trip(tmp_path, data):
    config = TrainingConfig.from_dict(data)
    config.save_yaml(tmp_path / "config.yaml", heading="one\ntwo")
    assert TrainingConfig.from_yaml(tmp_path / "config.yaml") == config
    assert (tmp_path / "config.yaml").read_text(encoding="utf-8").startswith("# one\n# two\n")


def test_from_dict_shares_nothing_with_its_input():
    """MB7."""
    wind = [1.0]
    config = TrainingConfig.from_dict({"env": {"kwargs": {"wind": wind}}})
    wind.append(2.0)
    assert config.env.kwargs == {"wind": [1.0]}


def test_partial_dict():
    """M10: what a dict leaves out keeps its default."""
    config = TrainingConfig.from_dict({"agent": {"name": "simple_cnn"}, "trainer": {"total_timesteps": 10}})
    assert config == TrainingConfig(agent=AgentConfig(name="simple_cnn"), trainer=TrainerConfig(total_timesteps=10))
    assert TrainingConfig.from_dict({}) == TrainingConfig()


def test_keyword_construction():
    """M2."""
    config = TrainingConfig(
        experiment_name="baseline",
        agent=AgentConfig(name="simple_cnn", hidden_size=512),
        trainer=TrainerConfig(total_timesteps=1_000_000),
    )
    assert config.agent.hidden_size == 512


def test_a_dict_in_place_of_a_section_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"ppo=\{'lr': 1\} must be PPOConfig: .*from_dict"):
        TrainingConfig(ppo={"lr": 1})


@pytest.mark.parametrize(("text", "value"), [("3e-4", 3e-4), ("1E5", 1e5), (".5", 0.5), ("5.", 5.0), ("1_0.5", 10.5)])
def test_numbers_of_yaml_are_numbers(tmp_path, text, value):
    """LB13: PyYAML alone reads 3e-4 as text."""
    file = tmp_path / "config.yaml"
    file.write_text(f"ppo:\n  lr: {text}\nenv:\n  kwargs:\n    wind: -{text}\n    name: '{text}'\n")
    config = TrainingConfig.from_yaml(file)
    assert config.ppo.lr == value
    assert config.env.kwargs == {"wind": -value, "name": text}, "quotes still make text"


def test_numbers_that_are_already_text():
    """LB13: a dict from another YAML reader."""
    ppo = TrainingConfig.from_dict(yaml.safe_load("ppo: {lr: 3e-4, ent_coef: 1e-2, minibatch_size: '64'}")).ppo
    assert (ppo.lr, ppo.ent_coef, ppo.minibatch_size) == (3e-4, 1e-2, 64)


@pytest.mark.parametrize(
    ("given_value", "name", "expected"),
    [
        (np.int64(3), "update_epochs", 3),
        (np.float32(0.5), "gamma", 0.5),
        (1e6, "rollout_steps", 1_000_000),
        ("1e3", "rollout_steps", 1000),
        (1, "gamma", 1.0),
        ("none", "target_kl", None),
        ([16, 64], "adaptive_minibatch", (16, 64)),
        ("16,64", "adaptive_minibatch", (16, 64)),
        ("yes", "recompute_advantages", True),
        (math.inf, "max_grad_norm", math.inf),
    ],
)
def test_values_become_the_declared_type(given_value, name, expected):
    result = resolve_ppo_settings({name: given_value})[name]
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize("alias", [name for name in ALIASES if name != "minibatch_sequences"])
def test_every_old_name_is_understood(alias):
    """JB10, C2 to C10: flat, in a section of its own kind, and in any other section."""
    section, name = ALIASES[alias].split(".")
    field = VOCABULARY.fields[(section, name)]
    value = {
        "id": "A-v0",
        "name": "mlp",
        "memory": "gru",
        "action_dist": "beta",
        "run_dir": "elsewhere",
        "ratio": 0.5,
    }.get(name, 1)
    value = {"optimizer": "adamw", "lr_schedule": "cosine"}.get(name, value)
    value = True if field.annotation is bool else value
    expected = TrainingConfig.from_dict({section: {name: value}})
    assert expected != TrainingConfig() or field.default == value
    assert TrainingConfig.from_dict({alias: value}) == expected
    if "." not in alias:
        assert TrainingConfig.from_dict({section: {alias: value}}) == expected
        assert TrainingConfig.from_dict({"trainer": {alias: value}}) == expected
        assert TrainingConfig.from_dict({alias.replace("_", "-"): value}) == expected


def test_every_alias_leads_to_a_setting():
    for target in ALIASES.values():
        path = tuple(target.split("."))
        assert path in VOCABULARY.fields or path in VOCABULARY.derived


def test_short_and_flat_forms():
    config = TrainingConfig.from_dict(
        {"environment": "CartPole-v1", "agent": "mlp", "num_envs": 3, "env.kwargs.wind": 1, "env_kwargs": {"rain": 2}}
    )
    assert config.env == EnvironmentConfig(id="CartPole-v1", num_envs=3, kwargs={"wind": 1, "rain": 2})
    assert config.agent.name == "mlp"
    assert TrainingConfig.from_dict({"ppo": None}) == TrainingConfig(), "a YAML section with nothing under it"


def test_changes_win():
    data = {"ppo": {"lr": 1.0, "minibatch_size": 64}, "env": {"kwargs": {"a": 1, "b": 2}}}
    config = TrainingConfig.from_dict(data, {"learning_rate": "0.5", "env.kwargs.b": 3, "num_minibatches": 8})
    assert config.ppo.lr == 0.5
    assert config.env.kwargs == {"a": 1, "b": 3}
    assert (config.ppo.num_minibatches, config.ppo.minibatch_size) == (8, None), "8 minibatches are meant now"


def test_minibatches_in_sequences():
    """C6: 64 sequences of 24 steps."""
    assert resolve_ppo_settings({"minibatch_sequences": 64, "bptt_length": 24})["minibatch_size"] == 1536
    assert TrainingConfig.from_dict({"minibatch_sequences": "2"}).ppo.minibatch_size == 2 * PPOConfig().bptt_length
    config = TrainingConfig.from_dict({"ppo": {"minibatch_size": 5}}, {"minibatch_sequences": 2})
    assert config.ppo.minibatch_size == 32
    with pytest.raises(ConfigError, match="say the same"):
        resolve_ppo_settings({"minibatch_sequences": 2, "batch_size": 4})


def test_ppo_settings_by_old_names():
    """JB10, J4, C2: constructor keywords of other trainers."""
    assert resolve_ppo_settings({"learning_rate": 3e-4, "n_epochs": 10, "batch_size": 64}) == {
        "lr": 3e-4,
        "update_epochs": 10,
        "minibatch_size": 64,
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("learning_rat", "'learning_rate'"),
        ("lrr", "'lr'"),
        ("clip_rang", "'clip_range'"),
        ("total_timesteps", "a setting of 'trainer'"),
        ("seed", "of the whole run"),
        ("wholly_unknown", "lr, gamma"),
    ],
)
def test_unknown_ppo_setting_names_the_nearest(name, message):
    """C1: a TypeError naming the nearest valid name, and a ConfigError as well."""
    with pytest.raises(UnknownSettingError, match=message) as caught:
        resolve_ppo_settings({name: 1})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ConfigError)
    assert repr(name) in str(caught.value)


def test_a_slip_in_a_section_finds_the_names_of_other_programs_too():
    """M10, JB10: learning_rate is nearer than anything of twostep's own."""
    with pytest.raises(
        UnknownSettingError, match=r"'ppo.learning_rat' is no setting. Did you mean 'ppo.learning_rate'"
    ):
        TrainingConfig.from_dict({"ppo": {"learning_rat": 1e-3}})


def test_defaults_of_ppo():
    """E9, echelon."""
    ppo = echelon()
    assert ppo == PPOConfig()
    assert (ppo.lr, ppo.gamma, ppo.gae_lambda, ppo.clip_coef, ppo.ent_coef) == (3e-4, 0.99, 0.95, 0.2, 0.01)
    assert (ppo.vf_coef, ppo.max_grad_norm, ppo.update_epochs, ppo.rollout_steps) == (0.5, 0.5, 4, 512)


def test_presets():
    """C3, C5, C8, C9, C10, C15, C16, C17, C25; M2: the fast run."""
    assert (janus().update_epochs, janus().minibatch_size, janus().rollout_steps) == (10, 64, 2048)
    assert (janus().adam_eps, janus().value_loss_scale) == (1e-8, 1.0)
    assert (metta().clip_coef, metta().clip_vloss, metta().vf_clip_coef, metta().norm_adv) == (
        0.1,
        True,
        0.1,
        "minibatch",
    )
    walking = locomotion()
    assert (walking.optimizer, walking.weight_decay, walking.lr_schedule, walking.lr_min_ratio) == (
        "adamw",
        0.01,
        "cosine",
        0.1,
    )
    assert (walking.bptt_length, walking.minibatch_size, walking.max_grad_norm) == (24, 64 * 24, 1.0)
    fast = small_fast_config()
    assert (fast.trainer.total_timesteps, fast.ppo.update_epochs, fast.agent.hidden_size) == (10_000, 2, 128)
    assert (fast.ppo.rollout_steps * fast.env.num_envs, fast.ppo.minibatch_size, fast.ppo.clip_coef) == (512, 64, 0.1)


@pytest.mark.parametrize("preset", [small_fast_config, medium_config, large_distributed_config])
def test_presets_of_whole_runs(preset, tmp_path):
    """M2, M10: complete, kept as they are by dict and YAML, and whole in minibatches."""
    config = preset()
    assert config == TrainingConfig.from_dict(config.to_dict())
    config.save_yaml(tmp_path / "config.yaml")
    assert config == TrainingConfig.from_yaml(tmp_path / "config.yaml")
    assert config.env.id
    assert config.ppo.minibatch_size % config.ppo.bptt_length == 0
    assert preset() is not preset()


def test_large_presets_count_agents():
    """M2: teams of five in every match."""
    for config, batch in ((medium_config(), 10_240), (large_distributed_config(), 327_680)):
        assert config.env.id == "skirmish"
        assert config.env.num_envs * 5 * config.ppo.rollout_steps == batch
        assert batch % config.ppo.minibatch_size == 0


def test_every_setting_is_documented():
    """RELIABILITY 22: what --help shows."""
    assert [field.name for field in VOCABULARY.fields.values() if not field.doc.endswith((".", "`"))] == []
    for path in (("ppo", "lr"), ("agent", "memory"), ("env", "id"), ("trainer", "solved_at"), ("seed",)):
        assert VOCABULARY.fields[path].doc


def test_shipped_settings_load_and_explain_themselves():
    assert {"cartpole", "lunarlander", "halfcheetah", "pong"} <= set(shipped_configs())
    for name, env_id in shipped_configs().items():
        config = shipped_config(name)
        assert config is not None
        assert shipped_config(env_id).env.id == env_id
        assert config.ppo.rollout_steps * config.env.num_envs >= (config.ppo.minibatch_size or 1)
    assert shipped_config("Unknown-v0") is None
    changed = shipped_config("CartPole-v1", {"lr": 0.5})
    assert changed is not None
    assert changed == replace(shipped_config("CartPole-v1"), ppo=replace(shipped_config("CartPole-v1").ppo, lr=0.5))


def test_values_that_yaml_cannot_hold_are_named(tmp_path):
    config = TrainingConfig(env=EnvironmentConfig(kwargs={"reward": print}))
    with pytest.raises(ConfigError, match=r"built-in function print.*cannot be written to YAML"):
        config.save_yaml(tmp_path / "config.yaml")
    assert not (tmp_path / "config.yaml").exists()


def test_docstring_examples():
    assert doctest.testmod(twostep.config.tree).failed == 0
    assert doctest.testmod(twostep.config.tree).attempted > 0


FLAKY = """
import os
import gymnasium as gym
from twostep.vector import row_seeds

class Flaky(gym.Wrapper):
    def reset(self, *, seed=None, options=None):
        self.breaks = seed == row_seeds(0, 1)[0]
        return super().reset(seed=seed)

    def step(self, action):
        if action == 1 and self.breaks:
            os._exit(3)
        return super().step(action)

def make():
    return Flaky(gym.make("CartPole-v1"))
"""


def test_workers_are_treated_as_the_settings_say(tmp_path, monkeypatch):
    """A1: a run with workers survives their deaths unless it is told to stop; all of it can be set."""
    (tmp_path / "flaky_tracks.py").write_text(FLAKY)
    monkeypatch.syspath_prepend(tmp_path)
    assert TrainingConfig().env.restarts == 3
    told = {"id": "flaky_tracks:make", "num_envs": 1, "num_workers": 1, "start_method": "forkserver"}
    for restarts in (1, 0):
        config = TrainingConfig.from_dict({"env": {**told, "restarts": restarts, "step_timeout": 20}})
        env = make_configured(config)
        env.reset(0)
        env.step(np.array([0]))
        env.step(np.array([0]))
        if restarts:
            assert env.step(np.array([1])).valid.tolist() == [False]
        else:
            with pytest.raises(EnvError, match="exited with code 3"):
                env.step(np.array([1]))
        env.close()
    for wrong in ({"restarts": -1}, {"step_timeout": 0}, {"start_method": "fork"}, {"kwargs": {"restarts": 2}}):
        with pytest.raises(ConfigError, match=next(iter(wrong.get("kwargs", wrong)))):
            TrainingConfig.from_dict({"env": {**told, **wrong}})

"""Environments from a name, a path, a function or an object."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym

from twostep.errors import EnvError
from twostep.protocols import RowEnv
from twostep.seeds import row_seeds
from twostep.vector.agents import OpponentMaker, is_parallel_env, refuse_turns, require_opponent_maker
from twostep.vector.atari import atari_spec, make_atari
from twostep.vector.checker import check_env
from twostep.vector.groups import make_group
from twostep.vector.gym_vector import GymVectorAdapter
from twostep.vector.launching import StartMethod
from twostep.vector.makers import Maker, Registered
from twostep.vector.missing import did_you_mean, explained, import_or_explain, maker_named
from twostep.vector.parallel import AgentsVectorEnv
from twostep.vector.processes import VectorEnv
from twostep.vector.serial import SerialVectorEnv
from twostep.vector.sources import is_single_env

Vectorization = Literal["serial", "sync", "async", "vector_entry_point"]
_VECTORIZATIONS = ("serial", "sync", "async", "vector_entry_point")
_ACCEPTED = (
    "a gymnasium.Env (or anything with reset, step, observation_space and action_space), a gymnasium.vector.VectorEnv, "
    "a PettingZoo parallel environment, or an object that follows twostep.protocols.RowEnv"
)


def make_env(
    spec: Any,
    num_envs: int = 1,
    seed: int | None = None,
    *,
    vectorization: Vectorization = "serial",
    wrappers: Sequence[Callable[[Any], Any]] = (),
    num_workers: int = 0,
    restarts: int = 0,
    step_timeout: float = 60.0,
    start_method: StartMethod = "spawn",
    agent_ids: Hashable | Sequence[Hashable] | None = None,
    opponent: OpponentMaker | None = None,
    **env_kwargs: Any,
) -> RowEnv:
    """Make `num_envs` environments that step as one.

    Args:
        spec: A Gymnasium id; `"skirmish"`, `"symbolic"` or `"quadruped"`; `"envpool:Id"`; `"module:function"`, which is
            called once per environment; such a function or class itself, of a single agent or of many (PettingZoo's
            parallel interface); an object with a method `make()`; or an environment object. Atari ids give ALE's own
            vector with the usual preprocessing (`twostep.vector.atari`).
        num_envs: Number of environments.
        seed: What the first `reset` without a seed uses.
        vectorization: How a Gymnasium id or a function becomes a vector: by twostep (the fastest way for small
            environments), by Gymnasium's SyncVectorEnv or AsyncVectorEnv, or by the vector that the id itself brings.
        wrappers: Applied in this order to every single environment.
        num_workers: Processes among which the environments are shared out; 0 steps them in this one.
        restarts: How often in a row such a process may fail and be replaced, see `VectorEnv`.
        step_timeout: Seconds that a step, a reset or a call may take in such a process.
        start_method: How such processes are started.
        agent_ids: Whom of many agents the rows stand for: ids or patterns such as `"blue_*"`. None asks the
            environment's `default_agent_ids` and, where it has none, takes all.
        opponent: A function that makes who plays the other agents, called once per environment; None asks the
            environment's `make_opponent`.
        **env_kwargs: Arguments of each environment.
    """
    if num_envs < 1:
        raise EnvError(f"num_envs={num_envs}, but must be 1 or more. Use num_envs=1 for a single environment.")
    if vectorization not in _VECTORIZATIONS:
        raise EnvError(
            f"vectorization={vectorization!r}, but must be one of {', '.join(_VECTORIZATIONS)}. "
            f"'serial' is right for most environments."
        )
    if not 0 <= num_workers <= num_envs:
        raise EnvError(
            f"num_workers={num_workers}, but must be from 0 to num_envs={num_envs}: each needs an environment of its "
            f"own to step. Use 0 to step them in this process."
        )
    if opponent is not None:
        require_opponent_maker(opponent)
    workers = {"restarts": restarts, "step_timeout": step_timeout, "start_method": start_method}
    wish = _Wish(num_envs, seed, vectorization, tuple(wrappers), num_workers, workers, agent_ids, opponent, env_kwargs)
    if isinstance(spec, str):
        env, name = _from_name(spec, wish), spec
    elif is_single_env(spec):
        env, name = _from_object(spec, wish), type(getattr(spec, "unwrapped", spec)).__name__
    elif callable(spec):
        env, name = _from_function(spec, wish), getattr(spec, "__name__", type(spec).__name__)
    elif callable(getattr(spec, "make", None)):
        env, name = _from_config(spec, wish), type(spec).__name__
    else:
        env, name = _from_object(spec, wish), type(spec).__name__
    if isinstance(env, (SerialVectorEnv, AgentsVectorEnv, GymVectorAdapter, VectorEnv)):
        env.spec_name = name
    return env


def as_env(obj: Any, seed: int | None = None) -> RowEnv:
    """Return `obj` as a `RowEnv`, wrapped only where it is not one already."""
    if isinstance(obj, gym.vector.VectorEnv):
        return GymVectorAdapter(obj, seed)
    if not isinstance(obj, type) and hasattr(obj, "reset") and hasattr(obj, "step"):
        if hasattr(obj, "num_rows"):
            return obj
        refuse_turns(obj)
        if is_parallel_env(obj) or isinstance(obj, gym.Env):
            return make_group([obj], seed)
        if hasattr(obj, "action_space") and not hasattr(obj, "num_envs"):
            return make_group([obj], seed)
    raise EnvError(
        f"{obj!r} is of type {type(obj).__module__}.{type(obj).__name__}, which is not an environment twostep knows. "
        f"Pass {_ACCEPTED}; ids and functions go to make_env, tensor simulators to twostep.tensors.TensorEnv."
    )


@dataclass(frozen=True)
class _Wish:
    """What was asked for beside the environment itself."""

    num_envs: int
    seed: int | None
    vectorization: Vectorization
    wrappers: tuple[Callable[[Any], Any], ...]
    num_workers: int
    workers: dict[str, Any]
    """How `VectorEnv` treats them, where there are any."""
    agent_ids: Hashable | Sequence[Hashable] | None
    opponent: OpponentMaker | None
    env_kwargs: dict[str, Any]

    @property
    def players(self) -> dict[str, Any]:
        """Who acts, in environments of many agents."""
        return {"agent_ids": self.agent_ids, "opponent": self.opponent}

    def refuse(self, spec: str, reason: str, *names: str) -> None:
        """Refuse what was asked for in vain."""
        for name in names:
            if getattr(self, name):
                raise EnvError(f"{spec} takes no {name}: {reason}. Leave {name} out.")


def _from_name(spec: str, wish: _Wish) -> RowEnv:
    if spec == "skirmish":
        return _skirmish(wish)
    if spec == "symbolic":
        return _symbolic(wish)
    if spec == "quadruped":
        return _quadruped(wish)
    module_name, _, name = spec.rpartition(":")
    if module_name == "envpool":
        return _from_envpool(name, wish)
    if module_name:
        module = import_or_explain(module_name, spec)
        if hasattr(module, name):
            return _from_function(maker_named(spec, getattr(module, name), wish.env_kwargs), wish)
    atari = atari_spec(name)
    if atari is not None:
        if wish.wrappers or wish.vectorization in ("sync", "async"):
            raise EnvError(
                f"{spec} runs in ALE's own vector, which takes no wrappers and no vectorization='sync' or 'async'. "
                f"Pass a function that makes and wraps a single Atari environment instead of the id."
            )
        wish.refuse(spec, "it runs in ALE's own vector and threads", "num_workers", "agent_ids", "opponent")
        return GymVectorAdapter(make_atari(atari, wish.num_envs, wish.env_kwargs), wish.seed)
    env_spec = _registered(name, spec)
    if wish.vectorization == "vector_entry_point":
        return _from_vector_entry_point(env_spec, wish)
    # The adapters keep the order of calls and look at the environment themselves, once.
    env_spec.order_enforce = False
    return _from_function(Registered(env_spec, spec), wish)


def _skirmish(wish: _Wish) -> RowEnv:
    """Make matches that step as one simulation where nothing stands between them and us, else one by one."""
    from twostep.worlds.skirmish import EnvConfig, SkirmishRows

    config = EnvConfig.from_dict(wish.env_kwargs)
    plays_all_at_once = wish.opponent is None or hasattr(wish.opponent(), "plan")
    if wish.num_workers or wish.wrappers or wish.vectorization != "serial" or not plays_all_at_once:
        return _from_config(config, replace(wish, env_kwargs={}))
    given = {name: value for name, value in wish.players.items() if value is not None}
    return SkirmishRows(config, wish.num_envs, wish.seed, **given)


def _symbolic(wish: _Wish) -> RowEnv:
    """Make expressions that are written as one where nothing stands between them and us, else one by one."""
    from twostep.worlds.symbolic import SymbolicConfig, SymbolicRows

    config = SymbolicConfig.from_dict(wish.env_kwargs)
    if wish.num_workers or wish.wrappers or wish.vectorization != "serial":
        return _from_config(config, replace(wish, env_kwargs={}))
    wish.refuse("symbolic", "an expression has a single writer", "agent_ids", "opponent")
    return SymbolicRows(config, wish.num_envs, wish.seed)


def _quadruped(wish: _Wish) -> RowEnv:
    """Make robots that one call steps where nothing stands between them and us, else one by one."""
    from twostep.worlds.quadruped import QuadrupedConfig, QuadrupedRows

    config = QuadrupedConfig.from_dict(wish.env_kwargs)
    if wish.num_workers or wish.wrappers or wish.vectorization != "serial":
        return _from_config(config, replace(wish, env_kwargs={}))
    wish.refuse("quadruped", "a robot is a single agent", "agent_ids", "opponent")
    return QuadrupedRows(config, wish.num_envs, wish.seed)


def _from_vector_entry_point(env_spec: Any, wish: _Wish) -> RowEnv:
    if env_spec.vector_entry_point is None or wish.wrappers:
        found = "wrappers were given" if wish.wrappers else "it has none"
        raise EnvError(
            f"{env_spec.id} cannot use vectorization='vector_entry_point': {found}, but the id must bring a vector of "
            f"its own and takes no wrappers. Use vectorization='serial'."
        )
    wish.refuse(env_spec.id, "it steps in a vector of its own", "num_workers", "agent_ids", "opponent")
    with explained(env_spec.id):
        vector = gym.make_vec(env_spec, wish.num_envs, vectorization_mode="vector_entry_point", **wish.env_kwargs)
    return GymVectorAdapter(vector, wish.seed)


def _from_function(function: Callable[..., Any], wish: _Wish) -> RowEnv:
    make_one = Maker(function, wish.wrappers, wish.env_kwargs)
    if wish.vectorization == "vector_entry_point":
        raise EnvError("vectorization='vector_entry_point' is for Gymnasium ids. Pass an id, or use 'serial'.")
    if wish.vectorization in ("sync", "async"):
        return _from_gymnasium_vector(make_one, wish)
    if wish.num_workers:
        return _in_workers(make_one, wish)
    first = make_one()
    if isinstance(first, gym.vector.VectorEnv) or hasattr(first, "num_rows"):
        wish.refuse(type(first).__name__, "it is a vector already", "agent_ids", "opponent")
        return _require_num_rows(as_env(first, wish.seed), wish.num_envs)
    return make_group([first, *[make_one] * (wish.num_envs - 1)], wish.seed, **wish.players)


def _from_config(config: Any, wish: _Wish) -> RowEnv:
    """Call a config's `make`; workers get the config itself where nothing else is asked of its environments."""
    if wish.num_workers and wish.vectorization == "serial" and not (wish.wrappers or wish.env_kwargs):
        return _in_workers(config, wish)
    return _from_function(config.make, wish)


def _in_workers(source: Any, wish: _Wish) -> RowEnv:
    return VectorEnv(
        wish.num_envs, source, num_workers=wish.num_workers, seed=wish.seed, **wish.workers, **wish.players
    )


def _from_gymnasium_vector(make_one: Maker, wish: _Wish) -> RowEnv:
    spec = f"vectorization={wish.vectorization!r}"
    wish.refuse(spec, "Gymnasium's vectors are of single agents and bring their own processes", "agent_ids", "opponent")
    wish.refuse(spec, "it decides by itself", "num_workers")
    check_env(make_one)
    kind = gym.vector.SyncVectorEnv if wish.vectorization == "sync" else gym.vector.AsyncVectorEnv
    # Disabled: no step is wasted on a reset, and last observations are ours to copy before the reset reuses them.
    vector = kind([make_one] * wish.num_envs, copy=False, autoreset_mode="Disabled")
    return GymVectorAdapter(vector, wish.seed)


def _from_object(obj: Any, wish: _Wish) -> RowEnv:
    if wish.env_kwargs:
        raise EnvError(
            f"The arguments {sorted(wish.env_kwargs)} came with an environment that is made already, and cannot reach "
            f"it. Pass a function or an id instead of the object."
        )
    wish.refuse("An environment object", "it cannot move to another process; a function could", "num_workers")
    for wrapper in wish.wrappers:
        obj = wrapper(obj)
    if is_parallel_env(obj) and wish.num_envs == 1:
        return make_group([obj], wish.seed, **wish.players)
    wish.refuse(type(obj).__name__, "it has a single agent, or is a vector already", "agent_ids", "opponent")
    return _require_num_rows(as_env(obj, wish.seed), wish.num_envs)


def _require_num_rows(env: RowEnv, num_envs: int) -> RowEnv:
    if num_envs in (1, getattr(env, "num_envs", env.num_rows)):
        return env
    raise EnvError(
        f"num_envs={num_envs}, but the environment object has {env.num_rows} rows and cannot be multiplied. "
        f"Pass a function that makes one environment, or leave num_envs out."
    )


def _from_envpool(name: str, wish: _Wish) -> RowEnv:
    if wish.wrappers:
        raise EnvError(f"envpool:{name} takes no wrappers: EnvPool has no single environments. Leave wrappers out.")
    wish.refuse(f"envpool:{name}", "EnvPool steps in threads of its own", "num_workers", "agent_ids", "opponent")
    envpool = import_or_explain("envpool", f"envpool:{name}", "pip install envpool")
    known: list[str] = envpool.list_all_envs()
    if name not in known:
        raise EnvError(f"EnvPool has no environment {name!r}.{did_you_mean(name, known)}")
    settings = dict(wish.env_kwargs)
    if wish.seed is not None:
        settings.setdefault("seed", row_seeds(wish.seed, wish.num_envs))
    with explained(f"envpool:{name}"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
        return GymVectorAdapter(envpool.make_gymnasium(name, num_envs=wish.num_envs, **settings))


def _registered(name: str, spec: str) -> Any:
    """Return a copy of the registered spec, so that a change stays ours."""
    if name not in gym.registry:
        raise EnvError(f"There is no environment {spec!r}.{did_you_mean(name, list(gym.registry))}")
    return copy.deepcopy(gym.registry[name])

"""Environments with many agents: which of them a policy controls, what these share, and who plays the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.vector.missing import did_you_mean

AgentId = Hashable


class Opponent(Protocol):
    """Plays agents from within an environment.

    Where it has a method `reset(env)`, every new episode calls it. Where it has a method `see(observations, infos)`, it
    is shown after every reset and step what the environment told the agents that it plays, as dicts by agent.
    """

    def act(self, env: Any, agent_id: AgentId) -> Any:
        """Return the action of one agent, chosen from whatever the environment lets it see."""
        ...


OpponentMaker = Callable[[], Opponent]


def is_parallel_env(obj: Any) -> bool:
    """Whether `obj` is an environment of many agents that act at once, or is meant to be one."""
    if isinstance(obj, (type, gym.Env)) or hasattr(obj, "num_rows") or _takes_turns(obj):
        return False
    return hasattr(obj, "possible_agents") or any(base.__module__.startswith("pettingzoo.") for base in type(obj).mro())


def _takes_turns(obj: Any) -> bool:
    return not isinstance(obj, type) and hasattr(obj, "agent_iter") and hasattr(obj, "last")


def refuse_turns(env: Any) -> None:
    """Refuse PettingZoo's AEC environments."""
    if _takes_turns(env):
        raise EnvError(
            f"{type(getattr(env, 'unwrapped', env)).__name__} is an AEC environment, whose agents act one after the "
            f"other, but agents must act at once. Use its parallel_env instead of env, or convert it with "
            f"pettingzoo.utils.aec_to_parallel(env)."
        )


def chosen_agents(possible: Sequence[AgentId], agent_ids: AgentId | Sequence[AgentId] | None) -> tuple[AgentId, ...]:
    """Return the agents that `agent_ids` names, each once: ids or patterns such as `"blue_*"`; None for all."""
    if agent_ids is None:
        return tuple(possible)
    if isinstance(agent_ids, str) or not isinstance(agent_ids, Sequence) or agent_ids in possible:
        agent_ids = (agent_ids,)
    chosen: dict[AgentId, None] = {}
    for wish in agent_ids:
        matching = [wish] if wish in possible else [agent for agent in possible if _matches(agent, wish)]
        if not matching:
            known = [str(agent) for agent in possible]
            listed = f"There are {', '.join(known)}."
            raise EnvError(f"agent_ids names {wish!r}, which is no agent.{did_you_mean(str(wish), known, listed)}")
        chosen |= dict.fromkeys(matching)
    if not chosen:
        raise EnvError("agent_ids is empty, so there is nobody to act for. Leave it out to control all agents.")
    return tuple(chosen)


def _matches(agent: AgentId, pattern: AgentId) -> bool:
    return isinstance(agent, str) and isinstance(pattern, str) and fnmatchcase(agent, pattern)


def require_agents(vecenv: Any, agent_ids: Sequence[str]) -> None:
    """Refuse agents that are not exactly those that the rows stand for."""
    rows, controlled = vecenv.num_rows, getattr(vecenv, "agent_ids", ())
    if controlled and set(chosen_agents(getattr(vecenv, "possible_agents", controlled), agent_ids)) != set(controlled):
        raise EnvError(
            f"agent_ids={list(agent_ids)}, but the environment's rows stand for {list(controlled)}, which its maker "
            f"decides. Make it with agent_ids={list(agent_ids)}, or leave agent_ids out here."
        )
    if not controlled and rows % max(1, len(agent_ids)):
        raise EnvError(
            f"agent_ids names {len(agent_ids)} agents, but the environment has {rows} rows, which is no multiple. "
            "Name the agents that the policy controls in each environment."
        )


def shared_spaces(env: Any, agents: Sequence[AgentId]) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return the one observation space and the one action space that all of `agents` have."""
    groups: list[tuple[spaces.Space[Any], spaces.Space[Any], list[AgentId]]] = []
    for agent in agents:
        observation_space, action_space = env.observation_space(agent), env.action_space(agent)
        for known_observation, known_action, members in groups:
            if observation_space == known_observation and action_space == known_action:
                members.append(agent)
                break
        else:
            groups.append((observation_space, action_space, [agent]))
    if len(groups) > 1:
        listed = " and ".join(f"{_names(members)} (sees {seen}, does {done})" for seen, done, members in groups)
        ways = " or ".join(f"agent_ids={members!r}" for _, _, members in groups)
        raise EnvError(
            f"These agents have different spaces: {listed}. One policy needs one kind of observation and one kind of "
            f"action. Train one group at a time with {ways} and an opponent that plays the rest, or pad their spaces."
        )
    return groups[0][0], groups[0][1]


def _names(agents: Sequence[AgentId]) -> str:
    return ", ".join(map(str, agents))


def made_opponents(envs: Sequence[Any], others: Sequence[AgentId], make: OpponentMaker | None) -> list[Opponent | None]:
    """Make one opponent per environment to play `others`, by `make` or by the environment's own `make_opponent`."""
    if not others:
        if make is not None:
            raise EnvError(
                "An opponent was given, but agent_ids covers every agent, so it would play nobody. "
                "Leave opponent out, or name with agent_ids the agents that the policy controls."
            )
        return [None] * len(envs)
    if make is not None:
        require_opponent_maker(make)
    opponents = [(make or _own_maker(env, others))() for env in envs]
    if len({id(opponent) for opponent in opponents}) < len(opponents):
        raise EnvError(
            "The function that makes opponents returned the same object twice, but environments must not share one. "
            "Let it make a new object at every call."
        )
    for opponent in opponents:
        _require_opponent(opponent)
    return list(opponents)


def require_opponent_maker(make: Any) -> None:
    """Refuse what is no function, without arguments, that makes a player."""
    _refuse_network(make, "opponent")
    if not isinstance(make, type) and (hasattr(make, "act") or not callable(make)):
        raise EnvError(
            f"opponent is the object {make!r}, but must be a function that makes one: every environment gets an "
            f"opponent of its own, whose memory is of its own match. Pass a class, or lambda: ...(...)."
        )
    if not _can_be_called(make, 0):
        raise EnvError(
            f"opponent={getattr(make, '__name__', make)!r} needs arguments, but is called without any: it must make a "
            f"player, not be one. Write class Mine: with def act(self, env, agent_id): return ..., and pass "
            f"opponent=Mine."
        )


def _require_opponent(opponent: Any) -> None:
    _refuse_network(opponent, "what opponent= makes")
    act = getattr(opponent, "act", None)
    if not callable(act):
        raise EnvError(f"The opponent {opponent!r} has no method act(env, agent_id). Add it; it returns one action.")
    if not _can_be_called(act, 2):
        raise EnvError(
            f"The opponent's act{inspect.signature(act)} cannot be called as act(env, agent_id). Let it take these "
            f"two; what its agents observe is given to see(observations, infos), if it has that."
        )


def _refuse_network(obj: Any, what: str) -> None:
    if hasattr(obj, "forward") and hasattr(obj, "state_dict") and not isinstance(obj, type):
        raise EnvError(
            f"{what} is the network {type(obj).__name__}, but a player is needed that knows what its agents observe. "
            f"Pass opponent=lambda: PolicyOpponent(network), from twostep."
        )


def _can_be_called(function: Callable[..., Any], num_arguments: int) -> bool:
    """Whether a function takes so many arguments; True also for those that do not tell."""
    try:
        inspect.signature(function).bind(*[None] * num_arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _own_maker(env: Any, others: Sequence[AgentId]) -> OpponentMaker:
    maker: OpponentMaker | None = own_attribute(env, "make_opponent")
    if maker is not None:
        return maker
    raise EnvError(
        f"Nobody plays {_names(others)}: agent_ids does not cover them, and {type(env).__name__} has no "
        f"make_opponent(). Pass opponent=, a function that makes an object with act(env, agent_id), or let agent_ids "
        f"cover all agents."
    )


def own_attribute(env: Any, name: str) -> Any:
    """Return an attribute of an environment or of what its wrappers hide; None where neither has it."""
    return getattr(env, name, None) or getattr(getattr(env, "unwrapped", env), name, None)


def neutral_action(space: spaces.Space[Any]) -> Any:
    """Return the action to give for agents that have ended but are still asked: zeros, or what is nearest to them."""
    if isinstance(space, spaces.Dict):
        return {key: neutral_action(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(neutral_action(part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, dtype=space.dtype), space.low, space.high)
    if isinstance(space, spaces.MultiDiscrete):
        return np.array(space.start, dtype=space.dtype)
    return np.zeros(space.shape or (), dtype=space.dtype)

"""Several environments in one process as one `RowEnv`, of whatever kind they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostep.errors import EnvError
from twostep.vector.agents import AgentId, OpponentMaker, is_parallel_env, refuse_turns
from twostep.vector.parallel import AgentsVectorEnv
from twostep.vector.serial import SerialVectorEnv
from twostep.vector.sources import factory_of

Group = SerialVectorEnv | AgentsVectorEnv


def make_group(
    factories: Sequence[Any],
    seed: int | None = None,
    *,
    agent_ids: AgentId | Sequence[AgentId] | None = None,
    opponent: OpponentMaker | None = None,
    check: bool = True,
) -> Group:
    """Make one environment by each factory and step them together in this process.

    A factory is a function without arguments, an object with a method `make()`, such as an environment's config, or an
    environment itself. The first environment decides the kind: of a single agent or of many.
    """
    if not factories:
        raise EnvError("0 environments were given, but a group needs at least one. Pass a list with one or more.")
    makers = [factory_of(factory) for factory in factories]
    first = makers[0]()
    try:
        refuse_turns(first)
        if is_parallel_env(first):
            return AgentsVectorEnv([first, *makers[1:]], seed, agent_ids=agent_ids, opponent=opponent, check=check)
        for name, value in (("agent_ids", agent_ids), ("opponent", opponent)):
            if value is not None:
                kind = type(getattr(first, "unwrapped", first)).__name__
                raise EnvError(f"{name}={value!r} was given, but {kind} has a single agent. Leave {name} out.")
        return SerialVectorEnv([first, *makers[1:]], seed, check=check)
    except Exception:
        if first is not factories[0]:
            getattr(first, "close", lambda: None)()
        raise

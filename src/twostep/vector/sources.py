"""Environments from what makes them, and their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from twostep.errors import EnvError


def is_single_env(obj: Any) -> bool:
    """Whether `obj` is an environment rather than a class or function that makes one."""
    return hasattr(obj, "step") and not isinstance(obj, type)


def factory_of(source: Any) -> Callable[[], Any]:
    """Return a function that makes one environment: from a function, a config with `make()`, or an environment."""
    if is_single_env(source):
        return lambda: source
    if callable(getattr(source, "make", None)) and not isinstance(source, type):
        return source.make
    if callable(source):
        return source
    raise EnvError(
        f"{source!r} makes no environment. Pass a function without arguments, or an object with a method make()."
    )


def require_distinct(envs: Sequence[Any]) -> None:
    """Refuse no environment at all, and one that is there twice."""
    if not envs:
        raise EnvError("0 environments were given, but a vector needs at least one. Pass a list with one or more.")
    if len({id(env) for env in envs}) < len(envs):
        raise EnvError(
            f"The same environment object is listed more than once among {len(envs)}: rows would share one episode. "
            f"Pass functions that make a new environment each, such as [lambda: MyEnv() for _ in range({len(envs)})]."
        )


def close_all(envs: Sequence[Any]) -> None:
    """Close every environment, even where one of them raises."""
    with ExitStack() as closing:
        for env in envs:
            closing.callback(getattr(env, "close", _nothing))


def _nothing() -> None:
    """Stand in for the `close` of environments that have nothing to close."""

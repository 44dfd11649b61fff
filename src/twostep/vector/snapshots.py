"""The state of a single environment as plain data, so that a run goes on in the middle of an episode.

An environment, or a wrapper around one, that follows `twostep.protocols.Stateful` says by itself what its state is. Any
other is its attributes, as long as all of them are plain data: numbers, texts, arrays, containers and random generators
of these. Gymnasium's classic control, its toy texts, its wrappers and most environments written in Python are; MuJoCo's
simulation data are known, too. What holds anything else, such as a simulator's handle, is refused by name. Spaces and
specifications, functions, classes and frozen dataclasses belong to how an environment is made, not to its state.

The random generator `np_random` is kept in any case, and that of every space. Not kept is what lies outside of an
environment's attributes: globals, class attributes, files.
"""

from __future__ import annotations

import dataclasses
import enum
import random
import types
from collections import deque
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from twostep.errors import StateError
from twostep.protocols import Stateful

State = Any
"""Dicts, lists and tuples with arrays, numbers, texts, truth values and None in them."""

_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)
_FIXED = (type, types.ModuleType, enum.Enum, EnvSpec, np.dtype, PurePath)
_WAY_OUT = "Give the environment state_dict() and load_state_dict(state), or let its episodes begin anew on resume."


def taken(env: Any) -> State:
    """Return the state of an environment and of all wrappers around it.

    Raises:
        StateError: Part of it is not plain data.
    """
    return [{"kind": type(layer).__qualname__, **_Taking(layer).state()} for layer in _layers(env)]


def put(env: Any, state: State) -> None:
    """Let an environment that has been reset go on from where `taken` was called on another one made alike.

    Raises:
        StateError: It was not made alike.
    """
    layers = _layers(env)
    kinds, expected = [type(layer).__qualname__ for layer in layers], [part["kind"] for part in state]
    if kinds != expected:
        raise StateError(f"The state is of {' in '.join(reversed(expected))}, not of {' in '.join(reversed(kinds))}.")
    try:
        for layer, part in zip(layers, state, strict=True):
            _Putting(layer).state(part)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"The state does not fit {kinds[-1]}: {error!r}. Was it made with other arguments?") from error


def states_of(state: dict[str, State], num_envs: int, name: str | None = None) -> list[Any]:
    """Return the states of single environments that a vector of as many kept, each with an entry of this name."""
    states = state["envs"]
    if len(states) != num_envs:
        raise StateError(f"The state is of {len(states)} environments, not of {num_envs}. Make as many.")
    if name is not None and any(name not in one for one in states):
        raise StateError("The state is of another kind of environments. Make them as they were.")
    return states


def require_begun(has_begun: bool) -> None:
    """Refuse to tell the state of what has none yet."""
    if not has_begun:
        raise StateError("No episode has begun, so there is no state to keep. Call reset first.")


def _layers(env: Any) -> list[Any]:
    """Return the wrappers from the outermost on, and the environment inside of all."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper) or getattr(layers[-1], "unwrapped", layers[-1]) is not layers[-1]:
        layers.append(layers[-1].env)
    return layers


class _Taking:
    """Turns the attributes of one layer into plain data; what is there twice is kept once."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._kind = type(layer).__qualname__
        self._places: dict[int, int] = {}
        self._memories: set[int] = set()
        self._held: list[Any] = []

    def state(self) -> dict[str, State]:
        attributes: dict[str, Any] = getattr(self._layer, "__dict__", {})
        if isinstance(self._layer, Stateful):
            generator = attributes.get("_np_random")
            return {"own": self._layer.state_dict(), "random": self._value(generator, "np_random")}
        if not attributes:
            raise StateError(f"{self._kind} has no attributes that could be its state. {_WAY_OUT}")
        names = [name for name in attributes if name != "env"]
        return {"attributes": {name: self._value(attributes[name], name) for name in names}}

    def _value(self, value: Any, where: str) -> State:
        plain = value is None or isinstance(value, (bool, int, float, str, np.generic))
        if plain and not isinstance(value, enum.Enum):
            return value
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self._value(one, f"{where}[{at}]") for at, one in enumerate(cast("tuple[Any, ...]", value)))
        if self._is_fixed(value):
            return {"fixed": type(value).__qualname__}
        if isinstance(value, spaces.Space):
            return {"space": [_generator_of(part) for part in _parts(cast("spaces.Space[Any]", value))]}
        if id(value) in self._places:
            return {"again": self._places[id(value)]}
        self._places[id(value)] = len(self._places)
        self._held.append(value)  # so that no other object gets its id meanwhile
        return self._new(value, where)

    def _is_fixed(self, value: Any) -> bool:
        if isinstance(value, _FIXED) or _is_of(value, "mujoco", "MjModel") or type(value).__name__ == "MujocoRenderer":
            return True
        if isinstance(value, _FUNCTIONS):
            bound_to = getattr(value, "__self__", None)
            return not getattr(value, "__closure__", None) and (
                bound_to is None or isinstance(bound_to, types.ModuleType)
            )
        if isinstance(value, types.MethodType):
            return value.__self__ is self._layer
        return dataclasses.is_dataclass(value) and bool(cast("Any", value).__dataclass_params__.frozen)

    def _new(self, value: Any, where: str) -> State:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufcSU":
            return self._array(cast("np.ndarray[Any, Any]", value), where)
        if type(value) is list:
            return {"list": [self._value(one, f"{where}[{at}]") for at, one in enumerate(cast("list[Any]", value))]}
        if type(value) is dict:
            items = cast("dict[Any, Any]", value).items()
            return {"dict": [(self._value(key, where), self._value(one, f"{where}[{key!r}]")) for key, one in items]}
        if type(value) is deque:
            held = cast("deque[Any]", value)
            return {"deque": [self._value(one, f"{where}[{at}]") for at, one in enumerate(held)], "maxlen": held.maxlen}
        if type(value) is np.random.Generator:
            return {"generator": value.bit_generator.state}
        if type(value) is np.random.RandomState:
            return {"random_state": value.get_state(legacy=False)}
        if type(value) is random.Random:
            return {"python_random": value.getstate()}
        if _is_of(value, "mujoco", "MjData"):
            return {"mujoco": _simulation_arrays(value)}
        raise StateError(
            f"{self._kind}.{where} is a {type(value).__module__}.{type(value).__qualname__}, which is no plain data, "
            f"so the state of this environment cannot be kept. {_WAY_OUT}"
        )

    def _array(self, array: np.ndarray[Any, Any], where: str) -> State:
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) in self._memories:
            raise StateError(
                f"{self._kind}.{where} is a view of memory that another attribute also shows, so the state of this "
                f"environment cannot be kept. {_WAY_OUT}"
            )
        self._memories.add(id(owner))
        self._held.append(owner)
        if array.dtype.kind in "biuf":
            return array.copy()
        return {"bytes": np.frombuffer(array.tobytes(), np.uint8), "dtype": array.dtype.str, "shape": array.shape}


class _Putting:
    """Gives one layer the attributes that `_Taking` kept, which are seen here in the same order."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._seen: list[Any] = []

    def state(self, state: dict[str, State]) -> None:
        attributes: dict[str, Any] = self._layer.__dict__
        if "own" in state:
            self._layer.load_state_dict(state["own"])
            if state["random"] is not None:
                attributes["_np_random"] = self._value(state["random"], None)
            return
        for name, kept in state["attributes"].items():
            attributes[name] = self._value(kept, attributes.get(name))

    def _value(self, kept: State, present: Any) -> Any:
        if isinstance(kept, tuple):
            return tuple(self._value(one, _item(present, at)) for at, one in enumerate(cast("tuple[State, ...]", kept)))
        if isinstance(kept, np.ndarray):
            return self._note(kept.copy())
        if not isinstance(kept, dict):
            return kept
        ((kind, content), *_) = cast("dict[str, Any]", kept).items()
        if kind == "again":
            return self._seen[content]
        if kind == "fixed":
            return present
        if kind == "space":
            for part, generator in zip(_parts(present), content, strict=True):
                part._np_random = None if generator is None else _generator(generator)
            return present
        return self._new(kind, content, kept, present)

    def _new(self, kind: str, content: Any, kept: dict[str, Any], present: Any) -> Any:
        if kind in ("list", "deque"):
            made = self._note([] if kind == "list" else deque[Any](maxlen=kept["maxlen"]))
            for at, one in enumerate(content):
                made.append(self._value(one, _item(present, at)))
            return made
        if kind == "dict":
            mapping: dict[Any, Any] = self._note({})
            present = present if isinstance(present, dict) else {}
            for key, one in content:
                mapping[self._value(key, None)] = self._value(one, present.get(key))
            return mapping
        if kind == "mujoco":
            self._note(present)
            return _filled(present, content)
        if kind not in _REBUILT:
            raise StateError(f"{kind!r} is no kind of state that this version knows. Update twostep.")
        return self._note(_REBUILT[kind](content, kept))

    def _note(self, value: Any) -> Any:
        self._seen.append(value)
        return value


def _item(present: Any, at: int) -> Any:
    is_long_enough = isinstance(present, (list, tuple, deque)) and at < len(cast("list[Any]", present))
    return present[at] if is_long_enough else None


def _parts(space: spaces.Space[Any]) -> list[Any]:
    """Return a space and all that are inside of it: each has a random generator of its own."""
    inside = getattr(space, "spaces", ())
    parts: list[Any] = [space]
    for part in inside.values() if isinstance(inside, dict) else inside:
        parts += _parts(part)
    return parts


def _generator_of(space: Any) -> State:
    generator = space._np_random
    return None if generator is None else generator.bit_generator.state


def _generator(state: State) -> np.random.Generator:
    kind = state["bit_generator"]
    if kind not in _GENERATORS:
        raise StateError(f"{kind!r} is no random generator of NumPy's. There are {', '.join(_GENERATORS)}.")
    bits = getattr(np.random, kind)()
    bits.state = state
    return np.random.Generator(bits)


def _random_state(state: State) -> np.random.RandomState:
    generator = np.random.RandomState()
    generator.set_state(state)
    return generator


def _python_random(state: State) -> random.Random:
    generator = random.Random()
    generator.setstate(state)
    return generator


def _array(content: np.ndarray[Any, Any], kept: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(content.tobytes(), np.dtype(kept["dtype"])).reshape(kept["shape"]).copy()


_REBUILT: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "bytes": _array,
    "generator": lambda content, _: _generator(content),
    "random_state": lambda content, _: _random_state(content),
    "python_random": lambda content, _: _python_random(content),
}


def _is_of(value: Any, package: str, name: str) -> bool:
    kind = type(value)
    return kind.__name__ == name and kind.__module__.partition(".")[0] == package


def _simulation_arrays(data: Any) -> dict[str, Any]:
    """Return the time and all arrays of MuJoCo's `MjData`: its state, and what was last derived from it."""
    found = {name: getattr(data, name) for name in dir(data) if not name.startswith("_")}
    arrays = {name: value.copy() for name, value in found.items() if isinstance(value, np.ndarray)}
    return {"time": float(data.time), **arrays}


def _filled(data: Any, kept: dict[str, Any]) -> Any:
    data.time = kept["time"]
    for name, array in kept.items():
        present = getattr(data, name, None)
        if isinstance(present, np.ndarray) and present.shape == array.shape:  # contacts come and go, and are found anew
            present[...] = array
    return data

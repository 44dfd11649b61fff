"""One clear line where a name, a package or an argument does not exist."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import gymnasium as gym

from twostep.errors import EnvError

_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "toy_text": "toy-text", "ale_py": "atari", "pygame": "classic-control"}


OWN_ENVIRONMENT = "For an environment of your own pass a function, or 'module:function'."


def did_you_mean(name: str, known: Sequence[str], otherwise: str = OWN_ENVIRONMENT) -> str:
    """Suggest the known names that look like `name`, or else say where else to look."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f" Did you mean {', '.join(close)}?"
    return f" {otherwise}"


def import_or_explain(module_name: str, spec: str, install: str | None = None) -> ModuleType:
    """Import a module that `spec` names; errors inside that module stay as they are."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        way_out = install or "check the spelling and that it is installed or on PYTHONPATH"
        raise EnvError(
            f"{spec!r} needs the module {error.name}, which cannot be found. To mend it: {way_out}."
        ) from error


def maker_named(spec: str, found: Any, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what `spec` names, if it is something that these arguments can be given to."""
    if not callable(found):
        raise EnvError(f"{spec!r} is of type {type(found).__name__}; it must be a function that makes an environment.")
    try:
        inspect.signature(found).bind(**arguments)
    except ValueError:  # some functions written in C do not tell what they take
        pass
    except TypeError as error:
        raise EnvError(
            f"{spec!r} cannot make an environment from the arguments {list(arguments)}: {error}. Give what it "
            "takes by env.kwargs in a configuration."
        ) from error
    return found


@contextmanager
def explained(spec: str) -> Generator[None]:
    """Say which package to install, or which argument to leave out, when making `spec` fails for that."""
    try:
        yield
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        text = " ".join(str(error).split())
        extra = next((extra for part, extra in _EXTRAS.items() if part in text.lower()), None)
        way_out = f'pip install "gymnasium[{extra}]"' if extra else "install it with pip"
        raise EnvError(f"{spec!r} needs a package that is not installed ({text}). To mend it: {way_out}.") from error
    except ImportError as error:
        text = " ".join(str(error).split())
        raise EnvError(
            f"{spec!r} cannot be made: {text} Take a newer version of it, or install what it asks for."
        ) from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise EnvError(f"{spec!r} does not take these arguments: {error}. Leave the unknown ones out.") from error

"""The errors a user can cause. Each message gives the value, the rule and the way out."""

from __future__ import annotations


class TwostepError(Exception):
    """The common parent, so that one `except` catches what a user can mend."""


class ConfigError(TwostepError, ValueError):
    """A setting that cannot work."""


class EnvError(TwostepError, ValueError):
    """An environment that breaks its contract."""


class StateError(EnvError):
    """An environment whose state cannot be kept, or not be taken up."""


class RolloutError(TwostepError, ValueError):
    """Experience that cannot be stored, joined, read or learned from."""


class PolicyError(TwostepError, ValueError):
    """A policy or network that breaks its contract."""


class RatioError(TwostepError, RuntimeError):
    """The policy that learns is not the policy that acted."""


class NumericsError(TwostepError, FloatingPointError):
    """A number that is not finite, named with its place."""


class GroupError(TwostepError, RuntimeError):
    """Processes that should learn together, and do not."""


class CheckpointError(TwostepError, RuntimeError):
    """A saved state that cannot be written, or is not exactly what was written."""


class ExportError(TwostepError, RuntimeError):
    """A policy that cannot be written as a file for other programs, or would not be the same there."""

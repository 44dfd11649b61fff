"""Where policies are kept and found again: in a folder, in memory, in the folders of runs, as artifacts."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from twostep.checkpoint import MANIFEST_FILE, load_manifest, save_state
from twostep.errors import CheckpointError, ConfigError
from twostep.store.architecture import DESCRIPTION, TENSORS, described
from twostep.store.artifacts import held_artifact, log_artifact
from twostep.store.record import MEMORY, RUN, WANDB, Held, PolicyRecord, path_of, read_description

Selector = Literal["latest", "best", "random", "all"]
SELECTORS: tuple[str, ...] = get_args(Selector)

PLACES = ("", "policies", "checkpoints")
"""Where in a folder policies lie, each in a folder of its own: in a store's, a run's, a checkpointer's."""
_NAME = re.compile(r"\w[\w.+=-]*")
_LOG = logging.getLogger("twostep.store")


class PolicyStore:
    """Saves policies, lists them, and finds them by URI.

    Args:
        folder: Where they are saved, each in a folder of its own; None keeps them in memory.
        seed: What the selector "random" draws from; None draws differently every time.

    URIs name one policy or many, of which a selector chooses:

    - `file://FOLDER` or just a path: a saved policy, a checkpoint of training, a folder of either, a run's folder
    - `run://FOLDER`: the run in this folder, or the newest of the runs in it
    - `memory://` or `memory://NAME`: what this store keeps in memory
    - `wandb://ENTITY/PROJECT/NAME:VERSION`: an artifact of Weights & Biases
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, seed: int | None = None) -> None:
        self.folder = None if folder is None else Path(folder).resolve()
        self._held: dict[str, PolicyRecord] = {}
        self._random = np.random.default_rng(seed)

    def save(self, name: str, policy: Any, metadata: Mapping[str, Any] | None = None) -> PolicyRecord:
        """Keep a policy as it is now; one of the same name is replaced, in one step.

        Raises:
            CheckpointError: It cannot be written; what was there is untouched.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"name={name!r} must be letters, digits, '_', '-', '.', '+' and '=', and begin with a letter or digit: "
                "'step_1000' would do."
            )
        description = described(policy, _plain(metadata or {}, name))
        tensors = policy.state_dict()
        if self.folder is not None:
            path = save_state(self.folder / name, {TENSORS: tensors}, {DESCRIPTION: description})
            return _record(path)
        held = Held.copy_of(description, tensors)
        self._held.pop(name, None)  # the newest is the last
        self._held[name] = PolicyRecord(name, f"{MEMORY}{name}", description["metadata"], held)
        return self._held[name]

    def records(self) -> list[PolicyRecord]:
        """List what this store keeps, the oldest first; what is damaged is left out, with a warning."""
        return list(self._held.values()) if self.folder is None else _records_in(self.folder)

    def policy(
        self, uri: str | os.PathLike[str] | None = None, selector: Selector = "latest", metric: str = "score"
    ) -> PolicyRecord:
        """Return the one record that a URI and a selector name."""
        return self.policies(uri, selector, 1, metric)[0]

    def policies(
        self,
        uri: str | os.PathLike[str] | None = None,
        selector: Selector = "all",
        n: int = 1,
        metric: str = "score",
    ) -> list[PolicyRecord]:
        """Return `n` of the records that a URI names, or all of them; None means those of this store.

        Args:
            uri: See the class.
            selector: "latest" takes the newest, the newest first; "best" those with the highest `metric`, the best
                first; "random" draws without putting back; "all" takes all there are, the oldest first.
            n: How many; fewer where there are not so many.
            metric: A name in the metadata or in its `eval_scores`. Records without it are never the best.

        Raises:
            CheckpointError: There is none.
        """
        if selector not in SELECTORS:
            raise ConfigError(f"selector={selector!r} must be one of {', '.join(SELECTORS)}: 'latest' is the default.")
        if n < 1:
            raise ConfigError(f"n={n} must be 1 or more: how many policies are wanted.")
        found = self.records() if uri is None else self._named(os.fspath(uri))
        if not found:
            raise CheckpointError(f"There is no policy in {self._where(uri)}: save one with PolicyStore.save.")
        if selector == "latest":
            return found[: -n - 1 : -1]
        if selector == "best":
            return _best(found, metric, self._where(uri))[:n]
        if selector == "random":
            drawn = self._random.choice(len(found), size=min(n, len(found)), replace=False)
            return [found[at] for at in drawn.tolist()]
        return found

    def load_from_uri(self, uri: str | os.PathLike[str]) -> PolicyRecord:
        """Return the one record that a URI names.

        Raises:
            CheckpointError: It names none or many.
        """
        found = self.policies(uri)
        if len(found) > 1:
            names = ", ".join(record.name for record in found)
            raise CheckpointError(
                f"{uri} names {len(found)} policies ({names}), but one is asked for: name it, or choose one with "
                "PolicyStore.policy(uri, selector)."
            )
        return found[0]

    def add_to_wandb_run(self, record: PolicyRecord, run: Any) -> Any:
        """Send a saved policy to a run of Weights & Biases, as an artifact of its name; return the artifact."""
        return log_artifact(record, run)

    def _named(self, uri: str) -> list[PolicyRecord]:
        if uri.startswith(MEMORY):
            name = uri.removeprefix(MEMORY)
            return [record for record in self._held.values() if name in ("", record.name)]
        if uri.startswith(WANDB):
            held, name = held_artifact(uri)
            return [PolicyRecord(name, uri, held.description["metadata"], held)]
        if uri.startswith(RUN):
            return _records_of_run(Path(uri.removeprefix(RUN)))
        scheme, found, _ = uri.partition("://")
        if found and scheme != "file":
            raise ConfigError(f"{uri!r} begins with {scheme}://, but must with file://, run://, memory:// or wandb://.")
        return _records_in(path_of(uri) if found else Path(uri))

    def _where(self, uri: object) -> str:
        return str(uri or self.folder or "this store")


def _records_in(folder: Path) -> list[PolicyRecord]:
    """List the saved policies that a folder is or holds, the oldest first."""
    if (folder / MANIFEST_FILE).is_file():
        return [_record(folder)]
    if not folder.is_dir():
        return []
    found: list[PolicyRecord] = []
    for child in sorted({file.parent for place in PLACES for file in (folder / place).glob(f"*/{MANIFEST_FILE}")}):
        if child.name.startswith("."):  # a save that was killed
            continue
        try:
            if DESCRIPTION in load_manifest(child):  # else it is a saved state of another kind
                found.append(_record(child))
        except CheckpointError as error:
            _LOG.warning("%s is left out: %s", child, error)
    return sorted(found, key=lambda record: (record.saved_at, record.name))


def _records_of_run(folder: Path) -> list[PolicyRecord]:
    """List the policies of the run in a folder, or of that run in it whose newest policy is newest."""
    found = _records_in(folder)
    if found or not folder.is_dir():
        return found
    runs = [_records_in(child) for pattern in ("*", "*/*") for child in folder.glob(pattern) if child.is_dir()]
    return max((run for run in runs if run), key=lambda run: run[-1].saved_at, default=[])


def _record(folder: Path) -> PolicyRecord:
    folder = folder.resolve()
    return PolicyRecord(folder.name, folder.as_uri(), read_description(folder)["metadata"])


def _best(records: list[PolicyRecord], metric: str, where: str) -> list[PolicyRecord]:
    scored = [(score, at) for at, record in enumerate(records) if (score := _score(record, metric)) is not None]
    if not scored:
        named = {(record, name) for record in records for name in (*record.metadata, *_scores(record))}
        known = sorted({name for record, name in named if _score(record, name) is not None})
        raise ConfigError(
            f"metric={metric!r} is a number in the metadata of no policy in {where}, so none is the best. "
            f"There is {', '.join(known) or 'nothing'}; or choose with selector='latest'."
        )
    return [records[at] for _, at in sorted(scored, reverse=True)]


def _score(record: PolicyRecord, metric: str) -> float | None:
    value = record.metadata.get(metric, _scores(record).get(metric))
    if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value):
        return None
    return float(value)


def _scores(record: PolicyRecord) -> Mapping[str, Any]:
    return record.metadata.get("eval_scores") or {}


def _plain(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return metadata as reading it again will give it, so that a record says the same before and after."""
    try:
        return json.loads(json.dumps(dict(metadata)))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The metadata of {name!r} are more than JSON can say: {error}. Use text, numbers, truth values, None, and "
            "lists and dicts of these; float(x) makes a number of numpy or torch a plain one."
        ) from error

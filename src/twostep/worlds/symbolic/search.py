"""Many expressions written side by side for the laws that rows were given: the world itself, without an interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from twostep.errors import ConfigError, EnvError
from twostep.worlds.symbolic.config import SymbolicConfig
from twostep.worlds.symbolic.discoveries import Discovery, rank_of
from twostep.worlds.symbolic.drafts import Drafts
from twostep.worlds.symbolic.grammar import NOTHING, Array
from twostep.worlds.symbolic.laws import Dataset, Law, Task, dataset_of
from twostep.worlds.symbolic.machine import fit, quality, values
from twostep.worlds.symbolic.writing import infix, scaled

FEATURES_PER_VARIABLE = 3


class Written(NamedTuple):
    """What came of one token in every row."""

    rewards: Array
    ended: Array
    """`[M]`: rows whose expression is finished, or broken off by a token that was not allowed."""
    infos: dict[int, dict[str, Any]]
    """For each of these rows."""


class Search:
    """B rows, each of which writes an expression for its task.

    An observation is a vector: the tokens so far, one-hot by place; the parent and the first sibling of the next place,
    one-hot, all zeros where there is none; how many places are open, how deep the next lies, how many tokens and how
    much complexity are left, each as a part of its limit; and, where `config.show_data`, `data_features` of the task.
    """

    def __init__(self, config: SymbolicConfig, num_rows: int) -> None:
        self.config, self.grammar, self.num_rows = config, config.grammar, num_rows
        self.drafts = Drafts(self.grammar, num_rows)
        self.best: dict[str, Discovery] = {}
        self.tried: dict[str, int] = {}
        """How many expressions were finished for each task, by name."""
        self._tasks: list[Dataset] = []
        self._by_name: dict[str, int] = {}
        self._features: list[Array] = []
        self._possible: list[Array] = []
        self._task = np.zeros(num_rows, dtype=np.int64)
        self._rngs = [np.random.default_rng(0)] * num_rows
        self._choices: list[list[int]] = [[]] * num_rows
        """The tasks from which each row draws."""
        self.set_task(config.tasks)
        n, longest = len(self.grammar), self.grammar.limits.tokens
        self._parents = longest * n
        self._rest = self._parents + 2 * n
        features = FEATURES_PER_VARIABLE * self.grammar.num_variables if config.show_data else 0
        self.observation_space = spaces.Box(-1.0, 1.0, (self._rest + 4 + features,), np.float32)
        self.action_space = spaces.Discrete(n)
        self._obs = np.zeros((num_rows, self._rest + 4 + features), dtype=np.float32)
        self._rows = np.arange(num_rows)
        self._most_complex = self.grammar.limits.complexity

    def number_of(self, task: Task) -> int:
        """Return the number under which a task is known here; data of the same name as before take its place."""
        known = self._by_name.get(task) if isinstance(task, str) else None
        if known is not None:
            return known
        data = dataset_of(task, self.config.points, self.config.data_seed)
        self._check(data)
        number = self._by_name.setdefault(data.name, len(self._tasks))
        if number == len(self._tasks):
            self._tasks.append(data)
            self._features.append(np.empty(0))
            self._possible.append(np.empty(0))
        self._tasks[number] = data
        self._features[number] = data_features(data, self.grammar.num_variables)
        self._possible[number] = np.ones(len(self.grammar), dtype=np.bool_)
        self._possible[number][len(data.variables) : self.grammar.num_variables] = False
        return number

    def _check(self, data: Dataset) -> None:
        if len(data.variables) > self.grammar.num_variables:
            raise ConfigError(
                f"{data.name} has {len(data.variables)} variables, but expressions can name only "
                f"{self.grammar.num_variables}. Make the world with num_variables={len(data.variables)}."
            )

    def set_task(self, task: Task | Sequence[Task], rows: Iterable[int] | None = None) -> None:
        """Let expressions begun from now on be for this task, or each for one drawn from several."""
        tasks = (task,) if isinstance(task, (str, Law, Dataset)) else task
        numbers = [self.number_of(each) for each in tasks]
        if not numbers:
            raise ConfigError("set_task was given no task. Name one or more: set_task('kepler').")
        for row in range(self.num_rows) if rows is None else rows:
            self._choices[row] = numbers

    def seed(self, rows: Sequence[int], seeds: Sequence[int | None]) -> None:
        """Decide which tasks these rows will draw."""
        for row, seed in zip(rows, seeds, strict=True):
            self._rngs[row] = np.random.default_rng(seed)

    def begin(self, rows: Sequence[int] | Array, task: Task | None = None) -> None:
        """Start the expressions of these rows anew, for this task or for those that they draw."""
        chosen = np.asarray(rows, dtype=np.int64)
        self._task[chosen] = [self._drawn(row) for row in chosen.tolist()] if task is None else self.number_of(task)
        self.drafts.begin(chosen)
        self._obs[chosen] = 0.0
        if self.config.show_data:
            self._obs[chosen, self._rest + 4 :] = np.stack(self._features)[self._task[chosen]]

    def _drawn(self, row: int) -> int:
        choices = self._choices[row]
        return choices[0] if len(choices) == 1 else choices[int(self._rngs[row].integers(len(choices)))]

    def task_name(self, row: int) -> str:
        """Return the name of a row's task."""
        return self._tasks[self._task[row]].name

    def masks(self) -> Array:
        """Return which tokens may come next, `[B, n]`."""
        possible = self._possible[0] if len(self._tasks) == 1 else np.stack(self._possible)[self._task]
        return self.drafts.allowed() & possible

    def write(self, actions: Any) -> Written:
        """Put a token into every row; one that is not allowed breaks its expression off."""
        tokens = self._checked(actions)
        refused = ~self.masks()[self._rows, tokens]
        going = np.flatnonzero(~refused)
        self._obs[going, self.drafts.length[going] * len(self.grammar) + tokens[going]] = 1.0
        self.drafts.write(going, tokens[going])
        rewards = np.where(refused, -self.config.invalid_penalty, 0.0).astype(np.float32)
        finished = np.flatnonzero((self.drafts.open == 0) & ~refused)
        infos: dict[int, dict[str, Any]] = {}
        for number in np.unique(self._task[finished]).tolist():
            rows = finished[self._task[finished] == number]
            rewards[rows] = self._judge(rows, self._tasks[number], infos)
        for row in np.flatnonzero(refused).tolist():
            infos[row] = {"task": self.task_name(row), "refused": self.grammar.words[tokens[row]]}
        return Written(rewards, np.flatnonzero(refused | (self.drafts.open == 0)), infos)

    def _checked(self, actions: Any) -> Array:
        tokens = np.asarray(actions)
        if tokens.shape != (self.num_rows,) or tokens.dtype.kind not in "iu":
            raise EnvError(
                f"The actions have shape {list(tokens.shape)} and dtype {tokens.dtype}, but must be one whole number "
                f"for each of {self.num_rows} rows."
            )
        if len(tokens) and not (tokens.min() >= 0 and tokens.max() < len(self.grammar)):
            wrong = tokens[(tokens < 0) | (tokens >= len(self.grammar))][0]
            raise EnvError(f"The action {wrong} is no token: they are 0 to {len(self.grammar) - 1}.")
        return tokens.astype(np.int64)

    def _judge(self, rows: Array, data: Dataset, infos: dict[int, dict[str, Any]]) -> Array:
        """Return the rewards of finished expressions of one task, and keep what was said of each."""
        config, drafts = self.config, self.drafts
        said = values(self.grammar, drafts.tokens[rows], data.inputs)
        scales, errors = fit(said, data.targets, scaled=config.fit_scale)
        complexity, found = drafts.complexity[rows], errors <= data.tolerance
        tried = self.tried.get(data.name, 0)
        self.tried[data.name] = tried + len(rows)
        for at, (row, error) in enumerate(zip(rows.tolist(), errors.tolist(), strict=True)):
            tokens = drafts.tokens[row, : drafts.length[row]]
            text = infix(self.grammar, tokens, data.variables)
            size, exact = int(complexity[at]), bool(found[at])
            infos[row] = {
                "task": data.name,
                "expression": text,
                "complexity": size,
                "error": error,
                "fit": max(0.0, 1.0 - error),
                "found": exact,
            }
            rank = rank_of(exact, size, error)
            best = self.best.get(data.name)
            if best is None or rank < best.rank:
                words = tuple(self.grammar.words[token] for token in tokens.tolist())
                scale = float(scales[at])
                law = f"{data.target} = {scaled(scale, text)}"
                self.best[data.name] = Discovery(data.name, law, words, scale, error, size, exact, tried + at + 1)
        return quality(errors) + config.exact_bonus * found - config.size_penalty * complexity / self._most_complex

    def observe(self) -> Array:
        """Return what every row sees, `[B, ...]`, in memory that the next token changes."""
        drafts, limits, obs, n = self.drafts, self.grammar.limits, self._obs, len(self.grammar)
        obs[:, self._parents : self._rest] = 0.0
        for first, tokens in ((self._parents, drafts.parent), (self._parents + n, drafts.sibling)):
            there = np.flatnonzero((tokens != NOTHING) & (drafts.open > 0))
            obs[there, first + tokens[there]] = 1.0
        obs[:, self._rest] = drafts.open / limits.tokens
        obs[:, self._rest + 1] = np.where(drafts.open > 0, drafts.depth / limits.depth, 0.0)
        obs[:, self._rest + 2] = 1.0 - drafts.length / limits.tokens
        obs[:, self._rest + 3] = 1.0 - drafts.complexity / limits.complexity
        return obs


def data_features(data: Dataset, num_variables: int) -> Array:
    """Sum a task's data up, three numbers per variable that could be there.

    1 where the variable is there; its correlation with the target; the correlation of their logarithms, signs left out.
    """
    features = np.zeros((num_variables, FEATURES_PER_VARIABLE), dtype=np.float32)
    for number, column in enumerate(data.inputs):
        logs = [np.log(np.abs(values) + 1e-300) for values in (column, data.targets)]
        features[number] = 1.0, _correlation(column, data.targets), _correlation(*logs)
    return features.ravel()


def _correlation(one: Array, other: Array) -> float:
    spread = one.std() * other.std()
    return float(np.clip(((one - one.mean()) * (other - other.mean())).mean() / spread, -1, 1)) if spread > 0 else 0.0

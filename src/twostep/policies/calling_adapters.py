"""Networks that draw and judge actions themselves: asked for an action without one, for its log-probability with it.

Such a network says everything in one call, but which call is only known once somebody asks for a sample or for the
log-probability of given actions. So it runs when it is first asked something, and what it said is kept.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from twostep.errors import PolicyError
from twostep.policies.adapter_base import Adapter, forgotten, outputs_of, per_row
from twostep.policies.boxes import Bounds
from twostep.policies.foreign_state import WAY_OUT, ForeignState
from twostep.tree import Tree, tree_map, tree_stack


class Answer(NamedTuple):
    """What a network said in one call, time first: `[T, B, ...]`."""

    actions: Tree
    logprobs: Tensor
    entropies: Tensor
    values: Tensor
    state: Tree


class CallingAdapter(Adapter):
    """What the networks below have in common: whole sequences at once without memory, step after step with it."""

    bounds: Bounds | None

    def __init__(self, module: nn.Module, takes: Iterable[str], memory: ForeignState | None) -> None:
        super().__init__(module, takes, memory)
        self.bounds = None

    def set_action_space(self, space: gym.Space[Any]) -> None:
        """Clip continuous actions to a box from now on, for the environment only."""
        super().set_action_space(space)
        if isinstance(space, gym.spaces.Box):
            device = next(self.parameters(), torch.empty(0)).device
            self.bounds = Bounds(space).to(device)

    def forward(self, obs: Tree, state: Tree, episode_starts: Tensor, **conditions: Tree) -> Question:
        """See `protocols.Policy`; nothing runs before an answer is needed."""
        return Question(self, obs, state, episode_starts, conditions)

    def to_env(self, actions: Tree) -> Tree:
        """Turn actions into what the environment takes: as the network gave them, inside the box if there is one."""
        return actions if self.bounds is None else self.bounds.clip(actions)

    def ask(self, obs: Tree, state: Any, starts: Tensor, action: Tree, keywords: dict[str, Any]) -> tuple[Any, ...]:
        """Call the network on rows `[N, ...]`; return action, logprob, entropy, value and new memory."""
        raise NotImplementedError("ask(obs, state, starts, action, keywords) -> five outputs")

    def answer(self, question: Question, actions: Tree, extra: dict[str, Any]) -> Answer:
        """Ask about all steps; without `actions` the network draws them."""
        if self.memory is None:
            return self._at_once(question, actions, extra)
        memory = self.memory
        state, empty = question.before, self.initial_state(question.episode_starts.shape[1])
        said: list[tuple[Any, ...]] = []
        for t, starts in enumerate(question.episode_starts):

            def now(leaf: Tensor, t: int = t) -> Tensor:
                return leaf[t]

            keywords = {**self.conditioned(question.conditions, now), **extra}
            hidden = memory.from_rows(forgotten(state, starts, empty))
            action = None if actions is None else tree_map(now, actions)
            *outputs, hidden = self.ask(tree_map(now, question.obs), hidden, starts.float(), action, keywords)
            state = memory.to_rows(hidden)
            said.append(self._checked(outputs, starts.numel()))
        drawn, *numbers = zip(*said, strict=True)
        logprobs, entropies, values = (torch.stack(list(steps)) for steps in numbers)
        return Answer(tree_stack(torch.stack, list(drawn)), logprobs, entropies, values, state)

    def _at_once(self, question: Question, actions: Tree, extra: dict[str, Any]) -> Answer:
        starts = question.episode_starts

        def flat(leaf: Tensor) -> Tensor:
            return leaf.flatten(0, 1)

        keywords = {**self.conditioned(question.conditions, flat), **extra}
        action = None if actions is None else tree_map(flat, actions)
        outputs = self.ask(tree_map(flat, question.obs), None, starts.float().flatten(), action, keywords)
        drawn, *numbers = self._checked(list(outputs[:4]), starts.numel())
        logprobs, entropies, values = (part.view(starts.shape) for part in numbers)
        drawn = tree_map(lambda leaf: leaf.unflatten(0, starts.shape), drawn)
        return Answer(drawn, logprobs, entropies, values, question.before)

    def _checked(self, outputs: list[Any], rows: int) -> tuple[Any, ...]:
        action, *numbers = outputs
        names = ("log-probabilities", "entropies", "values")
        checked = [per_row(part, rows, what, self.module) for part, what in zip(numbers, names, strict=True)]
        return (action, *checked)

    def most_likely(self, question: Question) -> Tree:
        """Return the most likely actions, from a network that can tell."""
        if "deterministic" in self.takes:
            return self.answer(question, None, {"deterministic": True}).actions
        raise PolicyError(
            f"{type(self.module).__name__} cannot tell its most likely action: it only draws. Act with "
            "deterministic=False, or give its method a keyword argument deterministic=."
        )


class ActionAndValueAdapter(CallingAdapter):
    """`get_action_and_value(obs, action=None) -> (action, logprob, entropy, value)`."""

    def ask(self, obs: Tree, state: Any, starts: Tensor, action: Tree, keywords: dict[str, Any]) -> tuple[Any, ...]:
        """See `CallingAdapter`."""
        method: Any = self.module.get_action_and_value
        names = ("action", "logprob", "entropy", "value")
        return (*outputs_of(method(obs, action, **keywords), names, self.module), None)


class RecurrentActionAndValueAdapter(CallingAdapter):
    """`get_action_and_value(obs, lstm_state, done, action=None) -> (action, logprob, entropy, value, next_state)`."""

    def ask(self, obs: Tree, state: Any, starts: Tensor, action: Tree, keywords: dict[str, Any]) -> tuple[Any, ...]:
        """See `CallingAdapter`; `done` belongs to the observation: it is its episode's first."""
        method: Any = self.module.get_action_and_value
        names = ("action", "logprob", "entropy", "value", "next_state")
        return outputs_of(method(obs, state, starts, action, **keywords), names, self.module)


class StateChangingAdapter(CallingAdapter):
    """`module(obs, state, action=None) -> (action, logprob, entropy, value, full_logprobs)`, which changes `state`."""

    def ask(self, obs: Tree, state: Any, starts: Tensor, action: Tree, keywords: dict[str, Any]) -> tuple[Any, ...]:
        """See `CallingAdapter`."""
        names = ("action", "logprob", "entropy", "value", "full_logprobs")
        state = SimpleNamespace(lstm_h=None, lstm_c=None) if state is None else state
        outputs = outputs_of(self.module(obs, state, action, **keywords), names, self.module)
        if self.memory is None and (state.lstm_h is not None or state.lstm_c is not None):
            raise PolicyError(
                f"{type(self.module).__name__} remembers, but nobody told how its memory starts. {WAY_OUT}"
            )
        return (*outputs[:4], state)


class Question:
    """A call not made yet: a `PolicyOutput` whose distribution is itself."""

    def __init__(
        self, adapter: CallingAdapter, obs: Tree, state: Tree, episode_starts: Tensor, conditions: dict[str, Tree]
    ) -> None:
        self.adapter, self.obs, self.conditions = adapter, obs, conditions
        self.before, self.episode_starts = state, episode_starts
        self.answered: Answer | None = None

    @property
    def distribution(self) -> Question:
        """What can be sampled and asked for log-probabilities."""
        return self

    @property
    def values(self) -> Tensor:
        """`[T, B]`, from the call that was made, or else from one that draws actions nobody sees."""
        return self._answer().values

    @property
    def state(self) -> Tree:
        """Memory after the last step."""
        return self._answer().state

    def __iter__(self) -> Iterator[Any]:
        """Unpack like a `PolicyOutput`."""
        yield from (self, self.values, self.state)

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """Let the network draw, with randomness that comes from `generator`."""
        with _randomness_from(generator):
            self.answered = self.adapter.answer(self, None, {})
        return self.answered.actions

    def mode(self) -> Tree:
        """Return the most likely actions."""
        return self.adapter.most_likely(self)

    def log_prob(self, actions: Tree) -> Tensor:
        """Return the log-probabilities of `actions`; of those just drawn they are known already."""
        if self.answered is None or self.answered.actions is not actions:
            self.answered = self.adapter.answer(self, actions, {})._replace(actions=actions)
        return self.answered.logprobs

    def entropy(self) -> Tensor:
        """Return the entropies."""
        return self._answer().entropies

    def _answer(self) -> Answer:
        if self.answered is None:
            # Drawing must not shift anybody's random numbers: only values or memory were asked for.
            with torch.random.fork_rng(devices=_cuda_of(self.episode_starts)):
                self.answered = self.adapter.answer(self, None, {})
        return self.answered


@contextmanager
def _randomness_from(generator: torch.Generator | None) -> Generator[None]:
    """Seed the global generators from `generator` for a while: networks that draw themselves know no other."""
    if generator is None:
        yield
        return
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    devices = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _cuda_of(tensor: Tensor) -> list[torch.device]:
    return [tensor.device] if tensor.device.type == "cuda" else []

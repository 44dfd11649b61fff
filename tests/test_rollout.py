"""RolloutBuffer: filled by hand or by a collector, it holds copies, knows its times, and travels as a plain dict."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from twostep import Episode, RolloutBuffer, RolloutError, gae
from twostep.columns import TREES
from twostep.tree import tree_items, tree_leaves, tree_map

GAMMA, LAMBDA = 0.9, 0.8


def small_buffer(num_steps=4, num_rows=2, **kwargs):
    return RolloutBuffer.create(num_steps, num_rows, 3, 0, "cpu", **kwargs)


def add_steps(buffer, number, done=lambda t: False, **given):
    """Step t shows obs t, is worth 10 t, and earns t + 1."""
    for t in range(buffer.position, buffer.position + number):
        rows = buffer.num_rows
        buffer.add(torch.full((rows, 3), float(t)), torch.full((rows,), t), t + 1.0, 10.0 * t, -0.5, done(t), **given)


def columns_of(rollout):
    """Every tensor by its path."""
    data = rollout.to_dict()
    return {path: leaf for path, leaf in tree_items(data) if isinstance(leaf, torch.Tensor)}


def test_create_preallocates_every_column():
    """E4, E5, E7: shapes of the plain dataclass, nothing computed yet."""
    buffer = RolloutBuffer.create(num_steps=6, num_agents=3, obs_dim=5, action_dim=2, device="cpu")
    assert buffer.obs.shape == (6, 3, 5)
    assert buffer.actions.shape == (6, 3, 2)
    for name in ("logprobs", "rewards", "dones", "values", "next_values", "terminated", "truncated", "valid"):
        assert getattr(buffer, name).shape == (6, 3), name
    assert buffer.advantages is None
    assert buffer.returns is None
    assert (buffer.num_steps, buffer.num_rows, buffer.device) == (6, 3, torch.device("cpu"))
    assert bool(buffer.valid.all())


def test_create_takes_trees_and_whole_actions():
    """Nested observations, actions, memory and masks, each in its own type; memory only at sequence starts (LB12)."""
    buffer = RolloutBuffer.create(
        7,
        2,
        {"camera": torch.zeros(2, 4, 4, dtype=torch.uint8), "speed": torch.zeros(2, 1)},
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3)),
        state=(torch.zeros(2, 5), torch.zeros(2, 1, 5)),
        sequence_length=3,
        action_masks=torch.zeros(2, 4, dtype=torch.bool),
    )
    shapes = {path: (tuple(leaf.shape), leaf.dtype) for path, leaf in tree_items(buffer.obs)}
    assert shapes == {"camera": ((7, 2, 4, 4), torch.uint8), "speed": ((7, 2, 1), torch.float32)}
    assert [(tuple(leaf.shape), leaf.dtype) for leaf in buffer.actions] == [
        ((7, 2), torch.int64),
        ((7, 2, 3), torch.float32),
    ]
    assert [tuple(leaf.shape) for leaf in buffer.states] == [(3, 2, 5), (3, 2, 1, 5)]
    assert buffer.action_masks.shape == (7, 2, 4)
    assert bool(buffer.action_masks.all()), "every action is allowed until somebody says otherwise"


@pytest.mark.parametrize("rows", [1, 64, 4096])
def test_bytes_follow_a_formula_linear_in_rows(rows):
    """J34, N3: 240 steps of 96 floats and 12 actions; memory of 256 units every 24 steps, not every step."""
    buffer = RolloutBuffer.create(240, rows, 96, 12, "meta", state=torch.empty(rows, 256), sequence_length=24)
    per_step = 4 * (96 + 12) + 4 * 4 + 4 * 1  # floats; four numbers; four flags
    assert buffer.nbytes == rows * (240 * per_step + 10 * 256 * 4)


def test_context_that_is_the_same_at_every_step_is_counted_once():
    """J34: a view over time costs no memory."""
    buffer = small_buffer(num_steps=100)
    before = buffer.nbytes
    buffer.context = {"task": torch.zeros(1, 2, 50).expand(100, 2, 50)}
    assert buffer.nbytes - before == 2 * 50 * 4


def test_add_stores_steps_in_order_with_flags_where_they_belong():
    """J21, L5, L6, JB1, LB5: an action's end is stored with the action, and the next step starts an episode."""
    buffer = small_buffer()
    add_steps(buffer, 4, done=lambda t: torch.tensor([t == 1, False]))
    assert buffer.obs[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert buffer.rewards[:, 1].tolist() == [1, 2, 3, 4]
    assert buffer.terminated[:, 0].tolist() == [False, True, False, False]
    assert buffer.dones[:, 0].tolist() == [False, False, True, False]
    assert not bool(buffer.terminated[:, 1].any())
    with pytest.raises(RolloutError, match=r"num_steps=4.*full.*reset"):
        add_steps(buffer, 1)


def test_add_copies():
    """LB12, R9: environments reuse their arrays."""
    buffer = small_buffer(state=torch.zeros(2, 3), action_masks=torch.ones(2, 4, dtype=torch.bool))
    obs, reward, memory = np.ones((2, 3), np.float32), np.ones(2, np.float32), torch.ones(2, 3)
    mask = np.array([[True, False, True, True]] * 2)
    buffer.add(obs, np.zeros(2, np.int64), reward, torch.ones(2), torch.zeros(2), False, memory, action_mask=mask)
    obs[:], reward[:], mask[:] = 7, 7, False
    memory.fill_(7)
    assert buffer.obs[0].unique().tolist() == [1]
    assert buffer.rewards[0].tolist() == [1, 1]
    assert buffer.states[0].unique().tolist() == [1]
    assert buffer.action_masks[0].tolist() == [[True, False, True, True]] * 2


def test_add_takes_columns_of_one_and_numbers_for_all_rows():
    """LB4: `[B, 1]` is `[B]`, never `[B, B]`; anything else is refused with both shapes."""
    buffer = small_buffer(num_rows=3)
    column = torch.arange(3.0)[:, None]
    buffer.add(
        torch.zeros(3, 3), torch.zeros(3, 1), column, column, column, column > 1, truncated=torch.tensor([1, 0, 0])
    )
    assert buffer.rewards[0].tolist() == buffer.values[0].tolist() == [0, 1, 2]
    assert buffer.terminated[0].tolist() == [False, False, True]
    assert buffer.truncated[0].tolist() == [True, False, False]
    with pytest.raises(RolloutError, match=r"rewards of step 1 has shape \(2,\); it must be \(3,\)"):
        buffer.add(torch.zeros(3, 3), 0, torch.zeros(2), 0.0, 0.0, False)
    with pytest.raises(RolloutError, match=r"obs of step 1 is \{a\}, but the buffer was created for leaf"):
        buffer.add({"a": torch.zeros(3, 3)}, 0, 0.0, 0.0, 0.0, False)


def test_add_does_not_keep_the_graph_of_what_it_stores():
    """L8: a policy called without no_grad must not tie the rollout to its graph."""
    buffer = small_buffer()
    add_steps(buffer, 1)
    value = torch.ones(2, requires_grad=True) * 2
    buffer.add(torch.zeros(2, 3), 0, 0.0, value, value - 3, False)
    assert not buffer.values.requires_grad
    assert not buffer.logprobs.requires_grad


def test_memory_is_kept_only_where_it_enters_a_sequence():
    """L5, L6, LB12: the memory before steps 0 and 3 of sequences of 3."""
    buffer = small_buffer(num_steps=5, state=(torch.zeros(2, 1),), sequence_length=3)
    for t in range(5):
        buffer.add(torch.zeros(2, 3), 0, 0.0, 0.0, 0.0, False, (torch.full((2, 1), float(t)),))
    assert buffer.states[0][:, :, 0].tolist() == [[0, 0], [3, 3]]
    buffer.reset()
    with pytest.raises(RolloutError, match="hidden_state"):
        add_steps(buffer, 1)


def test_what_was_never_added_does_not_count():
    """J23: rollouts of any length fit a buffer that is long enough; the rest reaches no minibatch."""
    buffer = small_buffer(num_steps=10)
    add_steps(buffer, 10)
    buffer.reset()
    add_steps(buffer, 3)
    buffer.compute_gae(torch.tensor([30.0, 30.0]), torch.zeros(2), GAMMA, LAMBDA)
    (minibatch,) = buffer.get(batch_size=100)
    assert sorted(minibatch.rewards.flatten().tolist()) == [1, 1, 2, 2, 3, 3]
    whole = small_buffer(num_steps=3)
    add_steps(whole, 3)
    whole.compute_gae(torch.tensor([30.0, 30.0]), torch.zeros(2), GAMMA, LAMBDA)
    assert torch.equal(buffer.advantages[:3], whole.advantages)


def test_reset_starts_anew():
    """J21: nothing of the former rollout shows through, and its end is this one's beginning."""
    buffer = small_buffer(action_masks=torch.ones(2, 4, dtype=torch.bool))
    mask = torch.tensor([[True, False, False, False]] * 2)
    add_steps(
        buffer, 4, done=lambda t: torch.tensor([t == 3, False]), valid=torch.tensor([True, False]), action_mask=mask
    )
    buffer.compute_gae(torch.zeros(2), gamma=GAMMA, gae_lambda=LAMBDA)
    buffer.context, buffer.episodes, buffer.policy_version = {"task": torch.ones(4, 2)}, [Episode(1.0, 2, 0, 3)], 5
    buffer.reset()
    assert buffer.position == 0
    assert (buffer.advantages, buffer.returns, buffer.context, buffer.policy_version) == (None,) * 4
    assert buffer.episodes == []
    assert buffer.dones[0].tolist() == [True, False]
    add_steps(buffer, 4)
    assert bool(buffer.valid.all())
    assert bool(buffer.action_masks.all())
    assert buffer.terminated.any().item() is False


def test_compute_gae_of_a_collected_rollout_is_gae(collected):
    """E6, J22: in place, on the columns as they are, in raw units."""
    rollout, _ = collected(num_steps=40)
    rollout.compute_gae(gamma=GAMMA, gae_lambda=LAMBDA)
    flags = rollout.terminated, rollout.truncated
    columns = rollout.rewards, rollout.values, rollout.next_values
    advantages, returns = gae(*columns, *flags, gamma=GAMMA, gae_lambda=LAMBDA, valid=rollout.valid)
    assert torch.equal(rollout.advantages, advantages)
    assert torch.equal(rollout.returns, returns)


def literal_buffer():
    """Three steps of one row; an episode ends with step 1."""
    buffer = RolloutBuffer.create(3, 1, 1, 0)
    buffer.rewards[:, 0] = torch.tensor([1.0, 2.0, 3.0])
    buffer.values[:, 0] = torch.tensor([10.0, 20.0, 30.0])
    buffer.dones[:, 0] = torch.tensor([False, False, True])  # step 2 starts an episode
    return buffer


def test_compute_gae_by_hand_with_flags_at_the_start_of_steps():
    """E6, E8, JB1, JB2: gamma 0.5, lambda 0.5, the state after the last step is worth 40."""
    buffer = literal_buffer()
    buffer.compute_gae(torch.tensor([40.0]), torch.tensor([0.0]), 0.5, 0.5)
    # deltas: 1 + 10 - 10 = 1; 2 + 0 - 20 = -18; 3 + 20 - 30 = -7; chain: -7; -18; 1 - 18 / 4
    assert buffer.advantages[:, 0].tolist() == [-3.5, -18.0, -7.0]
    assert buffer.returns[:, 0].tolist() == [6.5, 2.0, 23.0]
    buffer.compute_gae(torch.tensor([40.0]), torch.tensor([1.0]), 0.5, 0.5)
    assert buffer.advantages[:, 0].tolist() == [-3.5, -18.0, -27.0], "next_done: the last step ended the episode"


def test_compute_gae_after_add_values_cut_states(collected):
    """EB3, LB6, R1: `final_value` is what a cut state is worth; a terminated one is worth nothing."""
    for truncated, expected in ((True, 2 + 0.5 * 8 - 20), (False, 2 - 20)):
        buffer = RolloutBuffer.create(3, 1, 1, 0)
        for t, over in enumerate([False, True, False]):
            buffer.add(0.0, 0, t + 1.0, 10.0 * (t + 1), 0.0, over, truncated=over and truncated, final_value=8.0)
        buffer.compute_gae(torch.tensor([40.0]), gamma=0.5, gae_lambda=0.5)
        assert buffer.advantages[:, 0].tolist() == [1 + expected / 4, expected, -7.0]


def test_advantages_of_a_hand_filled_buffer_need_the_value_after_it():
    """JB2: the state after the last step is none of those stored."""
    buffer = small_buffer(num_steps=2)
    add_steps(buffer, 2)
    with pytest.raises(RolloutError, match=r"Step 1 is the last.*next_value"):
        buffer.compute_gae()
    buffer.reset()
    add_steps(buffer, 2, done=lambda t: t == 1)
    buffer.compute_gae(gamma=1.0, gae_lambda=1.0)
    assert buffer.returns[:, 0].tolist() == [3.0, 2.0]


def test_get_returns_the_dict_or_iterates_over_minibatches(identifiable):
    """J24, L6: ready for training; a batch is a number of sequences."""
    rollout = identifiable(12, 2, 4)
    assert set(rollout.get()) == set(rollout.to_dict())
    minibatches = list(rollout.get(batch_size=4, bptt_length=4))
    assert [minibatch.values.shape for minibatch in minibatches] == [(4, 3), (4, 3)]
    seen = sorted(where for minibatch in minibatches for where in minibatch.values.flatten().tolist())
    assert seen == sorted(rollout.values.flatten().tolist())
    with pytest.raises(RolloutError, match=r"bptt_length=6.*sequence_length=4"):
        rollout.get(batch_size=4, bptt_length=6)
    rollout.advantages = None
    with pytest.raises(RolloutError, match="compute_gae"):
        rollout.get(batch_size=4)


def test_without_memory_sequences_may_have_any_length(identifiable):
    """L6: bptt_length cuts what has no memory as it likes."""
    rollout = identifiable(12, 2, 1)
    rollout.states = ()
    assert [minibatch.values.shape for minibatch in rollout.get(batch_size=4, bptt_length=6)] == [(6, 4)]


def test_dict_has_the_known_names_and_one_entry_per_transition(identifiable):
    """J30, C24: `len(rollout_data["observations"]) == n_steps` for one environment."""
    data = identifiable(6, 1).to_dict()
    assert {"observations", "actions", "rewards", "values", "log_probs", "dones", "truncated", "context"} <= set(data)
    assert len(data["rewards"]) == len(data["observations"]["where"]) == 6
    many = identifiable(6, 3).to_dict()
    assert many["values"].tolist()[:4] == [0, 1, 2, 100], "rows vary fastest"


def test_dict_and_back_is_the_same_rollout(identifiable):
    """J24, J12: structure, types, memory, masks, context, flags, version and episodes."""
    valid, starts, terminated, truncated = torch.rand(4, 10, 3, generator=torch.Generator().manual_seed(0)) < 0.4
    rollout = identifiable(10, 3, 4, valid, starts)
    rollout.terminated, rollout.truncated = terminated, truncated
    rollout.episodes, rollout.policy_version = [Episode(1.5, 3, 2, 7, {"won": True, "level": "a"})], 2**60 + 1
    back = RolloutBuffer.from_dict(rollout.to_dict())
    assert (back.num_steps, back.num_rows, back.sequence_length) == (10, 3, 4)
    assert back.episodes == rollout.episodes
    assert back.policy_version == rollout.policy_version
    assert tree_map(lambda leaf: leaf.shape, back.states) == tree_map(lambda leaf: leaf.shape, rollout.states)
    first, second = columns_of(rollout), columns_of(back)
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        assert torch.equal(leaf, second[path]), path
        assert leaf.dtype == second[path].dtype, path


def test_a_plain_torch_load_reads_the_dict(identifiable, tmp_path):
    """J19, JB15: nothing in it but tensors and plain containers."""
    rollout = identifiable(5, 2, 2)
    rollout.episodes = [Episode(1.5, 3, 1, 4, {"won": True})]
    torch.save(rollout.to_dict(), tmp_path / "rollout_0.pt")
    data = torch.load(tmp_path / "rollout_0.pt")
    first, second = columns_of(rollout), columns_of(RolloutBuffer.from_dict(data))
    assert all(torch.equal(first[path], second[path]) for path in first)
    assert data["episodes"] == [{"ret": 1.5, "length": 3, "row": 1, "step": 4, "info": {"won": True}}]


def foreign(**changes):
    """Return what somebody else's trainer may have written: numpy, doubles, columns of one, flags as numbers."""
    data = {
        "observations": np.arange(8.0).reshape(4, 2),
        "actions": np.arange(4),
        "rewards": np.arange(4.0)[:, None],
        "values": [10.0, 20.0, 30.0, 40.0],
        "log_probs": torch.zeros(4, 1),
        "dones": np.array([0.0, 1.0, 0.0, 0.0]),
    }
    return {name: value for name, value in (data | changes).items() if value is not None}


def test_columns_of_others_are_understood():
    """J7, J26, JB15, C24: without shape, the steps of one row; `dones` are ends of the step itself."""
    rollout = RolloutBuffer.from_dict(foreign())
    assert (rollout.num_steps, rollout.num_rows) == (4, 1)
    for name in ("rewards", "values", "logprobs", "next_values"):
        column = getattr(rollout, name)
        assert (column.shape, column.dtype) == ((4, 1), torch.float32), name
    assert rollout.terminated.flatten().tolist() == [False, True, False, False]
    assert rollout.episode_starts.flatten().tolist() == [True, False, True, False]
    assert rollout.next_values.flatten().tolist() == [20, 30, 40, 40]
    rollout.compute_gae(gamma=1.0, gae_lambda=0.0)
    assert rollout.advantages.flatten().tolist() == [10.0, -19.0, 12.0, 3.0]


def test_a_cut_never_takes_the_value_of_the_next_episode():
    """EB3, MB5: the value behind a cut is unknown here; that of the state before it stands for it."""
    rollout = RolloutBuffer.from_dict(foreign(truncated=np.array([0, 1, 0, 0])))
    assert rollout.terminated.any().item() is False
    assert rollout.next_values.flatten().tolist() == [20, 20, 40, 40]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_probs": None, "values": None}, r"lacks log_probs, values; it has actions, dones"),
        ({"values": [1.0, 2.0]}, r"values has shape \(2,\), but its first dimension must be 4"),
        ({"shape": [3, 2]}, r"shape=\[3, 2\] does not fit 4 rewards"),
        ({"values": np.zeros((4, 2))}, r"values has \(2,\) numbers per transition; there must be one"),
        ({"observations": {"a": np.zeros(3)}}, r"observations has shape \(3,\)"),
        ({"dones": np.zeros(3)}, r"dones has shape \(3,\)"),
    ],
)
def test_dicts_that_cannot_be_meant_are_refused(changes, message):
    """J38: value, rule, way out."""
    with pytest.raises(RolloutError, match=message):
        RolloutBuffer.from_dict(foreign(**changes))


def test_an_empty_dict_of_columns_is_an_empty_rollout():
    """J37."""
    empty = {name: np.asarray(value)[:0] for name, value in foreign().items()}
    rollout = RolloutBuffer.from_dict(empty)
    rollout.compute_gae()
    assert rollout.advantages.shape == (0, 1)
    assert math.prod(rollout.valid.shape) == 0
    assert list(rollout.get(batch_size=4)) == []


def test_a_rollout_stays_itself_where_it_already_is(identifiable):
    """J26, J39."""
    rollout = identifiable(4, 2, 2)
    assert rollout.to("cpu") is rollout
    moved = rollout.to("meta")
    assert {leaf.device.type for name in TREES for leaf in tree_leaves(getattr(moved, name))} == {"meta"}
    assert (moved.sequence_length, moved.episodes) == (2, [])


def test_collected_memory_lies_at_sequence_starts(collected):
    """LB12: what the collector stores is what entered each sequence."""
    rollout, policy = collected(num_steps=20, bptt_length=8, memory="gru")
    assert rollout.sequence_length == 8
    assert rollout.states.shape[:2] == (3, 4)
    state = policy.initial_state(4)
    with torch.no_grad():
        for t in range(20):
            if t % 8 == 0:
                torch.testing.assert_close(rollout.states[t // 8], state, rtol=0, atol=1e-6)
            state = policy(rollout.obs[t : t + 1], state, rollout.episode_starts[t : t + 1]).state

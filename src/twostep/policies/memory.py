"""Memory: GRU and LSTM over `[T, B]` with forgetting inside, as one node of the autograd graph per layer.

Shapes: K towers (1 shared, or actor and critic), T steps, B rows, H units. Each step forgets where `keep` is 0, then
updates. Everything that does not depend on the previous step is one product over all steps: the input projection before
the loop, the weight gradients after it. What stays in the loop is the recurrent product and a few elementwise
operations. What those products read or write lies in memory towers first, `[K, T, B, ...]`, so that nothing is copied
for them; what the recurrent product writes lies steps first, so that it is one call for all towers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from twostep.policies.towers import first_order, orthogonal
from twostep.tree import Tree


class _GruScan(torch.autograd.Function):
    """Gates are ordered reset, update, candidate, as in the usual definition.

    The candidate goes through a sigmoid, too: `tanh(x) = 2 sigmoid(2 x) - 1`, and its weights and inputs are doubled
    before the loop.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, hidden: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        steps, towers, rows, units = *projected.shape[:3], weight.shape[1]
        outputs, kept, candidates = (projected.new_empty(towers, steps, rows, units) for _ in range(3))
        recurrent = projected.new_empty(steps, towers, rows, units)
        gates = projected.new_empty(steps, towers, rows, 2 * units)
        gate_weight, new_weight = weight[..., : 2 * units].contiguous(), 2 * weight[..., 2 * units :]
        gate_inputs = projected[..., : 2 * units] + bias[..., : 2 * units]
        new_inputs, new_bias = 2 * projected[..., 2 * units :], 2 * bias[..., 2 * units :]
        keeps, gate_inputs, new_inputs = keep.unbind(), gate_inputs.unbind(), new_inputs.unbind()
        for t, (kept_t, gates_t, recurrent_t, candidate_t, output_t) in enumerate(
            zip(
                kept.unbind(1), gates.unbind(), recurrent.unbind(), candidates.unbind(1), outputs.unbind(1), strict=True
            )
        ):
            torch.mul(hidden, keeps[t], out=kept_t)
            torch.baddbmm(gate_inputs[t], kept_t, gate_weight, out=gates_t).sigmoid_()
            torch.baddbmm(new_bias, kept_t, new_weight, out=recurrent_t)
            reset, update = gates_t.chunk(2, dim=-1)
            torch.addcmul(new_inputs[t], reset, recurrent_t, out=candidate_t).sigmoid_().mul_(2).sub_(1)
            hidden = torch.lerp(candidate_t, kept_t, update, out=output_t)
        ctx.save_for_backward(keep, weight, kept, recurrent, gates, candidates)
        return outputs

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d_outputs,) = gradients
        keep, weight, kept, recurrent, gates, candidates = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        towers, steps, rows, units = kept.shape
        reset, update = gates.transpose(0, 1).chunk(2, dim=-1)
        to_update = (kept - candidates).mul_(update).mul_(1 - update).unbind(1)
        to_candidate = (1 - candidates.square()).mul_(1 - update).unbind(1)
        to_reset = (1 - reset).mul_(reset).mul_(recurrent.transpose(0, 1)).mul_(0.5).unbind(1)
        resets, updates, keeps, d_outputs_at = reset.unbind(1), update.unbind(1), keep.unbind(), d_outputs.unbind(1)
        d_recurrent = kept.new_empty(towers, steps, rows, 3 * units)
        d_candidate = torch.empty_like(kept)
        d_resets, d_updates, d_rests = (part.unbind(1) for part in d_recurrent.chunk(3, dim=-1))
        d_recurrents, d_candidates = d_recurrent.unbind(1), d_candidate.unbind(1)
        transposed = weight.transpose(1, 2)
        d_hidden = kept.new_zeros(towers, rows, units)
        for t in range(steps - 1, -1, -1):
            d_hidden = d_hidden + d_outputs_at[t]
            torch.mul(d_hidden, to_candidate[t], out=d_candidates[t])
            torch.mul(d_candidates[t], to_reset[t], out=d_resets[t])
            torch.mul(d_hidden, to_update[t], out=d_updates[t])
            torch.mul(d_candidates[t], resets[t], out=d_rests[t])
            d_hidden = torch.baddbmm(d_hidden * updates[t], d_recurrents[t], transposed).mul_(keeps[t])
        d_weight, d_bias = _weight_gradients(kept, d_recurrent)
        d_recurrent[..., 2 * units :] = d_candidate  # from here on it is the gradient of what was projected
        return d_recurrent.transpose(0, 1), d_hidden, None, d_weight, d_bias


class _LstmScan(torch.autograd.Function):
    """Gates are ordered output, input, forget, candidate: the three cell terms are neighbours.

    All four go through one sigmoid, the candidate at twice its argument: `tanh(x) = 2 sigmoid(2 x) - 1`.
    """

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, hidden: Tensor, cell: Tensor, keep: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        steps, towers, rows, units = *projected.shape[:3], weight.shape[1]
        states, kept = (projected.new_empty(2, towers, steps, rows, units) for _ in range(2))
        squashed = projected.new_empty(steps, towers, rows, units)
        gates = projected.new_empty(projected.shape)
        doubled = torch.ones(4 * units, dtype=weight.dtype, device=weight.device)
        doubled[3 * units :] = 2
        inputs, weight = (projected * doubled).unbind(), weight * doubled
        keeps, kept_at, states_at = keep.unbind(), kept.unbind(2), states.unbind(2)
        state = torch.stack((hidden, cell))
        for t, (gates_t, squashed_t) in enumerate(zip(gates.unbind(), squashed.unbind(), strict=True)):
            kept_hidden, kept_cell = torch.mul(state, keeps[t], out=kept_at[t]).unbind()
            output, enter, forget, candidate = (
                torch.baddbmm(inputs[t], kept_hidden, weight, out=gates_t).sigmoid_().chunk(4, dim=-1)
            )
            state = states_at[t]
            hidden, cell = state.unbind()
            torch.mul(forget, kept_cell, out=cell).sub_(enter).addcmul_(enter, candidate, value=2)
            torch.mul(cell, 2, out=squashed_t).sigmoid_()
            torch.mul(output, squashed_t, out=hidden).mul_(2).sub_(output)
        ctx.save_for_backward(keep, weight, doubled, kept, gates, squashed)
        return states[0], states[1, :, -1].clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_outputs, d_last_cell = gradients
        keep, weight, doubled, kept, gates, squashed = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        kept_hiddens, kept_cells = kept.unbind()
        steps, towers, rows, units = squashed.shape
        output, enter, forget, candidate = gates.chunk(4, dim=-1)
        tanh_cell = 2 * squashed - 1
        to_cell = (1 - tanh_cell.square()).mul_(output).unbind()
        to_output = (1 - output).mul_(output).mul_(tanh_cell).unbind()
        to_gates = squashed.new_empty(steps, towers, rows, 3, units)
        torch.mul(enter * (1 - enter), 2 * candidate - 1, out=to_gates[..., 0, :])
        torch.mul(forget * (1 - forget), kept_cells.transpose(0, 1), out=to_gates[..., 1, :])
        torch.mul(candidate * (1 - candidate), 4 * enter, out=to_gates[..., 2, :])
        onward, to_gates_at, keeps, d_outputs_at = (
            (forget * keep).unbind(),
            to_gates.unbind(),
            keep.unbind(),
            d_outputs.unbind(1),
        )
        d_gates = gates.new_empty(towers, steps, rows, 4 * units)
        d_output_gates = d_gates[..., :units].unbind(1)
        d_cell_gates = d_gates[..., units:].view(towers, steps, rows, 3, units).unbind(1)
        d_gates_at, transposed = d_gates.unbind(1), (weight / doubled).transpose(1, 2)
        d_hidden, d_cell = d_outputs_at[-1], d_last_cell
        for t in range(steps - 1, -1, -1):
            d_cell = torch.addcmul(d_cell, d_hidden, to_cell[t])
            torch.mul(d_hidden, to_output[t], out=d_output_gates[t])
            torch.mul(d_cell.unsqueeze(-2), to_gates_at[t], out=d_cell_gates[t])
            d_cell = d_cell * onward[t]
            d_kept = torch.bmm(d_gates_at[t], transposed)
            d_hidden = torch.addcmul(d_outputs_at[t - 1], d_kept, keeps[t]) if t else d_kept * keeps[t]
        d_weight, _ = _weight_gradients(kept_hiddens, d_gates)
        return d_gates.transpose(0, 1), d_hidden, d_cell, None, d_weight


def _weight_gradients(kept: Tensor, d_recurrent: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over all steps and rows at once, from `[K, T, B, ...]`: weights `[K, H, G]` and bias `[K, 1, G]`."""
    inputs, d_recurrent = kept.flatten(1, 2), d_recurrent.flatten(1, 2)
    return torch.bmm(inputs.transpose(1, 2), d_recurrent), d_recurrent.sum(dim=1, keepdim=True)


class _Recurrent(nn.Module):
    """What GRU and LSTM share: layers of input projections and recurrent weights, orthogonal at the start."""

    gates: int

    def __init__(self, towers: int, in_features: int, units: int, layers: int) -> None:
        super().__init__()
        self.towers, self.units, self.layers = towers, units, layers
        sizes = [in_features, *[units] * (layers - 1)]
        width = self.gates * units
        self.inputs = nn.ParameterList(nn.Parameter(orthogonal(towers, size, width, gain=1.0)) for size in sizes)
        self.input_biases = nn.ParameterList(nn.Parameter(torch.zeros(towers, 1, width)) for _ in range(layers))
        self.weights = nn.ParameterList(nn.Parameter(self._orthogonal()) for _ in range(layers))

    def _orthogonal(self) -> Tensor:
        blocks = torch.empty(self.towers, self.gates, self.units, self.units)
        for block in blocks.flatten(0, 1):
            nn.init.orthogonal_(block)
        return blocks.transpose(1, 2).flatten(2, 3).contiguous()  # [K, H, gates * H]

    def _zeros(self, batch: int) -> Tensor:
        return self.weights[0].new_zeros(batch, self.layers, self.towers, self.units, dtype=torch.float32)

    def _project(self, layer: int, features: Tensor) -> Tensor:
        """Project `[K, T, B, F]` for all steps in one product; returns `[T, K, B, gates * H]`."""
        steps, rows = features.shape[1:3]
        projected = torch.baddbmm(self.input_biases[layer], features.flatten(1, 2), self.inputs[layer])
        return projected.view(self.towers, steps, rows, -1).transpose(0, 1)


class Gru(_Recurrent):
    """Gated recurrent units; the memory of a row is `[layers, K, H]`."""

    gates = 3

    def __init__(self, towers: int, in_features: int, units: int, layers: int = 1) -> None:
        super().__init__(towers, in_features, units, layers)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(towers, 1, 3 * units)) for _ in range(layers))

    def initial_state(self, batch: int) -> Tree:
        """Return the memory of rows that have seen nothing."""
        return self._zeros(batch)

    def forward(self, features: Tensor, state: Tree, keep: Tensor) -> tuple[Tensor, Tree]:
        """Map features `[K, T, B, F]` and `keep` `[T, 1, B, 1]` to `[K, T, B, H]` and the memory after them."""
        hiddens: list[Tensor] = []
        for layer, hidden in enumerate(state.permute(1, 2, 0, 3)):  # layers of [K, B, H]
            projected = self._project(layer, features)
            weight, bias = self.weights[layer], self.biases[layer]
            features = cast("Tensor", _GruScan.apply(projected, hidden, keep, weight, bias))
            hiddens.append(features[:, -1])
        return features, _rows_first(hiddens)


class Lstm(_Recurrent):
    """Long short-term memory; the memory of a row is a pair of `[layers, K, H]`: hidden and cell."""

    gates = 4

    def initial_state(self, batch: int) -> Tree:
        """Return the memory of rows that have seen nothing."""
        return self._zeros(batch), self._zeros(batch)

    def forward(self, features: Tensor, state: Tree, keep: Tensor) -> tuple[Tensor, Tree]:
        """Map features `[K, T, B, F]` and `keep` `[T, 1, B, 1]` to `[K, T, B, H]` and the memory after them."""
        hiddens: list[Tensor] = []
        cells: list[Tensor] = []
        pairs = zip(*(part.permute(1, 2, 0, 3) for part in state), strict=True)
        for layer, (hidden, cell) in enumerate(pairs):
            projected = self._project(layer, features)
            weight = self.weights[layer]
            features, last = cast("tuple[Tensor, Tensor]", _LstmScan.apply(projected, hidden, cell, keep, weight))
            hiddens.append(features[:, -1])
            cells.append(last)
        return features, (_rows_first(hiddens), _rows_first(cells))


def _rows_first(layers: list[Tensor]) -> Tensor:
    """Join layers of `[K, B, H]` to `[B, layers, K, H]`."""
    return torch.stack(layers).permute(2, 0, 1, 3)


MEMORIES: dict[str, type[Gru] | type[Lstm]] = {"gru": Gru, "lstm": Lstm}

"""Memory: GRU and LSTM over `[T, B]` with forgetting inside, as one node of the autograd graph per layer.

Shapes: K towers (1 shared, or actor and critic), T steps, B rows, H units. Each step forgets where `keep` is 0, then
updates. Everything that does not depend on the previous step is one product over all steps: the input projection before
the loop, the weight gradients after it. What stays in the loop is the recurrent product and a few elementwise
operations.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from twostep.policies.towers import orthogonal, tanh_
from twostep.tree import Tree


class _GruScan(torch.autograd.Function):
    """Gates are ordered reset, update, candidate, as in the usual definition."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, hidden: Tensor, keep: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        steps, towers, rows, units = *projected.shape[:3], weight.shape[1]
        outputs = projected.new_empty(steps, towers, rows, units)
        kept = torch.empty_like(outputs)
        recurrent = projected.new_empty(projected.shape)
        gates = projected.new_empty(steps, towers, rows, 2 * units)
        candidates = torch.empty_like(outputs)
        for t in range(steps):
            torch.mul(hidden, keep[t], out=kept[t])
            torch.baddbmm(bias, kept[t], weight, out=recurrent[t])
            torch.add(projected[t, ..., : 2 * units], recurrent[t, ..., : 2 * units], out=gates[t]).sigmoid_()
            reset, update = gates[t].chunk(2, dim=-1)
            candidate = projected[t, ..., 2 * units :]
            torch.addcmul(candidate, reset, recurrent[t, ..., 2 * units :], out=candidates[t])
            hidden = torch.lerp(tanh_(candidates[t]), kept[t], update, out=outputs[t])
        ctx.save_for_backward(keep, weight, kept, recurrent[..., 2 * units :], gates, candidates)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d_outputs,) = gradients
        keep, weight, kept, recurrent, gates, candidates = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        steps, towers, rows, units = kept.shape
        reset, update = gates.chunk(2, dim=-1)
        to_update = (kept - candidates).mul_(update).mul_(1 - update)
        to_candidate = (1 - candidates.square()).mul_(1 - update)
        to_reset = (1 - reset).mul_(reset).mul_(recurrent)
        d_recurrent = kept.new_empty(steps, towers, rows, 3 * units)
        d_candidate = torch.empty_like(kept)
        transposed = weight.transpose(1, 2)
        d_hidden = torch.zeros_like(kept[0])
        for t in range(steps - 1, -1, -1):
            d_hidden = d_hidden + d_outputs[t]
            d_reset, d_update, d_rest = d_recurrent[t].chunk(3, dim=-1)
            torch.mul(d_hidden, to_candidate[t], out=d_candidate[t])
            torch.mul(d_candidate[t], to_reset[t], out=d_reset)
            torch.mul(d_hidden, to_update[t], out=d_update)
            torch.mul(d_candidate[t], reset[t], out=d_rest)
            d_hidden = torch.baddbmm(d_hidden * update[t], d_recurrent[t], transposed).mul_(keep[t])
        d_projected = torch.cat((d_recurrent[..., : 2 * units], d_candidate), dim=-1)
        d_weight, d_bias = _weight_gradients(kept, d_recurrent)
        return d_projected, d_hidden, None, d_weight, d_bias


class _LstmScan(torch.autograd.Function):
    """Gates are ordered output, input, forget, candidate: the sigmoids are neighbours, and so are the cell's terms."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, hidden: Tensor, cell: Tensor, keep: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        steps, towers, rows, units = *projected.shape[:3], weight.shape[1]
        outputs = projected.new_empty(steps, towers, rows, units)
        kept, kept_cells, cells, squashed = (torch.empty_like(outputs) for _ in range(4))
        gates = projected.new_empty(projected.shape)
        for t in range(steps):
            torch.mul(hidden, keep[t], out=kept[t])
            torch.mul(cell, keep[t], out=kept_cells[t])
            torch.baddbmm(projected[t], kept[t], weight, out=gates[t])
            gates[t, ..., : 3 * units].sigmoid_()
            tanh_(gates[t, ..., 3 * units :])
            output, enter, forget, candidate = gates[t].chunk(4, dim=-1)
            cell = torch.mul(forget, kept_cells[t], out=cells[t]).addcmul_(enter, candidate)
            squashed[t] = cell
            hidden = torch.mul(output, tanh_(squashed[t]), out=outputs[t])
        ctx.save_for_backward(keep, weight, kept, kept_cells, gates, squashed)
        return outputs, cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_outputs, d_last_cell = gradients
        keep, weight, kept, kept_cells, gates, squashed = cast("tuple[Tensor, ...]", ctx.saved_tensors)
        steps, towers, rows, units = kept.shape
        output, enter, forget, candidate = gates.chunk(4, dim=-1)
        to_cell = (1 - squashed.square()).mul_(output)
        to_output = (1 - output).mul_(output).mul_(squashed)
        to_gates = kept.new_empty(steps, towers, rows, 3, units)
        torch.mul(enter * (1 - enter), candidate, out=to_gates[..., 0, :])
        torch.mul(forget * (1 - forget), kept_cells, out=to_gates[..., 1, :])
        torch.mul(1 - candidate.square(), enter, out=to_gates[..., 2, :])
        d_gates = torch.empty_like(gates)
        d_cell_gates = d_gates[..., units:].unflatten(-1, (3, units))
        transposed = weight.transpose(1, 2)
        d_hidden, d_cell = torch.zeros_like(kept[0]), d_last_cell
        for t in range(steps - 1, -1, -1):
            d_hidden = d_hidden + d_outputs[t]
            d_cell = torch.addcmul(d_cell, d_hidden, to_cell[t])
            torch.mul(d_hidden, to_output[t], out=d_gates[t, ..., :units])
            torch.mul(d_cell.unsqueeze(-2), to_gates[t], out=d_cell_gates[t])
            d_hidden = torch.bmm(d_gates[t], transposed).mul_(keep[t])
            d_cell = (d_cell * forget[t]).mul_(keep[t])
        d_weight, _ = _weight_gradients(kept, d_gates)
        return d_gates, d_hidden, d_cell, None, d_weight


def _weight_gradients(kept: Tensor, d_recurrent: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over all steps and rows at once: weights `[K, H, G]` and bias `[K, 1, G]`."""
    inputs = kept.transpose(0, 1).flatten(1, 2)  # [K, T * B, H]
    d_recurrent = d_recurrent.transpose(0, 1).flatten(1, 2)  # [K, T * B, G]
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
            outputs = cast("Tensor", _GruScan.apply(projected, hidden, keep, self.weights[layer], self.biases[layer]))
            hiddens.append(outputs[-1])
            features = outputs.transpose(0, 1)
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
            outputs, last = cast("tuple[Tensor, Tensor]", _LstmScan.apply(projected, hidden, cell, keep, weight))
            hiddens.append(outputs[-1])
            cells.append(last)
            features = outputs.transpose(0, 1)
        return features, (_rows_first(hiddens), _rows_first(cells))


def _rows_first(layers: list[Tensor]) -> Tensor:
    """Join layers of `[K, B, H]` to `[B, layers, K, H]`."""
    return torch.stack(layers).permute(2, 0, 1, 3)


MEMORIES: dict[str, type[Gru] | type[Lstm]] = {"gru": Gru, "lstm": Lstm}

"""Every operation that is written in C gives what torch gives, for all kinds of shapes, views and special numbers."""

from __future__ import annotations

import math
import threading
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.native import lowered, machine_code

NAN, INF = math.nan, math.inf


def written(function, *examples):
    inputs = [example.clone() for example in examples]
    return lowered(lambda: function(*inputs), inputs)


def compiled(function, *examples):
    program = written(function, *examples)
    assert program is not None, "no kernel is written for this"
    code = machine_code(program)
    assert code is not None
    return code


def agree(function, *inputs, rtol=2e-6, atol=1e-6):
    found = compiled(function, *inputs)(*inputs)
    expected = function(*[tensor.clone() for tensor in inputs])
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)


def one(function, x):
    return [function(x)]


SPECIAL = torch.tensor([
    0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 0.624, 0.626, 5.0, -5.0, 20.0, -20.0, 88.0, -87.0, 100.0, -200.0,
    1e-30, -1e-30, 1e30, -1e30, INF, -INF, NAN,
])  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [torch.exp, torch.tanh, torch.sigmoid, torch.expm1, torch.relu, torch.nn.functional.elu, torch.abs, torch.neg,
     torch.square, torch.reciprocal, torch.nn.functional.silu, lambda x: x.clamp(-1, 1), lambda x: x.clamp_min(0.5),
     lambda x: torch.where(x > 0, x, 2.0), lambda x: torch.minimum(x, x.neg()), lambda x: torch.maximum(x, x.neg()),
     lambda x: 3 - 2 * x, lambda x: x.pow(2), lambda x: x.masked_fill(x > 1, 7.0), lambda x: x / 3,
     torch.nn.functional.softplus,
     lambda x: torch.logaddexp(x, x * 0.5), torch.sign],
)  # fmt: skip
def test_functions_of_one_number(function):
    """Infinity and NaN go through as in torch, and other numbers to the last digits."""
    agree(lambda x: [function(x)], SPECIAL)


@pytest.mark.parametrize("function", [torch.lgamma, torch.digamma, torch.log1p, torch.log, torch.nn.functional.gelu])
def test_functions_of_probability(function):
    agree(partial(one, function), torch.tensor([1e-3, 0.1, 0.5, 1.0, 1.46, 2.0, 7.5, 9.9, 30.0, 1e3]), rtol=5e-6)


@pytest.mark.parametrize(
    "function",
    [torch.nn.functional.softplus, torch.nn.functional.gelu, torch.nn.functional.silu, torch.nn.functional.elu,
     torch.relu, torch.tanh, torch.sigmoid, torch.lgamma, torch.digamma, torch.exp, torch.log1p, torch.sqrt],
)  # fmt: skip
def test_gradients(function):
    """What autograd does is written down like everything else."""

    def gradient(x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            return list(torch.autograd.grad(function(x).square().sum(), x))

    agree(gradient, torch.tensor([0.1, 0.5, 1.0, 2.0, 5.0, 9.0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [torch.log, torch.sqrt])
def test_functions_of_positive_numbers(function):
    agree(
        lambda x: [function(x)],
        torch.tensor([0.0, 1e-30, 1e-10, 0.5, 0.7, 0.7072, 1.0, 2.0, 1e10, 1e38, INF, NAN, -1.0]),
    )


def test_functions_are_exact_to_the_last_digits_everywhere():
    """A million numbers against double precision."""
    edges = [
        torch.linspace(edge - 0.01, edge + 0.01, 100_000) for edge in (88.7228, -88.7228, -87.33, 44.3614, -44.3614)
    ]
    x = torch.cat([torch.linspace(-90, 90, 1_000_000), *edges])
    for function in (torch.exp, torch.tanh, torch.sigmoid):
        (found,) = compiled(partial(one, function), x)(x)
        expected = function(x.double())
        assert not found.isnan().any(), function
        normal = (expected > -2) & (expected.abs() > 1e-37) & (expected < 3.4e38)
        error = ((found.double() - expected).abs() / expected.abs())[normal].max()
        assert error < 4e-7, function
    x = torch.logspace(-37, 37, 1_000_000)
    (found,) = compiled(lambda x: [x.log()], x)(x)
    assert ((found.double() - x.double().log()).abs() / x.double().log().abs().clamp_min(0.1)).max() < 4e-7


sizes = st.integers(1, 40)


@settings(deadline=None, max_examples=12)
@given(batch=st.integers(1, 3), rows=sizes, inner=sizes, columns=st.integers(1, 90), turned=st.booleans(), seed=sizes)
def test_products_of_every_shape(batch, rows, inner, columns, turned, seed):
    """Against double precision, with rows of either matrix in memory the one or the other way round."""
    torch.manual_seed(seed)
    a = torch.randn(batch, rows, inner)
    b = torch.randn(batch, columns, inner) if turned else torch.randn(batch, inner, columns)
    bias = torch.randn(batch, 1, columns)

    def function(a, b, bias):
        b = b.transpose(1, 2) if turned else b
        return [
            torch.bmm(a, b),
            torch.baddbmm(bias, a, b, beta=2, alpha=3),
            torch.bmm(b.transpose(1, 2), a.transpose(1, 2)),
            torch.addmm(bias[0, 0], a[0], b[0]),
        ]

    found = compiled(function, a, b, bias)(a, b, bias)
    for one, other in zip(found, function(a.double(), b.double(), bias.double()), strict=True):
        assert (one.double() - other).abs().max() <= 1e-5 * max(1.0, float(other.abs().max()))


@settings(deadline=None, max_examples=8)
@given(batch=st.integers(1, 3), rows=sizes, inner=st.integers(1, 9), columns=st.integers(1, 90), seed=sizes)
def test_what_follows_a_product_is_done_on_the_way(batch, rows, inner, columns, seed):
    """In place, with broadcast and transposed operands, and where it also writes what others read."""
    torch.manual_seed(seed)
    inputs = torch.randn(batch, rows, inner), torch.randn(batch, inner, columns), torch.randn(batch, columns, rows)

    def function(a, b, c):
        y = torch.bmm(a, b).sigmoid_()
        z = y * 2 - c.transpose(1, 2)
        w = z * a[:, :1, :1] + y[0, 0]
        again = torch.bmm(z, b.transpose(1, 2)).add_(1).mul_(a)
        a2 = a * 1
        a2.mul_(torch.bmm(a2, torch.bmm(b, b.transpose(1, 2))))
        return [y, w, again, a2, w.sum(1)]

    agree(function, *inputs, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=10)
@given(a=st.integers(1, 5), b=st.integers(1, 6), c=st.integers(1, 20), seed=sizes)
def test_sums_and_picking(a, b, c, seed):
    torch.manual_seed(seed)
    x, index = torch.randn(a, b, c), torch.randint(0, c, (a, b, 1))

    def function(x, index):
        y = x.transpose(0, 2)
        spread = torch.zeros_like(x).scatter_add(-1, index, x[..., :1])
        return [
            x.sum(), x.sum(0), x.sum(1, keepdim=True), x.sum(-1), y.sum((0, 2)), x.max(), x.amax(-1), x.argmax(-1),
            x.log_softmax(-1), x.gather(-1, index), spread, torch.linalg.vector_norm(x), x.mean(-1),
        ]  # fmt: skip

    agree(function, x, index, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 5)])
def test_rows_of_a_table(shape):
    """What is not in the table is no number, instead of memory of something else."""
    table, index = torch.randn(4, 4), torch.randint(-3, 4, shape)
    agree(lambda table, index: [table[index], table[:, index], index[:, index * 0]], table, index)
    code = compiled(lambda table, index: [table[index], table[:1].gather(0, index.reshape(-1, 1) * 0)], table, index)
    for outside in (4, -9, 2**40):
        row, _ = code(table, torch.full(shape, outside))
        assert row.isnan().all()


@pytest.mark.parametrize("pad", [(1, 2), (0, 3, 2, 0), (-1, 1), (0, 0, -1, -1)])
def test_padding(pad):
    agree(lambda x: [torch.nn.functional.pad(x, pad, value=7.0)], torch.randn(3, 4, 5))


def test_cross_entropy_and_its_gradient():
    def function(x, target):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss = torch.nn.functional.binary_cross_entropy_with_logits(x, target, reduction="none")
            return [loss.detach(), *torch.autograd.grad(loss.sum(), x)]

    agree(function, torch.linspace(-30, 30, 50), (torch.arange(50) % 2).float())


def test_the_gradient_of_log_softmax():
    logits, direction = torch.randn(7, 5), torch.randn(7, 5)

    def function(logits, direction):
        return [torch.ops.aten._log_softmax_backward_data(direction, logits.log_softmax(-1), -1, torch.float32)]

    agree(function, logits, direction)


def test_types_mix_as_in_torch():
    """Whole numbers and truth values, among themselves and with floats."""
    x, whole = torch.tensor([0.5, 256.0, -1.5, 0.0]), torch.tensor([5, 2**24 + 1, -7, 0])

    def function(x, whole):
        truth = x > 0
        return [
            x.bool().float(), truth + truth, whole / 2, whole * 3 + 1, whole == 2**24, whole + x, whole.float() - 1,
            torch.where(truth, whole, 2), truth * x, truth.long() + whole, whole > 0.5, -whole, x.long(),
            truth & (whole > 0),
            1 - truth.float(), whole.bool() | truth, torch.where(x > 100, 1.0, x),
        ]  # fmt: skip

    agree(function, x, whole)


def test_infinity_and_nan_are_not_calculated_away():
    x, y = torch.tensor([INF, NAN, 1.0, -INF]), torch.tensor([1.0, 1.0, 1e-9, INF])
    agree(lambda x, y: [(x + y) - x, (1 + y) - 1, x * 0, x - x, (x * y).sum(), x.sum(0), x.max()], x, y)


def test_memory_that_moved_is_found_again():
    """What belongs to the function is read where it is when it is called."""
    own = torch.arange(3.0)
    code = compiled(lambda x: [x + own], torch.zeros(3))
    own.data = torch.full((3,), 7.0)
    assert torch.equal(code(torch.zeros(3))[0], own)


def test_threads_do_not_get_into_each_others_way():
    """Two learners of one architecture share the library."""
    a, b = torch.randn(2, 300, 70), torch.randn(2, 90, 70)
    codes = [compiled(lambda a, b: [torch.bmm(a, b.transpose(1, 2))], a, b) for _ in range(2)]
    wrong = []

    def work(code, scale):
        scaled = a * scale
        (expected,) = code(scaled, b)
        expected = expected.clone()
        wrong.extend(scale for _ in range(100) if not torch.equal(code(scaled, b)[0], expected))

    threads = [threading.Thread(target=work, args=given) for given in zip(codes, (1.0, 2.0), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_written_in_place_is_seen_by_every_view():
    """Chains of operations in place, into `out=`, and on overlapping views of one memory keep their order."""
    x = torch.randn(6, 8)

    def function(x):
        y = x + 1
        left, right = y.chunk(2, dim=-1)
        left.mul_(right)  # changes y
        before = y.sum(-1)
        torch.add(left, 5.0, out=right)
        y[1:3].copy_(y[3:5] * 2)
        z = y.t() + y.t().neg().abs_()
        y.zero_()
        return [before, y + z.t(), left, right.clone(), z]

    agree(function, x)


def test_results_have_memory_of_their_own_and_alias_as_in_torch():
    """What one call returned is not touched by the next; two names of one result stay two names of it."""

    def function(x):
        y = x * 2
        return [y, y[0], y.t(), x.view(-1), y.sum(), y.max()]

    x = torch.randn(3, 4)
    code = compiled(function, x)
    first = code(x)
    kept = [result.clone() for result in first]
    code(torch.zeros(3, 4))
    for result, before in zip(first, kept, strict=True):
        assert torch.equal(result, before)
    first[0][0, 0] = 77.0
    assert first[1][0] == 77.0
    assert first[2][0, 0] == 77.0
    assert first[3].data_ptr() == x.data_ptr()


def test_inputs_may_lie_in_memory_in_any_way():
    code = compiled(lambda x: [x + 1], torch.randn(3, 4))
    turned = torch.randn(4, 3).t()
    assert torch.equal(code(turned)[0], turned + 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [torch.rand_like(x) + x],
        lambda x: [x.double() * 2],
        lambda x: [torch.fft.fft(x).real],
        lambda x: [x.add_(1)],
        lambda x: [x.new_zeros(0, 3), x * 1],
        lambda x: [torch.linalg.vector_norm(x, 1)],
        lambda x: [torch.div(x, 2, rounding_mode="floor")],
        lambda x: [torch.nn.functional.gelu(x, approximate="tanh")],
        lambda x: [0.9**x],
        lambda x: [torch.ones(4, 3).t().addmm(x[:3, None], x[None])],
        lambda x: [x.long().max()],
        lambda x: [x[x > 0] + 1],
        lambda x: [x * float(x.sum())],
    ],
    ids=[
        "random",
        "double",
        "unknown",
        "into its input",
        "empty",
        "another norm",
        "floor",
        "tanh",
        "a power",
        "a turned bias",
        "a fold of whole numbers",
        "a choice",
        "a number of Python",
    ],
)
def test_what_is_not_written_is_refused(function):
    """Nothing is guessed: what is not known goes on as it was."""
    assert written(function, torch.randn(4)) is None


def test_a_library_that_was_cut_off_is_made_anew(monkeypatch, tmp_path):
    """As a machine leaves it that goes down."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x = torch.randn(3)
    assert machine_code(written(lambda x: [x * 5], x)) is not None
    (library,) = (tmp_path / "twostep").iterdir()
    library.unlink()
    library.write_bytes(b"")
    (found,) = machine_code(written(lambda x: [x * 5], x))(x)
    assert torch.equal(found, x * 5)


def test_without_a_home_there_is_a_place(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("nobody")))
    assert compiled(lambda x: [x * 6], torch.ones(2))(torch.ones(2))[0][0] == 6


def test_a_full_disk_is_no_reason_to_stop(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("twostep.native.building._compile", full)
    assert machine_code(written(lambda x: [x * 7], torch.ones(2))) is None


def test_code_is_compiled_once(monkeypatch, tmp_path):
    """The second process finds the library of the first; without a compiler there is none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x = torch.randn(3)
    assert machine_code(written(lambda x: [x * 3], x)) is not None
    (library,) = (tmp_path / "twostep").iterdir()
    monkeypatch.setattr("twostep.native.building._compile", lambda *_: pytest.fail("compiled again"))
    assert machine_code(written(lambda x: [x * 3], x)) is not None
    assert library.suffix == ".so"


@pytest.mark.parametrize("compiler", ["", "false", "/nowhere/cc"])
def test_without_a_compiler_that_works_there_is_no_code(monkeypatch, tmp_path, compiler):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    x = torch.randn(3)
    assert machine_code(written(lambda x: [x * 3], x)) is None
    assert not list(tmp_path.rglob("*.so"))

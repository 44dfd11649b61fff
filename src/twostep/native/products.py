"""Matrix products of sizes known beforehand: tiles of the result are kept in vector registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twostep.native.elementwise import Loop
from twostep.native.programs import Kernel, UnsupportedError, View

_PANEL = 64
"""Columns of a panel: as many as four vectors of the widest kind hold. Narrower machines take more turns."""


@dataclass
class Product(Kernel):
    """`alpha * a @ b + beta * bias` for each of a batch; views of the result, a, b and the bias, three strides each."""

    batch: int = 1
    sizes: tuple[int, int, int] = (0, 0, 0)
    """Rows, columns, and numbers summed over."""
    strides: tuple[tuple[int, int, int], ...] = ()
    """Of result, a, b and bias: from one product to the next, from row to row, from column to column."""
    alpha: float = 1.0
    beta: float = 0.0
    then: Loop | None = None
    """What is done with each number of the result as soon as it is there, while it is near."""

    def takes_in(self, following: Kernel) -> bool:
        """See `Kernel`: a loop over the result's numbers, if it can be done row by row."""
        if not isinstance(following, Loop):
            return False
        loop = following
        result = self.views[0]
        shape = tuple(size for size in (self.batch, *self.sizes[:2]) if size != 1)
        looked_at = [*loop.loaded, *[view for view, _ in loop.statements]]
        fits = self.then is None and self._is_tiled and loop.shape == shape and not loop.written & self.read
        if not fits or not any(view.same_place(result) for view in looked_at):
            return False
        if any(view.may_overlap(result) and not view.same_place(result) for view in looked_at):
            return False
        self.then = loop
        self.views = [*self.views, *[view for view in loop.views if not view.same_place(result)]]
        self.written |= loop.written
        self.read |= loop.read
        return True

    @property
    def _is_tiled(self) -> bool:
        return self.sizes[1] >= 8 and self.strides[0][2] == 1

    def text(self) -> str:
        """See `Kernel`."""
        body = self._tiles() if self._is_tiled else self._dots()
        moves = "".join(
            f"        {view.c_type} *{name} = p{number} + z * {strides[0]};\n"
            for number, (name, view, strides) in enumerate(zip("cabd", self.views, self.strides, strict=False))
        )
        return f"    for (int64_t z = 0; z < {self.batch}; z++) {{\n{moves}{body}    }}\n"

    def _finished(self, total: str, row: str, column: str, *, vector: bool = False) -> str:
        """Write what becomes of a sum: its factor, and the bias beside it."""
        result = total if self.alpha == 1.0 else f"{self.alpha}f * {total}"
        if not self.beta:
            return result
        _, row_stride, column_stride = self.strides[3]
        place = f"{row} * {row_stride} + ({column}) * {column_stride}"
        bias = f"WIDE(d + {place})" if vector and column_stride else f"d[{place}]"
        return f"{result} + {bias}" if self.beta == 1.0 else f"{result} + {self.beta}f * {bias}"

    def _dots(self) -> str:
        """One sum for every number of the result: for results of few columns."""
        rows, columns, inner = self.sizes
        (_, c_row, c_column), (_, a_row, a_inner), (_, b_inner, b_column) = self.strides[:3]
        return (
            f"        for (int64_t m = 0; m < {rows}; m++) for (int64_t n = 0; n < {columns}; n++) {{\n"
            f"            float s = 0.0f;\n"
            f'            _Pragma("omp simd reduction(+:s)")\n'
            f"            for (int64_t k = 0; k < {inner}; k++) s += a[m * {a_row} + k * {a_inner}] * "
            f"b[k * {b_inner} + n * {b_column}];\n"
            f"            c[m * {c_row} + n * {c_column}] = {self._finished('s', 'm', 'n')};\n"
            f"        }}\n"
        )

    def _tiles(self) -> str:
        """Panels of up to four vectors' width, packed where their rows are not, in tiles of as many rows as fit."""
        rows, columns, inner = self.sizes
        _, b_inner, b_column = self.strides[2]
        text = ""
        for begin in range(0, columns, _PANEL):
            width = min(_PANEL, columns - begin)
            source, stride = f"(b + {begin})", b_inner
            if b_column != 1 or width % 16:
                stride = -(-width // 16) * 16
                text += (
                    f"        {{ static _Thread_local float w[{inner * stride}] __attribute__((aligned(64)));\n"
                    f"        for (int64_t k = 0; k < {inner}; k++) {{\n"
                    f"            for (int64_t n = 0; n < {width}; n++) "
                    f"w[k * {stride} + n] = b[k * {b_inner} + ({begin} + n) * {b_column}];\n"
                    f"            for (int64_t n = {width}; n < {stride}; n++) w[k * {stride} + n] = 0.0f;\n"
                    f"        }}\n"
                )
                source = "w"
            else:
                text += "        {\n"
            text += self._panel(begin, width, source, stride, rows) + "        }\n"
        return text

    def _panel(self, begin: int, width: int, source: str, stride: int, rows: int) -> str:
        text, vectors = "", -(-width // 16)
        most = {1: 16, 2: 12, 3: 8, 4: 6}[vectors]
        tile = -(-rows // -(-rows // most))
        whole = rows // tile * tile
        if whole:
            text += f"        for (int64_t m = 0; m < {whole}; m += {tile}) {{\n"
            text += self._tile(begin, width, source, stride, tile, "m") + "        }\n"
        if rows > whole:
            text += "        {\n" + self._tile(begin, width, source, stride, rows - whole, str(whole)) + "        }\n"
        return text

    def _tile(self, begin: int, width: int, source: str, stride: int, tile: int, row: str) -> str:
        """Multiply `tile` rows with a panel; vectors are sixteen floats, in as many registers as the machine needs."""
        inner, (_, c_row, _), (_, a_row, a_inner) = self.sizes[2], *self.strides[:2]
        vectors = range(-(-width // 16))
        text = "".join(f"            wide s{r}_{v} = {{0}};\n" for r in range(tile) for v in vectors)
        text += f"            for (int64_t k = 0; k < {inner}; k++) {{\n"
        text += "".join(f"                wide b{v} = WIDE({source} + k * {stride} + {16 * v});\n" for v in vectors)
        for r in range(tile):
            text += f"                {{ float x = a[({row} + {r}) * {a_row} + k * {a_inner}];"
            text += "".join(f" s{r}_{v} += x * b{v};" for v in vectors) + " }\n"
        text += "            }\n"
        for r in range(tile):
            for v in vectors:
                text += self._stored(f"s{r}_{v}", f"({row} + {r})", begin + 16 * v, min(16, width - 16 * v), c_row)
        return text + self._followed(begin, width, tile, row)

    def _followed(self, begin: int, width: int, tile: int, row: str) -> str:
        if self.then is None:
            return ""
        own = len(self.strides)

        def place(view: View) -> str:
            if view.same_place(self.views[0]):
                return "p0[" + _at(view, self.batch, *self.sizes[:2]) + "]"
            number = next(i for i, other in enumerate(self.views[own:], own) if other.same_place(view))
            return f"p{number}[" + _at(view, self.batch, *self.sizes[:2]) + "]"

        return (
            f"            for (int64_t m2 = {row}; m2 < {row} + {tile}; m2++) "
            f"for (int64_t n = {begin}; n < {begin + width}; n++) {{\n{self.then.body(place)}            }}\n"
        )

    def _stored(self, total: str, row: str, column: int, count: int, c_row: int) -> str:
        if count == 16:
            result = self._finished(total, row, str(column), vector=True)
            return f"            WIDE(c + {row} * {c_row} + {column}) = {result};\n"
        result = self._finished(f"{total}[n]", row, f"{column} + n")
        return f"            for (int64_t n = 0; n < {count}; n++) c[{row} * {c_row} + {column} + n] = {result};\n"


def _at(view: View, *sizes: int) -> str:
    """Write the place of a number of a batch, row and column; what has only one of them is left out of the view."""
    strides = iter(view.strides)
    named = [(name, next(strides)) for name, size in zip(("z", "m2", "n"), sizes, strict=True) if size != 1]
    return " + ".join(f"{name} * {stride}" for name, stride in named if stride) or "0"


def product(
    views: Sequence[View], sizes: tuple[int, ...], strides: Sequence[Sequence[int]], alpha: float, beta: float
) -> Product:
    """Describe a product of `sizes` batch, rows, columns, inner; views of result, both factors, and a bias or none.

    Raises:
        UnsupportedError: The bias has columns that lie apart.
    """
    batch, rows, columns, inner = sizes
    if len(views) == 4 and strides[3][2] not in (0, 1):
        raise UnsupportedError("a bias whose columns lie apart")
    written, read = {views[0].buffer}, {view.buffer for view in views[1:]}
    return Product(
        list(views), written, read, batch=batch, sizes=(rows, columns, inner),
        strides=tuple((z, m, n) for z, m, n in strides), alpha=alpha, beta=beta,
    )  # fmt: skip

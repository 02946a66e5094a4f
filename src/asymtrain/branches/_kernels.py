"""The loss of linear branches and its gradients as Triton kernels: all layers in two launches, three with means.

    _pool        features -> rows, if any layer is averaged over positions, or features have two types
    _loss        rows and weights -> the loss, and its gradient by the logits
    _gradients   that gradient -> gradients by weights, biases and rows, times the gradient of the loss

Launches bound the step of a small model, and each of these replaces about ten of torch's. They compute the sigmoid or
softmax loss of class indices, with weights and biases in float32. Tensors are passed as integer addresses, since the
number of layers varies; a layer's other data is a row of a table on the device, written once. The program that ends
last combines the results of tiles (sums, and the rows of a softmax), so that every sum has a fixed order.
Axis letters: B batch, C classes, D width, K layers.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from asymtrain.branches._pooling import MemoryLayout

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_ALIGNED = 256  # bytes; the size of each part of a shared buffer is rounded up to a multiple
_MANY = 256  # so many programs keep a GPU busy; from there on each takes a larger tile
_WIDE, _LONG = 64, 32  # features and positions that a program averages at a time
_HELD = tl.constexpr(1024)  # logits of whole rows that a program holds at a time; four times as many do not fit
_STREAMS = 16  # streams that may launch one plan at the same time, each with its own counters

# Not specialized: one compilation serves all sizes.
_NUMBERS = [
    "features", "rows", "weights", "biases", "table", "shares", "targets", "gradient", "sums", "loss", "counters",
    "upstream", "of_weights", "of_biases", "of_rows", "batch", "classes", "ignored", "per_row",
]  # fmt: skip

# Columns of the table
_WIDTH = tl.constexpr(0)
_ROW = tl.constexpr(1)  # strides of rows (B, D) in a layer's features, or in their means
_COLUMN = tl.constexpr(2)
_POSITIONS = tl.constexpr(3)
_START = tl.constexpr(4)  # the first program of the layer in `_gradients`
_POOL_START = tl.constexpr(5)  # the first in `_pool`
_POOLED = tl.constexpr(6)  # the offset of its means
_FROM_ROW = tl.constexpr(7)  # strides in the features
_FROM_COLUMN = tl.constexpr(8)
_FROM_POSITION = tl.constexpr(9)
_OTHER = tl.constexpr(10)  # 1 if its features have the second of two types
_FIELDS = tl.constexpr(11)


@triton.jit
def _address(addresses, layer, K: tl.constexpr, KIND: tl.constexpr):
    """A layer's address, as a pointer. A tuple cannot be indexed by a value known only on the device."""
    chosen = addresses[0].to(tl.int64)
    for k in tl.static_range(1, K):
        chosen = tl.where(layer == k, addresses[k].to(tl.int64), chosen)
    return chosen.to(tl.pointer_type(KIND))


@triton.jit
def _layer_of(program, table, column, K: tl.constexpr):
    """The layer that this program works on."""
    layer = 0
    for k in tl.static_range(1, K):
        layer += (program >= tl.load(table + k * _FIELDS + column)).to(tl.int32)
    return layer


@triton.jit(do_not_specialize=_NUMBERS)
def _pool(
    features, table, rows, batch,
    K: tl.constexpr, KIND: tl.constexpr, OTHER: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """The means over positions, in float32, of WIDE features of one sample."""
    table = table.to(tl.int64).to(tl.pointer_type(tl.int64))
    program = tl.program_id(0)
    layer = _layer_of(program, table, _POOL_START, K)
    own = table + layer * _FIELDS
    width = tl.load(own + _WIDTH)
    sample = (program - tl.load(own + _POOL_START)) % batch
    d = (program - tl.load(own + _POOL_START)) // batch * WIDE + tl.arange(0, WIDE)
    if OTHER is None:
        mean = _mean(_address(features, layer, K, KIND), own, sample, d, WIDE, LONG)
    elif tl.load(own + _OTHER) != 0:
        mean = _mean(_address(features, layer, K, OTHER), own, sample, d, WIDE, LONG)
    else:
        mean = _mean(_address(features, layer, K, KIND), own, sample, d, WIDE, LONG)
    target = rows.to(tl.int64).to(tl.pointer_type(tl.float32)) + tl.load(own + _POOLED) + sample * width
    tl.store(target + d, mean, mask=d < width)


@triton.jit
def _mean(feature, own, sample, d, WIDE: tl.constexpr, LONG: tl.constexpr):
    """The means of a sample's features `d`, read along features or along positions, whichever is contiguous."""
    width, positions = tl.load(own + _WIDTH), tl.load(own + _POSITIONS)
    column, step = tl.load(own + _FROM_COLUMN), tl.load(own + _FROM_POSITION)
    base = feature + sample * tl.load(own + _FROM_ROW)
    if column == 1:
        total = tl.zeros((LONG, WIDE), tl.float32)
        for start in range(0, positions, LONG):
            p = start + tl.arange(0, LONG)
            inside = (p[:, None] < positions) & (d[None, :] < width)
            values = tl.load(base + p[:, None] * step + d[None, :], mask=inside, other=0.0)
            total += values.to(tl.float32)
        mean = tl.sum(total, 0) / positions.to(tl.float32)
    else:
        across = tl.zeros((WIDE, LONG), tl.float32)
        for start in range(0, positions, LONG):
            p = start + tl.arange(0, LONG)
            inside = (d[:, None] < width) & (p[None, :] < positions)
            values = tl.load(base + d[:, None] * column + p[None, :] * step, mask=inside, other=0.0)
            across += values.to(tl.float32)
        mean = tl.sum(across, 1) / positions.to(tl.float32)
    return mean


@triton.jit(do_not_specialize=_NUMBERS)
def _loss(
    rows, weights, biases, table, shares, targets, gradient, sums, loss, counters, batch, classes, ignored, per_row,
    K: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """A tile of logits (B, C) of one layer: its part of the loss, and the gradient of the loss by it.

    A softmax needs whole rows: each program stores its logits where their gradient will be, and of the programs of the
    same rows the last one to finish does the rest.
    """
    table = table.to(tl.int64).to(tl.pointer_type(tl.int64))
    targets = targets.to(tl.int64).to(tl.pointer_type(tl.int64))
    counters = counters.to(tl.int64).to(tl.pointer_type(tl.int32))
    program = tl.program_id(0)
    down, across = tl.cdiv(batch, TILE), tl.cdiv(classes, TILE)
    layer, tile = program // (down * across), program % (down * across)
    own = table + layer * _FIELDS
    width, row, column = tl.load(own + _WIDTH), tl.load(own + _ROW), tl.load(own + _COLUMN)
    b = tile // across * TILE + tl.arange(0, TILE)
    c = tile % across * TILE + tl.arange(0, TILE)
    left = _address(rows, layer, K, KIND) + b[:, None] * row
    right = _address(weights, layer, K, tl.float32) + c[None, :] * width
    logits = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, width, DEPTH):
        d = start + tl.arange(0, DEPTH)
        x = tl.load(left + d[None, :] * column, mask=(b[:, None] < batch) & (d[None, :] < width), other=0.0)
        w = tl.load(right + d[:, None], mask=(d[:, None] < width) & (c[None, :] < classes), other=0.0)
        logits = tl.dot(x.to(tl.float32), w, logits, input_precision=PRECISION)
    if biases is not None:
        logits += tl.load(_address(biases, layer, K, tl.float32) + c, mask=c < classes, other=0.0)[None, :]

    # The mean is over rows that count; if no row counts, the loss is 0.
    counted = 0
    for start in range(0, batch, CHUNK):
        i = start + tl.arange(0, CHUNK)
        counted += tl.sum((tl.load(targets + i, mask=i < batch, other=ignored) != ignored).to(tl.int32), 0)
    target = tl.load(targets + b, mask=b < batch, other=ignored)
    share = tl.where(target != ignored, per_row / tl.maximum(counted, 1).to(tl.float32), 0.0)
    # A kernel cannot raise an error for an invalid class index; it makes the loss NaN.
    share = tl.where((target != ignored) & ((target < 0) | (target >= classes)), float("nan"), share)
    share *= tl.load(shares.to(tl.int64).to(tl.pointer_type(tl.float32)) + layer)
    inside = (b[:, None] < batch) & (c[None, :] < classes)
    cells = gradient.to(tl.int64).to(tl.pointer_type(tl.float32)) + layer.to(tl.int64) * batch * classes
    cells += b[:, None].to(tl.int64) * classes
    if SOFTMAX:
        tl.store(cells + c[None, :], logits, mask=inside)
        tl.debug_barrier()
        band = layer * down + tile // across
        if tl.atomic_add(counters + 1 + band, 1, sem="acq_rel") == across - 1:
            tl.store(counters + 1 + band, 0)
            part = _softmax(cells, b < batch, target, share, classes, TILE)
            _add_up(part, band, tl.num_programs(0) // across, sums, loss, counters, CHUNK)
    else:
        sign = tl.where(target[:, None] == c[None, :], -1.0, 1.0)
        z = sign * logits
        tail = tl.exp(-tl.abs(z))
        # log(1 + tail), exact also where 1 + tail is rounded
        sum_of_both = 1.0 + tail
        exact = tl.where(sum_of_both == 1.0, tail, tl.log(sum_of_both) * (tail / (sum_of_both - 1.0)))
        softplus = tl.maximum(z, 0.0) + exact
        sigmoid = tl.where(z >= 0, 1.0, tail) / sum_of_both
        # NaN in logits stays NaN, so that divergence is visible.
        tl.store(cells + c[None, :], share[:, None] * sign * tl.where(z == z, sigmoid, z), mask=inside)
        part = tl.sum(tl.sum(tl.where(inside, share[:, None] * tl.where(z == z, softplus, z), 0.0), 1), 0)
        _add_up(part, program, tl.num_programs(0), sums, loss, counters, CHUNK)


@triton.jit
def _softmax(cells, inside, target, share, classes, ROWS: tl.constexpr):
    """The loss of rows whose logits are in the cells of their gradient: one pass sums, one writes the gradient."""
    WIDE: tl.constexpr = _HELD // ROWS
    # Finite, so that it can be subtracted from a logit of -inf, which a masked class has.
    highest = tl.full((ROWS,), -3.4e38, tl.float32)
    total, own = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for start in range(0, classes, WIDE):
        c = start + tl.arange(0, WIDE)
        z = tl.load(cells + c[None, :], mask=inside[:, None] & (c[None, :] < classes), other=float("-inf"),
                    cache_modifier=".cg")  # fmt: skip
        before, highest = highest, tl.maximum(highest, tl.max(z, 1))
        total = total * tl.exp(before - highest) + tl.sum(tl.exp(z - highest[:, None]), 1)
        own += tl.sum(tl.where(c[None, :] == target[:, None], z, 0.0), 1)
    tl.debug_barrier()  # all threads must have read before any writes
    for start in range(0, classes, WIDE):
        c = start + tl.arange(0, WIDE)
        there = inside[:, None] & (c[None, :] < classes)
        z = tl.load(cells + c[None, :], mask=there, other=0.0, cache_modifier=".cg")
        chance = tl.exp(z - highest[:, None]) * (share / total)[:, None]
        tl.store(cells + c[None, :], chance - tl.where(c[None, :] == target[:, None], share[:, None], 0.0), mask=there)
    return tl.sum(tl.where(inside, share * (tl.log(total) + (highest - own)), 0.0), 0)


@triton.jit
def _add_up(part, index, count, sums, loss, counter, CHUNK: tl.constexpr):
    """Store a part of the loss; the last program to do so adds up all parts."""
    sums = sums.to(tl.int64).to(tl.pointer_type(tl.float32))
    tl.store(sums + index, part)
    tl.debug_barrier()
    if tl.atomic_add(counter, 1, sem="acq_rel") == count - 1:
        total = tl.zeros((CHUNK,), tl.float32)
        for start in range(0, count, CHUNK):
            i = start + tl.arange(0, CHUNK)
            total += tl.load(sums + i, mask=i < count, other=0.0, cache_modifier=".cg")
        tl.store(loss.to(tl.int64).to(tl.pointer_type(tl.float32)), tl.sum(total, 0))
        tl.store(counter, 0)


@triton.jit(do_not_specialize=_NUMBERS)
def _gradients(
    rows, weights, table, gradient, upstream, of_weights, of_biases, of_rows, batch, classes,
    K: tl.constexpr, KIND: tl.constexpr, OUT: tl.constexpr, OTHER: tl.constexpr, TILE: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of a weight's gradient (C, D), the first with the bias's gradient; or of the gradient by rows (B, D)."""
    table = table.to(tl.int64).to(tl.pointer_type(tl.int64))
    program = tl.program_id(0)
    layer = _layer_of(program, table, _START, K)
    own = table + layer * _FIELDS
    width, row, column = tl.load(own + _WIDTH), tl.load(own + _ROW), tl.load(own + _COLUMN)
    across, of_classes = tl.cdiv(width, TILE), tl.cdiv(classes, TILE)
    tile = program - tl.load(own + _START)
    d = tile % across * TILE + tl.arange(0, TILE)
    first = tile // across
    scale = tl.load(upstream.to(tl.int64).to(tl.pointer_type(tl.float32)))
    cells = gradient.to(tl.int64).to(tl.pointer_type(tl.float32)) + layer.to(tl.int64) * batch * classes
    total = tl.zeros((TILE, TILE), tl.float32)
    if first < of_classes:
        c = first * TILE + tl.arange(0, TILE)
        right = _address(rows, layer, K, KIND) + d[None, :] * column
        over_rows = tl.zeros((TILE, DEPTH), tl.float32)
        for start in range(0, batch, DEPTH):
            b = start + tl.arange(0, DEPTH)
            g = tl.load(cells + b[None, :].to(tl.int64) * classes + c[:, None],
                        mask=(b[None, :] < batch) & (c[:, None] < classes), other=0.0)  # fmt: skip
            x = tl.load(right + b[:, None] * row, mask=(b[:, None] < batch) & (d[None, :] < width), other=0.0)
            total = tl.dot(g, x.to(tl.float32), total, input_precision=PRECISION)
            if of_biases is not None:
                over_rows += g
        out = _address(of_weights, layer, K, tl.float32)
        tl.store(out + c[:, None] * width + d[None, :], total * scale,
                 mask=(c[:, None] < classes) & (d[None, :] < width))  # fmt: skip
        if of_biases is not None:
            of_bias = _address(of_biases, layer, K, tl.float32)
            tl.store(of_bias + c, tl.sum(over_rows, 1) * scale, mask=(c < classes) & (tile % across == 0))
    else:
        b = (first - of_classes) * TILE + tl.arange(0, TILE)
        weight = _address(weights, layer, K, tl.float32) + d[None, :]
        for start in range(0, classes, DEPTH):
            c = start + tl.arange(0, DEPTH)
            g = tl.load(cells + b[:, None].to(tl.int64) * classes + c[None, :],
                        mask=(b[:, None] < batch) & (c[None, :] < classes), other=0.0)  # fmt: skip
            w = tl.load(weight + c[:, None] * width, mask=(c[:, None] < classes) & (d[None, :] < width), other=0.0)
            total = tl.dot(g, w, total, input_precision=PRECISION)
        scale /= tl.load(own + _POSITIONS).to(tl.float32)
        rows_out = _address(of_rows, layer, K, OUT) + b[:, None] * width + d[None, :]
        of_row = total * scale
        inside = (b[:, None] < batch) & (d[None, :] < width)
        if OTHER is not None:
            beside = _address(of_rows, layer, K, OTHER) + b[:, None] * width + d[None, :]
            tl.store(beside, of_row.to(OTHER), mask=inside & (tl.load(own + _OTHER) != 0))
            inside = inside & (tl.load(own + _OTHER) == 0)
        tl.store(rows_out, of_row.to(OUT), mask=inside)


class Launches:
    """The compiled kernels for one set of shapes and types (one or two), and what stays the same from step to step."""

    def __init__(
        self, layers: Sequence[MemoryLayout], dtypes: Sequence[torch.dtype], batch: int, classes: int,
        device: torch.device, shares: Sequence[float], per_row: float, ignored: int, precision: str,
        softmax: bool, with_bias: bool,
    ) -> None:  # fmt: skip
        count = len(layers)
        self.device = device.index
        self.types = list(dict.fromkeys(dtypes))
        self.kinds = [self.types.index(dtype) for dtype in dtypes]
        mixed = len(self.types) > 1
        # Rows of two types are copied to float32, like means, so that products read one type.
        self.means = mixed or any(layer.positions > 1 for layer in layers)
        widths = [layer.width for layer in layers]
        large = count * triton.cdiv(batch, 64) * triton.cdiv(classes, 64) >= _MANY
        tile, depth = (64, 16) if large else (32, 32)
        down, across = triton.cdiv(batch, tile), triton.cdiv(classes, tile)
        self.cells, self.programs = count * batch * classes, count * down * across
        means, end = _offsets([4 * batch * width for width in widths])
        self.offsets, self.rows = tuple(means), end // 4
        starts, programs = _sums([triton.cdiv(width, tile) * (across + down) for width in widths])
        pool_starts, pool_programs = _sums([triton.cdiv(width, _WIDE) * batch for width in widths])
        # Gradients by features. For rows each is a tensor like the feature, to which autograd can add another in place;
        # the others are views of one buffer, whatever their types, made in one call if all are alike.
        self.own = [
            layer.size == math.prod(layer.gradient[0]) and layer.strides[:2] == (layer.width, 1) for layer in layers
        ]
        each = [dtype.itemsize for dtype in dtypes]
        sizes = [0 if own else layer.size * size for own, layer, size in zip(self.own, layers, each, strict=True)]
        of_rows, end = _offsets(sizes)
        self.of_rows = end // each[0]
        self.views = [(*p.gradient, offset // size) for p, offset, size in zip(layers, of_rows, each, strict=True)]
        self.alike: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        if count > 1 and not mixed and not any(self.own) and len({layer.gradient for layer in layers}) == 1:
            shape, strides, apart = self.views[1]
            self.alike = (count, *shape), (apart, *strides)
        table: list[tuple[int, ...]] = [
            (p.width, *((p.width, 1) if self.means else p.strides[:2]), p.positions, start, pool_start,
             mean // 4, *p.strides, other)
            for p, start, pool_start, mean, other in zip(layers, starts, pool_starts, means, self.kinds, strict=True)
        ]  # fmt: skip
        # The number of layers is rounded up to a power of two for fewer compilations; extra slots have no program.
        slots = triton.next_power_of_2(count)
        self.more = (0,) * (slots - count)
        table += [(1 << 40,) * len(table[0])] * len(self.more)
        self.table = torch.tensor(table, dtype=torch.int64, device=device)
        self.shares = torch.tensor(shares, dtype=torch.float32, device=device)
        self.zero = self.shares.new_zeros(())
        # For each stream one counter of the loss's parts, and for a softmax one counter for each row of tiles.
        self.counters = torch.zeros(_STREAMS, 1 + count * down * softmax, dtype=torch.int32, device=device)
        self.streams: dict[int, int] = {}  # stream -> the address of its counters
        self.fixed = self.table.data_ptr(), self.shares.data_ptr()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # other streams may read these tensors
        self.batch, self.sizes = batch, (batch, classes, ignored, per_row)
        # Compile for any number as large as an address; an odd one promises no alignment.
        address = (1 << 40) + 1
        many, of_kind = (address,) * slots, _TYPES[self.types[0]]
        kind, other_kind = tl.float32 if self.means else of_kind, _TYPES[self.types[1]] if mixed else None
        numbers: tuple[object, ...]
        self.pool = None
        if self.means:
            numbers = many, address, address, batch
            self.pool = _compiled(_pool, pool_programs, numbers, (slots, of_kind, other_kind, _WIDE, _LONG))
        biases = many if with_bias else None
        numbers = many, many, biases, *(address,) * 7, *self.sizes
        self.loss = _compiled(_loss, self.programs, numbers, (slots, kind, tile, depth, 1024, precision, softmax))
        numbers = many, many, *(address,) * 3, many, biases, many, batch, classes
        constants = slots, kind, of_kind, other_kind, tile, depth, precision
        self.gradients = _compiled(_gradients, programs, numbers, constants)

    def stream(self) -> int | None:
        """The current stream; None if the kernels cannot be launched on it.

        They need their own device, no dispatch mode that follows torch's operations, no hooks on saved tensors, and a
        stream with its own counters: programs of two launches at the same time must not be counted together.
        """
        here = (
            (self.device is None or torch._C._cuda_getDevice() == self.device)
            and torch._C._len_torch_dispatch_stack() == 0
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        )
        if not here:
            return None
        stream = self._current_stream()
        if stream not in self.streams:
            if len(self.streams) == _STREAMS:
                return None
            self.streams[stream] = self.counters[len(self.streams)].data_ptr()
        return stream

    def forward(
        self, stream: int, features: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor],
        targets: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        """The loss; its gradient by the logits, followed in memory by the parts of the loss; and the means."""
        table, shares = self.fixed
        rows, means = self._addresses(features), None
        if self.pool is not None:
            means = self.shares.new_empty(self.rows)
            self.pool(stream, rows, table, means.data_ptr(), self.batch)
            rows = self._of_means(means)
        gradient, loss = self.shares.new_empty(self.cells + self.programs), torch.empty_like(self.zero)
        start = gradient.data_ptr()
        self.loss(
            stream, rows, self._addresses(weights), self._addresses(biases) if biases else None, table, shares,
            targets.data_ptr(), start, start + 4 * self.cells, loss.data_ptr(), self.streams[stream], *self.sizes,
        )  # fmt: skip
        return loss, gradient, means

    def backward(
        self, features: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor], gradient: Tensor,
        means: Tensor | None, upstream: Tensor,
    ) -> list[Tensor]:  # fmt: skip
        """Gradients by features, weights and biases, times the gradient of the loss."""
        rows = self._addresses(features) if means is None else self._of_means(means)
        of_features = self._of_features(features)
        of_weights = [torch.empty_like(weight) for weight in weights]
        of_biases = [torch.empty_like(bias) for bias in biases]
        self.gradients(
            self._current_stream(), rows, self._addresses(weights), self.fixed[0], gradient.data_ptr(),
            upstream.data_ptr(), self._addresses(of_weights), self._addresses(of_biases) if biases else None,
            self._addresses(of_features), *self.sizes[:2],
        )  # fmt: skip
        return [*of_features, *of_weights, *of_biases]

    def _of_features(self, features: Sequence[Tensor]) -> Sequence[Tensor]:
        """Empty tensors for the gradients by features."""
        if not self.of_rows:
            return [torch.empty_like(feature) for feature in features]
        buffer = features[0].new_empty(self.of_rows)
        if self.alike is not None:
            return buffer.as_strided(*self.alike).unbind()
        buffers = [buffer] if len(self.types) == 1 else [buffer.view(dtype) for dtype in self.types]
        parts = zip(features, self.own, self.kinds, self.views, strict=True)
        return [torch.empty_like(feature) if own else buffers[kind].as_strided(*view)
                for feature, own, kind, view in parts]  # fmt: skip

    def _current_stream(self) -> int:
        return 0 if self.device is None else torch._C._cuda_getCurrentRawStream(self.device)

    def _addresses(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        return (*[tensor.data_ptr() for tensor in tensors], *self.more)

    def _of_means(self, means: Tensor) -> tuple[int, ...]:
        start = means.data_ptr()
        return (*[start + offset for offset in self.offsets], *self.more)


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The offsets of parts of these sizes in bytes in a buffer, and its end."""
    return _sums([triton.cdiv(size, _ALIGNED) * _ALIGNED for size in sizes])


def _sums(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The start of each part, and the end of the last."""
    *starts, end = accumulate(sizes, initial=0)
    return starts, end


def _compiled(kernel, programs: int, numbers, constants) -> Callable[..., None]:
    """A function that launches the compiled kernel on a stream. Triton's lookup of the kernel is done once, here."""
    if triton.knobs.runtime.interpret:
        launch = kernel[(programs,)]
    else:
        launch = kernel.warmup(*numbers, *constants, grid=(programs,))[programs, 1, 1]
        if "stream" in inspect.signature(launch).parameters:  # else it launches on the current stream
            return lambda stream, *arguments: launch(*arguments, *constants, stream=stream)
    return lambda _stream, *arguments: launch(*arguments, *constants)

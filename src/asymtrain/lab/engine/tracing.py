"""A module's forward in training as a graph of plain operations, recorded while it runs once.

The compiler cannot see into keyed draws, since `Draws` works below it. In a graph they are ordinary operations, with
key and step as inputs. A graph can also be changed: operations that a library does badly are replaced.

A record does not contain what a forward does to gradients (`no_grad` for a part of it, functions with their own
backward). So a graph is used only if its outputs, buffers and gradients equal those of the forward itself.
"""

import operator
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from asymtrain.lab.devices import is_out_of_memory
from asymtrain.lab.engine.modules import ModuleNetwork, Training
from asymtrain.lab.engine.parameters import stack_aligned
from asymtrain.models import Outputs, Parameters

aten = torch.ops.aten
Recorded = Callable[[Parameters, Tensor, Training], Outputs]  # a forward of a stack
_SAME, _CLOSE = 1e-3, 0.05  # relative to a norm; sums may have another order, replaced operations other rounding
_LARGE = 2.0**20
_FEW_PIXELS = 4  # of a map
_BATCH_NORMS = {aten.cudnn_batch_norm.default, aten.native_batch_norm.default, aten._native_batch_norm_legit.default}


def needs_record(network: ModuleNetwork) -> bool:
    """Whether the compiler does better with a record than with the module: it draws, or has depthwise convolutions."""
    return network.draws or any(isinstance(part, nn.Conv2d) and _is_depthwise(part.weight) for part in _parts(network))


def batches(network: ModuleNetwork) -> bool:
    """Whether batching runs through a module is faster: runs of convolutions do not merge into larger products."""
    convolutions = [part for part in _parts(network) if isinstance(part, nn.modules.conv._ConvNd)]
    return all(isinstance(part, nn.Conv2d) and _is_of_patches(part) for part in convolutions)


def record(
    network: ModuleNetwork, parameters: Parameters, images: Tensor, training: Training, *, runs: int = 1
) -> Recorded | None:
    """The forward of a stack of `runs` runs, recorded on a stack of one; None if a graph cannot replace it.

    The arguments do not change.
    """
    names, buffer_names = sorted(network.trained), sorted(training.buffers)

    def forward(values: Sequence[Tensor], buffers: Sequence[Tensor], inputs: Tensor, key: Tensor, step: Tensor) -> Any:
        state = {**dict(zip(names, values, strict=True)), **dict(zip(buffer_names, buffers, strict=True))}
        return network.forward(state, inputs, (key, step))

    def arguments() -> list[Any]:
        values = [parameters[name][0].detach().clone().requires_grad_() for name in names]
        buffers = [training.buffers[name][0].clone() for name in buffer_names]
        return [values, buffers, images[0], training.keys[0], torch.as_tensor(training.step).to(images.device)]

    try:
        with torch.enable_grad():
            graph = make_fx(forward)(*arguments())
            if not _agree(forward, graph, arguments, _SAME):
                return None
            if runs > 1 and any(node.target in _BATCH_NORMS for node in graph.graph.nodes):
                return None  # under vmap their statistics may not be updated
            _spell_out(graph, together=runs > 1)
            if not _agree(forward, partial(_first_of_two, graph) if runs > 1 else graph, arguments, _CLOSE):
                return None
    except Exception as problem:  # modules fail to record in many ways
        if is_out_of_memory(problem):
            raise  # half of the stack may fit
        return None

    def together(parameters: Parameters, images: Tensor, training: Training) -> Outputs:
        values, buffers = [parameters[name] for name in names], [training.buffers[name] for name in buffer_names]
        return _for_all(graph)(values, buffers, images, training.keys, training.step)

    def alone(parameters: Parameters, images: Tensor, training: Training) -> Outputs:
        # The gradient of a squeezed view is a view; the gradient of an indexed row is a copy into zeros.
        values = [parameters[name].squeeze(0) for name in names]
        buffers = [training.buffers[name][0] for name in buffer_names]
        logits, features = graph(values, buffers, images[0], training.keys[0], training.step)
        return logits[None], [feature[None] for feature in features]

    return together if runs > 1 else alone


def _first_of_two(graph: Callable[..., Any], *arguments: Any) -> Any:
    """The outputs of a run that goes through the graph together with a copy of itself."""
    values, buffers, images, key, step = arguments
    values, images, key = tree_map(lambda value: torch.stack([value, value]), (values, images, key))
    pairs = [stack_aligned([buffer, buffer]) for buffer in buffers]  # aligned as in a stack
    with warnings.catch_warnings():
        # vmap calls an operation without a rule once for each run in turn: then streams are faster.
        warnings.filterwarnings("error", ".*performance drop.*batching rule")
        outputs = _for_all(graph)(values, pairs, images, key, step)
    for buffer, pair in zip(buffers, pairs, strict=True):
        buffer.copy_(pair[0])
    return tree_map(lambda value: value[0], outputs)


def _for_all(graph: Callable[..., Any]) -> Callable[..., Any]:
    """The graph for several runs at once; all have the same step."""
    return vmap(graph, in_dims=(0, 0, 0, 0, None))


def _agree(
    forward: Callable[..., Any], other: Callable[..., Any], arguments: Callable[[], list[Any]], tolerance: float
) -> bool:
    """Whether two forms of a forward give the same outputs, leave the same buffers and have the same gradients."""
    results = []
    for form in (forward, other):
        inputs = arguments()
        logits, features = form(*inputs)
        outputs = [logits, *features]
        # Unequal weights, since a plain sum may be constant, as with normalised features. Large ones, since a custom
        # backward may treat large gradients differently, for example clip them.
        products = [
            (value.float() * torch.linspace(-_LARGE, _LARGE, value.numel(), device=value.device).view_as(value)).sum()
            for value in outputs
            if value.requires_grad
        ]
        gradients = torch.autograd.grad(products, inputs[0], allow_unused=True)
        results.append(([*outputs, *inputs[1]], gradients))
    (values, gradients), (others, other_gradients) = results
    return _all_close(values, others, tolerance) and _all_close(gradients, other_gradients, tolerance)


def _all_close(values: Sequence[Tensor | None], others: Sequence[Tensor | None], tolerance: float) -> bool:
    if [value is None for value in values] != [value is None for value in others]:
        return False
    # Buffers may be infinite on purpose, such as an attention mask.
    pairs = [
        (a.detach().double().nan_to_num(0, 0, 0), b.detach().double().nan_to_num(0, 0, 0))
        for a, b in zip(values, others, strict=True)
        if a is not None and b is not None
    ]
    # Values that are 0 up to rounding, such as the gradient of a bias before a normalisation, always agree.
    least = tolerance**2 * max((float(a.norm()) for a, _ in pairs), default=0.0)
    return all(float((a - b).norm()) <= tolerance * float(a.norm()) + least for a, b in pairs)


def _spell_out(graph: fx.GraphModule, together: bool) -> None:
    """Replace operations that are wrong or slow in a compiled graph; `together`: for several runs at once."""
    for node in list(graph.graph.nodes):
        if node.target in _BATCH_NORMS:
            # It changes its buffers without declaring it; the compiler handles `F.batch_norm` correctly.
            for user in [user for user in node.users if not user.users]:
                graph.graph.erase_node(user)  # unused batch statistics, meant for a backward pass
            assert all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
            node.target = _batch_norm
        elif node.target is aten.convolution.default and _is_small_depthwise(node):
            node.target = _depthwise_on_few_pixels
        elif together and node.target is aten.convolution.default:
            node.target = _product_of_patches  # batched runs would become a grouped convolution, which is slow
        elif together and node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default  # with an axis of runs the memory layout may differ
    graph.recompile()


def _product_of_patches(maps: Tensor, kernel: Tensor, bias: Tensor | None, stride: Sequence[int], *_: object) -> Tensor:
    """A convolution (B, C, H, W) whose stride is its kernel's size, as a matrix product."""
    (images, channels, height, width), (down, right) = maps.shape, stride
    rows, columns = height // down, width // right
    cut = maps[:, :, : rows * down, : columns * right]
    patches = cut.reshape(images, channels, rows, down, columns, right).permute(0, 2, 4, 1, 3, 5)
    result = patches.reshape(images * rows * columns, -1) @ kernel.flatten(1).mT
    result = (result if bias is None else result + bias).view(images, rows, columns, -1)
    return result.permute(0, 3, 1, 2)


def _batch_norm(
    maps: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Tensor]:
    return (F.batch_norm(maps, mean, variance, weight, bias, training, momentum, epsilon),)


def _depthwise_on_few_pixels(
    maps: Tensor, kernel: Tensor, bias: Tensor | None, stride: object, padding: Sequence[int], *_: object
) -> Tensor:
    """A depthwise convolution (B, C, H, W) as sums over pixels: on few pixels cuDNN launches once for each channel."""
    height, width = maps.shape[2:]
    wide = F.pad(kernel[:, 0].float(), (width, width, height, height))  # 0 for pixels outside the kernel
    inputs, rows = maps.float(), []
    for y in range(height):
        top, row = height + padding[0] - y, []
        for x in range(width):
            left = width + padding[1] - x
            row.append((inputs * wide[:, top : top + height, left : left + width]).sum((2, 3)))
        rows.append(torch.stack(row, 2))
    result = torch.stack(rows, 2)
    return (result if bias is None else result + bias.float()[:, None, None]).to(maps.dtype)


def _is_small_depthwise(node: Any) -> bool:
    maps, kernel, _, stride, _, dilation, transposed, _, groups = node.args
    shape, out, kernel = maps.meta["val"].shape, node.meta["val"].shape, kernel.meta["val"]
    plain = set(stride) == {1} and set(dilation) == {1} and not transposed and len(shape) == 4
    small = plain and shape == out and shape[2] * shape[3] <= _FEW_PIXELS
    return small and groups == shape[1] and _is_depthwise(kernel)


def _is_of_patches(part: nn.Conv2d) -> bool:
    plain = part.groups == 1 and set(part.dilation) == {1} and part.padding in ((0, 0), "valid", 0)
    return plain and part.kernel_size == part.stride and not part.transposed


def _is_depthwise(kernel: Tensor) -> bool:
    return len(kernel) > 1 and kernel.shape[1] == 1


def _parts(network: ModuleNetwork) -> list[nn.Module]:
    return list(network.module.modules())

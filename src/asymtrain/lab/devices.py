"""The device that trains, and torch's global settings, each set for a block and then restored."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from asymtrain.errors import UsageError

# Messages of torch, Triton and the libraries below them, whose errors have no type of their own.
_OUT_OF_MEMORY = (
    "CUDA out of memory", "CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
)  # fmt: skip


def default_device(device: torch.device | str | None) -> torch.device:
    """The requested device, or the fastest one; raises a `UsageError` if it is unknown or not there."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unknown = UsageError(f"unknown device {str(device)!r}: use cpu, cuda or cuda:0")
    try:
        chosen = torch.device(device)
    except RuntimeError as problem:
        raise unknown from problem
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device {str(device)!r} was asked for, but torch sees no GPU: use --device cpu")
        if (chosen.index or 0) >= (count := torch.cuda.device_count()):
            names = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            raise UsageError(f"device {str(device)!r} was asked for, but torch sees {names} alone: use one of these")
    elif chosen.type == "cpu":
        if chosen.index:
            raise unknown
    else:
        try:  # the only check that works for all kinds of devices; meta tensors have no values to copy
            torch.zeros(1, device=chosen).cpu()
        except (RuntimeError, AssertionError, ImportError, AttributeError) as problem:
            raise unknown from problem
    return chosen


def fast_precision(device: torch.device | str | None) -> Literal["bf16"] | None:
    """The default precision of a command: bf16 on a GPU that supports it, else None: the settings' precision."""
    return "bf16" if default_device(device).type == "cuda" and torch.cuda.is_bf16_supported() else None


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether the error, or one that caused it, means too little memory on a device or on this machine.

    A capture that runs out of memory fails with another error.
    """
    if isinstance(problem, torch.OutOfMemoryError | MemoryError) or any(
        words in str(problem) for words in _OUT_OF_MEMORY
    ):
        return True
    earlier = problem.__cause__ or problem.__context__
    return earlier is not None and is_out_of_memory(earlier)


def device_name(device: torch.device) -> str:
    """The device name that a run records: the GPU's product name, or the kind of device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def float32_products(tf32: bool) -> Iterator[None]:
    """Matrix products of float32 numbers in full precision, or in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def products_of(precision: str) -> Iterator[None]:
    """Matrix products in a run's precision.

    On a CPU without bfloat16 instructions a bf16 run disables oneDNN: its first bfloat16 product would fail, and torch
    would stop using oneDNN in the whole process. Another library would then round later float32 runs differently.
    """
    available, before = torch.backends.mkldnn.is_available(), torch.backends.mkldnn.enabled
    with float32_products(precision == "tf32"):
        if precision != "bf16" or not available or torch.ops.mkldnn._is_mkldnn_bf16_supported():
            yield
            return
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.backends.mkldnn.enabled = before


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread on a CPU, so that sums do not depend on the number of processes that train."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if device.type == "cpu":
            torch.set_num_threads(before)


@contextmanager
def compiler_settings() -> Iterator[None]:
    """Settings that compiled programs need while they are compiled and called."""
    import torch._dynamo.config
    import torch._functorch.config

    # Every shape is one compilation; beyond torch's default limit of eight it would silently fall back to eager.
    # A measured step goes backward through one graph twice; otherwise the first pass of a compiled backward would
    # reuse the saved tensors as scratch memory.
    with (
        torch._dynamo.config.patch(recompile_limit=256),
        torch._functorch.config.patch(donated_buffer=False),
        warnings.catch_warnings(),
    ):
        # The compiler reads `.grad` of all inputs, even if they are outputs of another program.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
        # Its messages on a GPU are about how our programs are compiled, and do not help users.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.(_inductor|_dynamo|cuda)\b")
        yield


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each submodule's mode is restored."""
    before = {part: part.training for part in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for part, training in before.items():
            part.training = training

"""The device that trains, and torch's global settings: each is set for a block, and the caller's comes back."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from asymtrain.errors import UsageError

# The words of torch, Triton and the libraries below them, whose errors have no type of their own.
_OUT_OF_MEMORY = (
    "CUDA out of memory", "CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
)  # fmt: skip


def default_device(device: torch.device | str | None) -> torch.device:
    """The device asked for, or the fastest there is; one that is unknown or not there is refused."""
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
        try:  # the only way to ask that all kinds of devices answer; meta tensors have no values to copy
            torch.zeros(1, device=chosen).cpu()
        except (RuntimeError, AssertionError, ImportError, AttributeError) as problem:
            raise unknown from problem
    return chosen


def fast_precision(device: torch.device | str | None) -> Literal["bf16"] | None:
    """The default precision of a question: bf16 on a GPU that has it, else None, for that of the settings."""
    return "bf16" if default_device(device).type == "cuda" and torch.cuda.is_bf16_supported() else None


def is_out_of_memory(problem: BaseException) -> bool:
    """Is it an error of too little memory, of a device or of this machine?

    It may be the cause of another error: a capture that ran out of memory fails with an error of its own.
    """
    if isinstance(problem, torch.OutOfMemoryError | MemoryError) or any(
        words in str(problem) for words in _OUT_OF_MEMORY
    ):
        return True
    earlier = problem.__cause__ or problem.__context__
    return earlier is not None and is_out_of_memory(earlier)


def device_name(device: torch.device) -> str:
    """The GPU's product name, or the kind of device: what a run records."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def float32_products(tf32: bool) -> Iterator[None]:
    """Products of float32 numbers in full precision, or in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def products_of(precision: str) -> Iterator[None]:
    """Products as a run's precision wants them.

    On a CPU without bfloat16 instructions oneDNN is left out of a bf16 run: its first bfloat16 product would fail, and
    torch then gives oneDNN up for the whole process. Later float32 runs would be rounded by another library.
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
    """One thread on a CPU: sums then do not depend on how many processes train beside this one."""
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
    """What compiled programs need, while they are compiled and called."""
    import torch._dynamo.config
    import torch._functorch.config

    # Every shape is one compilation; torch's default limit of eight would fall back to eager silently.
    # A measured step goes back through one graph twice; a compiled backward would otherwise take what the
    # forward saved as scratch memory in the first pass.
    with (
        torch._dynamo.config.patch(recompile_limit=256),
        torch._functorch.config.patch(donated_buffer=False),
        warnings.catch_warnings(),
    ):
        # The compiler reads `.grad` of all inputs, also of outputs of another program.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
        # Its messages on a GPU are about how our programs are compiled, and mean nothing to users.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.(_inductor|_dynamo|cuda)\b")
        yield


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every submodule is in the mode that it was in."""
    before = {part: part.training for part in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for part, training in before.items():
            part.training = training

"""Data parallelism: each rank computes some micro-batches of every batch.

    torchrun --nproc-per-node 8 -m bertie pretrain base --corpus CORPUS --out RUN

Every rank makes and packs the whole global batch, at hundreds of thousands of examples a second. So
each rank knows the number of targets to divide the losses by before the backward pass; it then
computes only its own micro-batches. Gradients are summed once per step. A single process is a world
of one rank.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertie.base.errors import SettingsError

# Elements of gradients summed by one call: enough for few calls, and little additional memory (64 MiB).
BUCKET_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and operations over all ranks that train together.

    rank        index of this process; rank 0 is the main process and writes the run's files
    world_size  number of processes
    local_rank  index of this process on its machine, and of the GPU that it uses
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which writes the run's files."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank has reached this call."""
        if self.world_size > 1:
            dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Sum `values` over all ranks in place, and return the result."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def max(self, number: int, device: torch.device) -> int:
        """Return the largest `number` of all ranks, which communicate through `device`."""
        if self.world_size == 1:
            return number
        largest = torch.tensor(number, device=device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum each gradient over all ranks, in place.

        A gradient that only some ranks have counts as zero on the others. One that no rank has, as
        of a head without targets, stays missing, so that the optimizer leaves the parameter as it is.
        """
        if self.world_size == 1:
            return
        parameters = list(model.parameters())
        has_gradient = [parameter.grad is not None for parameter in parameters]
        counts = self.sum(torch.tensor(has_gradient, dtype=torch.int32, device=parameters[0].device))
        bucket: list[Tensor] = []
        for parameter, count in zip(parameters, counts.tolist(), strict=True):
            if count == 0:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            if sum(gradient.numel() for gradient in bucket) >= BUCKET_ELEMENTS:
                _sum_bucket(bucket)
                bucket = []
        if bucket:
            _sum_bucket(bucket)


def share_of_node() -> tuple[int, int]:
    """Return the number of this process among those of its machine, and how many they are."""
    return int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def _sum_bucket(gradients: list[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, summed in zip(gradients, parts, strict=True):
        gradient.copy_(summed.view_as(gradient))


@contextmanager
def join_ranks(device_type: str) -> Iterator[Ranks]:
    """Join torchrun's process group in a `with` block; without torchrun, one rank.

    Args:
        device_type: "cuda" to communicate with NCCL; otherwise gloo is used.

    Raises:
        SettingsError: another launcher than torchrun has set the environment.
    """
    if "WORLD_SIZE" not in os.environ:
        yield Ranks()
        return
    if "LOCAL_RANK" not in os.environ:
        raise SettingsError("WORLD_SIZE is set, but LOCAL_RANK is not; start several processes with torchrun")
    local_rank = int(os.environ["LOCAL_RANK"])
    if device_type == "cuda":
        torch.cuda.set_device(local_rank)  # NCCL uses the current device from its first call on
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), local_rank)
    finally:
        dist.destroy_process_group()

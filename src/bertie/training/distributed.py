"""Data parallelism: torchrun starts a process for each device, and each learns from a share of every batch.

    torchrun --nproc-per-node 8 -m bertie.commands.main pretrain base --corpus CORPUS --out RUN

Every rank makes the whole global batch (hundreds of thousands of examples a second) and packs it, so that
all of them know what to divide the losses by before the backward pass; it learns from its micro-batches only.
Gradients are summed once a step. One process alone is a world of one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertie.base.errors import SettingsError

# Gradients are summed in pieces of so many numbers: few enough calls, and little memory beside them.
BUCKET_NUMBERS = 1 << 24


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that train together.

    rank        its number; rank 0 writes the run's files
    world_size  how many there are
    local_rank  its number on its machine, which is that of its device
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def any(self, number: int, device: torch.device) -> int:
        """The largest of the numbers that the ranks give."""
        if self.world_size == 1:
            return number
        largest = torch.tensor(number, device=device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def sum_gradients(self, model: nn.Module) -> None:
        """Replace each gradient by its sum over all ranks; one that is absent counts as zero."""
        if self.world_size == 1:
            return
        bucket: list[Tensor] = []
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            if sum(gradient.numel() for gradient in bucket) >= BUCKET_NUMBERS:
                _sum_bucket(bucket)
                bucket = []
        if bucket:
            _sum_bucket(bucket)


def _sum_bucket(gradients: list[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, summed in zip(gradients, parts, strict=True):
        gradient.copy_(summed.view_as(gradient))


@contextmanager
def join_ranks(device_type: str) -> Iterator[Ranks]:
    """Meet the other processes that torchrun started, for as long as the block runs.

    Raises:
        SettingsError: something other than torchrun has set the environment.
    """
    if "WORLD_SIZE" not in os.environ:  # torchrun sets it, and what else init_process_group reads
        yield Ranks()
        return
    if "LOCAL_RANK" not in os.environ:
        raise SettingsError("WORLD_SIZE is set, but not LOCAL_RANK: start several processes with torchrun")
    local_rank = int(os.environ["LOCAL_RANK"])
    if device_type == "cuda":
        torch.cuda.set_device(local_rank)  # before NCCL is first used, which takes the current device
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), local_rank)
    finally:
        dist.destroy_process_group()

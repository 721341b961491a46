"""Training by several processes, the ranks, which torchrun starts.

    torchrun --nproc-per-node 8 -m bertie pretrain base --corpus CORPUS --out RUN

Each rank makes and computes its own examples of every batch. Before the backward pass, the ranks add
up their numbers of targets, by which all of them divide the losses, so that the sum of their gradients
is the gradient of the whole batch. A single process is a world of one rank.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

# Its functions take the process group as a default argument. Imported later, when an optimizer is built, they
# would keep the group, and gloo's threads would run until the interpreter ends, which can abort the process
# (github.com/pytorch/pytorch/issues/190489).
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertie.base.arrays import Int64s
from bertie.base.errors import BertieError, SettingsError
from bertie.model.batch import PackedBatch
from bertie.model.heads import Model, ObjectiveLoss

# The other processes wait while the main one evaluates fine-tuning and writes files. If a process dies,
# torchrun notices it sooner than this.
TIMEOUT = timedelta(hours=2)
JOB_ID = "TORCHELASTIC_RUN_ID"
STATIC_JOB_ID = "none"  # of launches that torchrun cannot extend (its default --rdzv-id)


Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and operations over all ranks that train together.

    rank        index of this process; rank 0 is the main process and writes the run's files
    world_size  number of processes
    device      the device of the tensors that the operations exchange
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which writes the run's files."""
        return self.rank == 0

    def place(self, device: str) -> torch.device:
        """Return where this process computes: several processes have a GPU each."""
        return self.device if self.world_size > 1 and self.device.type == "cuda" else torch.device(device)

    def barrier(self) -> None:
        """Wait until every rank has reached this call."""
        self.max(0)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all ranks."""
        if self.world_size == 1:
            return values
        values = values.to(self.device, copy=True)
        dist.all_reduce(values)
        return values

    def max(self, number: int) -> int:
        """Return the largest `number` of all ranks."""
        return int(self.elementwise_max(np.array([number]))[0])

    def elementwise_max(self, numbers: Int64s) -> Int64s:
        """Return the largest of each number over all ranks, int64 (n,)."""
        if self.world_size == 1:
            return numbers
        largest = torch.from_numpy(numbers).to(self.device, copy=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.cpu().numpy()

    def share(self, value: Value) -> Value:
        """Return the main process's `value`, which is pickled on its way."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, device=self.device)
        return values[0]


class LossFunction(nn.Module):
    """A model's `compute_losses`, and the sum of its gradients over all ranks.

    The gradients are averaged, so a caller multiplies the losses by the number of ranks. They are
    summed during the backward pass (DistributedDataParallel; Li et al., arXiv:2006.15704). With
    `shard`, each rank keeps only its share of the weights, gradients and moments, and has whole ones of
    one layer at a time (FSDP2; Zhao et al., arXiv:2304.11277).

    Args:
        model: the model. With `shard`, its parameters become DTensors.
        ranks: the processes that train it.
        shard: whether to divide the parameters among the ranks.
        may_skip_parameters: whether some steps have no loss for some parameters, whose gradients
            stay missing then; finding them takes time.
    """

    def __init__(
        self, model: Model, ranks: Ranks, *, shard: bool = False, may_skip_parameters: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        module: nn.Module = _ComputeLosses(model)
        self._is_sharded = shard and ranks.world_size > 1
        if self._is_sharded:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard  # the import takes 0.6 s

            # The default mesh is of GPUs wherever there is one, also for a model on the CPU.
            mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
            # torch keeps every mesh, and with it the process group; see the import at the top. Only
            # torch.compile looks a group up here.
            mesh._pg_registry = {}
            for layer in model.bert.layers:
                fully_shard(layer, mesh=mesh)
            # Reshard, so that the module is sharded after an evaluation too.
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        elif ranks.world_size > 1:
            if may_skip_parameters:
                # torch warns at a step that skips none, so give it one that every step skips.
                skipped = next(model.parameters()).new_zeros(1)
                module.register_parameter("skipped", nn.Parameter(skipped))
            module = DistributedDataParallel(
                module,
                forward_sync_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=may_skip_parameters,
            )
        self._module = module

    def forward(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the losses of `model.compute_losses`."""
        losses: dict[str, ObjectiveLoss] = self._module(batch)
        return losses

    def summing(self, is_summed: bool) -> AbstractContextManager[None]:
        """Sum gradients over the ranks, or only within this rank.

        This concerns the backward passes in the `with` block.
        """
        if self._is_sharded:
            self._module.set_requires_gradient_sync(is_summed)  # type: ignore[operator]
        elif isinstance(self._module, DistributedDataParallel) and not is_summed:
            return self._module.no_sync()
        return nullcontext()


class _ComputeLosses(nn.Module):
    """A module whose forward pass is `compute_losses`.

    The wrappers hook only into forward passes.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        return self.model.compute_losses(batch)


def gather_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the whole weights of a model, by the names of its parameters.

    If sharded, return them on rank 0 only. All ranks must call it together.
    """
    if not is_sharded(model):
        return model.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights: dict[str, Any] = get_model_state_dict(model, options=options)
    return weights


def gather_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the whole state of an optimizer, as PARAMETER/MOMENT.

    If sharded, return it on rank 0 only. All ranks must call it together.
    """
    if is_sharded(model):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: Any = get_optimizer_state_dict(model, optimizer, options=options).get("state", {})
    else:
        state = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}
    return {f"{name}/{moment}": value for name, moments in state.items() for moment, value in moments.items()}


@torch.no_grad()
def load_moments(model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    """Load the result of `gather_moments`, whatever the number of ranks."""
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            stored = moments[f"{name}/{moment}"]
            if is_sharded(model) and value.ndim:  # the number of steps is whole
                from torch.distributed.tensor import distribute_tensor

                stored = distribute_tensor(stored.to(value.device), value.device_mesh, value.placements)
            value.copy_(stored)


def is_sharded(model: nn.Module) -> bool:
    """Return whether the ranks share the parameters of a model (`LossFunction`)."""
    return hasattr(next(model.parameters()), "full_tensor")  # a DTensor; importing the class takes 0.6 s


def share_of_node() -> tuple[int, int]:
    """Return the index and the number of torchrun's processes on this machine."""
    return int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def is_main_process() -> bool:
    """Return whether this is the main process, before or after `join_ranks`."""
    return int(os.environ.get("RANK", 0)) == 0


def count_processes() -> int:
    """Return how many processes torchrun has started, including this one.

    1 without torchrun.
    """
    return int(os.environ.get("WORLD_SIZE", 1))


def require_one_process(command: str) -> None:
    """Refuse a command that torchrun has started several times; raise SettingsError."""
    if count_processes() > 1:
        raise SettingsError(f"{command}: trains in one process; start it without torchrun")


def torchrun_job() -> str | None:
    """Return the id of this process's torchrun job; None if it has none."""
    job = os.environ.get(JOB_ID)
    return None if job == STATIC_JOB_ID else job


def is_restarted() -> bool:
    """Return whether torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


@contextmanager
def join_ranks(device_type: str) -> Iterator[Ranks]:
    """Join torchrun's process group in a `with` block; without torchrun, one rank.

    Args:
        device_type: "cuda" to communicate with NCCL; otherwise gloo is used.

    Raises:
        SettingsError: another launcher than torchrun has set the environment, or there are fewer GPUs than
            processes on this machine.
        BertieError: the connection to another process failed, or broke in the block.
    """
    if "WORLD_SIZE" not in os.environ:
        yield Ranks()
        return
    if "LOCAL_RANK" not in os.environ:
        raise SettingsError("WORLD_SIZE is set, but LOCAL_RANK is not; start several processes with torchrun")
    device = torch.device(device_type)
    if device_type == "cuda":
        local_rank, processes = share_of_node()
        gpus = torch.cuda.device_count()
        if processes > gpus:
            raise SettingsError(
                f"{processes} processes, but {gpus} GPUs on this machine; start torchrun with "
                f"--nproc-per-node={gpus}"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        # With a device, NCCL connects at once, and not in the first operation.
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
    else:
        try:
            dist.init_process_group("gloo", timeout=TIMEOUT)
        except RuntimeError as error:
            if "connectFullMesh" not in str(error):
                raise
            # With the variable, torchrun makes a store for each start. Without it, processes that are started
            # again may find the addresses of the failed ones in the store.
            raise BertieError(
                f"process {os.environ['RANK']} cannot connect to the others ({error}); start torchrun with "
                f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
            ) from None
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), device)
        # Sharded modules refer to themselves and keep the group. After an error there is no time for this:
        # torchrun stops the process soon, and the process must report the error before.
        gc.collect()
    except RuntimeError as error:
        if "gloo" not in str(error) and not isinstance(error, dist.DistError):
            raise
        raise BertieError(
            f"process {dist.get_rank()} lost the others ({error}); the first process that failed says why; "
            f"resume the run from its last checkpoint with --resume (resume=True)"
        ) from None
    finally:
        dist.destroy_process_group()

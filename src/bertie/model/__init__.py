"""The network (Section 3), the files it is stored in, and the engines that run it."""

from bertie.base.environment import require_torch_memory

require_torch_memory()

"""Pre-training, fine-tuning and search; all use the loop in `loop.py`."""

from bertie.base.environment import require_torch_memory

require_torch_memory()

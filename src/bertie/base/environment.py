"""Environment variables that torch and its libraries read when they are loaded."""

import os
import sys

VARIABLES = {
    # If other programs use the processors, torch's threads otherwise spin while they wait for each other:
    # steps of a small model took ten times as long (docs/decisions/threads.md).
    "GOMP_SPINCOUNT": "1000",
    # Large memory pages for large tensors: a step of fine-tuning took 5 % less time
    # (docs/decisions/processors.md).
    "THP_MEM_ALLOC_ENABLE": "1",
}


def set_torch_environment() -> None:
    """Set the variables that make torch faster, unless they are set or torch is imported already."""
    if "torch" not in sys.modules:
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)

"""The rows of metrics.jsonl for TensorBoard, an extra: `pip install 'bertie[tensorboard]'`."""

from pathlib import Path
from typing import Any

from bertie.base.errors import SettingsError


class TensorBoard:
    """Writes every figure of a row as `kind/figure` at the row's step."""

    def __init__(self, folder: Path) -> None:
        """Raises SettingsError where tensorboard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingsError(
                "tensorboard = true: the package is not installed; pip install 'bertie[tensorboard]'"
            ) from None
        self._folder, self._writer_class = folder, SummaryWriter
        self._writer: Any = None

    def log(self, row: dict[str, Any]) -> None:
        """One row of metrics.jsonl. What an earlier process wrote at this step and after it is hidden."""
        if self._writer is None:
            self._writer = self._writer_class(str(self._folder), purge_step=row["step"])
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Leave the files whole."""
        if self._writer is not None:
            self._writer.close()

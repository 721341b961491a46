"""Write metrics for TensorBoard, which the extra `tensorboard` installs."""

from pathlib import Path
from typing import Any

from bertie.base.environment import install_command
from bertie.base.errors import SettingsError


class TensorBoard:
    """Writes each number of a row as the scalar `KIND/NAME` at the row's step.

    Raises:
        SettingsError: the package tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingsError(
                f"tensorboard = true: tensorboard is not installed; {install_command('tensorboard')}"
            ) from None
        self._folder, self._writer_class = folder, SummaryWriter
        self._writer: Any = None

    def log(self, row: dict[str, Any]) -> None:
        """Write one row of metrics.jsonl.

        With the first row, TensorBoard hides the rows of an earlier process at that step or later.
        """
        if self._writer is None:
            self._writer = self._writer_class(str(self._folder), purge_step=row["step"])
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file, if any row was logged."""
        if self._writer is not None:
            self._writer.close()

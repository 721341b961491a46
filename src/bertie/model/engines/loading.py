"""A model directory -> what computes it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from bertie.base.errors import ModelError, SettingsError
from bertie.model.engines.engine import Engine
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine
from bertie.model.formats.directory import ModelMetadata, read_metadata

Precision = Literal["float32", "bfloat16"]


class LoadedEngine(NamedTuple):
    """A model in memory, and what its directory says of it."""

    engine: Engine
    metadata: ModelMetadata


def load_engine(path: Path, device: str = "auto", precision: Precision = "float32") -> LoadedEngine:
    """Read a model directory: in ONNX Runtime where it was exported, otherwise in torch.

    Raises:
        ModelError: it is absent, damaged, or not a model's; or what computes it is not installed.
        SettingsError: there is no such device; an exported model has the processor and its own precision.
    """
    if (path / ONNX_FILE).exists():
        if device not in ("auto", "cpu") or precision != "float32":
            raise SettingsError(
                f"{path}: an exported model, which computes on the processor in the precision it has; "
                f"leave --device and --precision out"
            )
        metadata = read_metadata(path)
        return LoadedEngine(OnnxEngine(path, metadata), metadata)
    if not find_spec("torch"):
        read_metadata(path)  # what is wrong with the directory is told first
        raise ModelError(f"{path}: this needs torch: pip install 'bertie[train]'")
    from bertie.model.engines.hardware import Hardware
    from bertie.model.engines.torch_engine import load_torch  # torch is only needed from here on

    return LoadedEngine(*load_torch(path, Hardware(device=device, precision=precision).resolved()))

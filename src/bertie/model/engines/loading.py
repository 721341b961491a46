"""Load a model directory into the engine that runs it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from bertie.base.checksums import weights_verified
from bertie.base.environment import install_command
from bertie.base.errors import ModelError, SettingsError
from bertie.base.settings import resolve
from bertie.model.engines.engine import Engine
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine
from bertie.model.engines.openvino_engine import OpenVinoEngine
from bertie.model.formats.directory import ModelMetadata, read_metadata

Precision = Literal["float32", "bfloat16"]


class LoadedEngine(NamedTuple):
    """A model in memory, and the metadata of its directory."""

    engine: Engine
    metadata: ModelMetadata


def load_engine(path: Path, device: str = "auto", precision: Precision = "float32") -> LoadedEngine:
    """Load a model directory into the engine that runs it.

    Exported models run in ONNX Runtime or OpenVINO, others in torch. ONNX Runtime runs exported models in the
    precision of their export, OpenVINO in bfloat16.

    Raises:
        ModelError: the directory is missing, damaged or not a model directory, or the library that
            runs the model is not installed.
        SettingsError: the device is not available; or the model is exported, and `device` is not
            the CPU, or `precision` is bfloat16 and the export int8.
    """
    if (path / ONNX_FILE).exists():
        if device not in ("auto", "cpu"):
            raise SettingsError(f"{path}: an exported model runs on the CPU; omit device")
        metadata = read_metadata(path)
        with weights_verified(path):
            engine = OpenVinoEngine if precision == "bfloat16" else OnnxEngine
            return LoadedEngine(engine(path, metadata), metadata)
    if not find_spec("torch"):
        read_metadata(path)  # report an error in the directory before the missing library
        raise ModelError(f"{path}: this needs torch: {install_command('train')}")
    from bertie.model.engines.hardware import Hardware  # exported models need no torch
    from bertie.model.engines.torch_engine import load_torch_engine

    hardware = resolve(Hardware, {"device": device, "precision": precision}, source="load").resolved()
    return LoadedEngine(*load_torch_engine(path, hardware))

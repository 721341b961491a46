"""Load a model directory into the engine that runs it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from bertie.base.checksums import weights_verified
from bertie.base.environment import install_command
from bertie.base.errors import ModelError, SettingsError
from bertie.base.settings import resolve
from bertie.model.engines.engine import Engine
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine, has_int8_layers
from bertie.model.engines.openvino_engine import OpenVinoEngine
from bertie.model.formats.directory import ModelMetadata, read_metadata

Precision = Literal["float32", "bfloat16", "int8"]


class LoadedEngine(NamedTuple):
    """A model in memory, and the metadata of its directory."""

    engine: Engine
    metadata: ModelMetadata


def load_engine(path: Path, device: str = "auto", precision: Precision = "float32") -> LoadedEngine:
    """Load a model directory into the engine that runs it.

    Exported models run in ONNX Runtime or OpenVINO, others in torch. ONNX Runtime runs exported models in the
    precision of their export, OpenVINO in bfloat16. In torch, int8 rounds the weights while loading.

    Raises:
        ModelError: the directory is missing, damaged or not a model directory, or the library that
            runs the model is not installed.
        SettingsError: the device is not available, or no CPU with AVX2 for int8; or the model is exported,
            and `device` is not the CPU, or `precision` is neither float32 nor what the export allows.
    """
    on_cpu = str(device).partition(":")[0] in ("auto", "cpu")  # also "cpu:0" and torch.device("cpu")
    if (path / ONNX_FILE).exists():
        if not on_cpu:
            raise SettingsError(f"{path}: an exported model runs on the CPU; omit device")
        metadata = read_metadata(path)
        if precision == "int8" and not has_int8_layers(path / ONNX_FILE):
            raise SettingsError(
                f"{path}: exported in float32; export the model with --int8, or omit precision"
            )
        with weights_verified(path):
            engine = OpenVinoEngine if precision == "bfloat16" else OnnxEngine
            return LoadedEngine(engine(path, metadata), metadata)
    if not find_spec("torch"):
        read_metadata(path)  # report an error in the directory before the missing library
        raise ModelError(f"{path}: this needs torch: {install_command('train')}")
    from bertie.model.engines.hardware import Hardware  # exported models need no torch
    from bertie.model.engines.torch_engine import load_torch_engine

    int8 = precision == "int8"
    if int8:
        if not on_cpu:
            raise SettingsError(f"device = {str(device)!r}: int8 runs on the CPU; omit device or precision")
        device, precision = "cpu", "float32"  # of everything but the rounded layers
    hardware = resolve(Hardware, {"device": device, "precision": precision}, source="load").resolved()
    return LoadedEngine(*load_torch_engine(path, hardware, int8=int8))

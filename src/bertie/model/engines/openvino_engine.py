"""Run exported models in OpenVINO, in bfloat16 and without torch.

`formats/onnx.py` exports them.
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from bertie.base.arrays import Float32s, Int64s
from bertie.base.environment import install_command
from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import utf8_path
from bertie.model.engines.onnx_engine import OnnxEngine, num_threads

PRECISION = "bf16"  # OpenVINO's name; tests compare graphs in "f32"


class OpenVinoEngine(OnnxEngine):
    """An `Engine` on the CPU that multiplies in bfloat16, which ONNX Runtime cannot."""

    # 1,024 and 2,048 tokens were 12 and 27 % slower on paragraphs (docs/decisions/inference.md).
    max_run_tokens = 512
    max_run_padding = 32  # 8 and 64 were 3 to 5 % slower on sentences (docs/decisions/inference.md)
    has_parallel_runs = False
    # OpenVINO compiles kernels for every new shape (N, S), and keeps them. With few values of S, it used
    # 65 instead of 225 MiB for them after 1,500 ragged batches, and computed 12 % more tokens a second.
    length_multiple = 8

    def _load(self, file: Path) -> dict[str, int | None]:
        """See `OnnxEngine`."""
        try:
            import openvino
        except ModuleNotFoundError:
            raise ModelError(
                f"{self._path}: an exported model in bfloat16 needs OpenVINO: {install_command('openvino')}"
            ) from None
        settings = {
            "INFERENCE_NUM_THREADS": num_threads(),
            "INFERENCE_PRECISION_HINT": PRECISION,
            "PERFORMANCE_HINT": "LATENCY",  # all threads on one batch
        }
        core = openvino.Core()
        try:
            with utf8_path(file) as name:
                graph = core.read_model(name)
            self._check_precision(openvino, graph)
            # Before the graph is compiled, which adds names.
            sizes = {output.any_name: output.partial_shape[-1] for output in graph.outputs}
            outputs = {name: size.get_length() if size.is_static else None for name, size in sizes.items()}
            self._model = core.compile_model(graph, "CPU", settings)
        except (RuntimeError, UnicodeDecodeError) as error:  # the latter about damaged names
            reason = " ".join(str(error).split())
            raise ModelError(f"{file}: OpenVINO cannot read it ({reason}); export it again") from None
        self._lock = Lock()
        return outputs

    def _check_precision(self, openvino: Any, graph: Any) -> None:
        """Reject int8: OpenVINO does not run the graph's products of integers."""
        constants = (node for node in graph.get_ops() if node.get_type_name() == "Constant")
        if any(constant.get_element_type() == openvino.Type.i8 for constant in constants):
            raise SettingsError(f"{self._path}: exported in int8; omit precision, or export it in float32")

    def _infer(self, outputs: Sequence[str], inputs: dict[str, Int64s]) -> list[Float32s]:
        """See `OnnxEngine`."""
        with self._lock:  # the model has one set of buffers
            values = self._model(inputs, share_outputs=False)
        return [values[name] for name in outputs]

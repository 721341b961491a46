"""`bertie doctor`: report on the machine and the installed packages."""

import json
import time
from typing import Annotated, Any

import typer

from bertie.base.processors import available_cpus
from bertie.base.texts import count_noun
from bertie.commands.options import Json, check_stdout

# The extra of pyproject.toml that installs each optional package.
EXTRAS = {
    "torch": "train",
    "jinja2": "train",
    "matplotlib": "train",
    "tensorboard": "tensorboard",
    "fsspec": "cloud",
    "s3fs": "cloud",
    "pyarrow": "data",
    "zstandard": "data",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "openvino": "openvino",
    "orjson": "serve",
    "prometheus_client": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "distributed": "cluster",
}


def doctor(
    as_json: Json = False,
    measure: Annotated[
        bool, typer.Option(help="Measure the speed of matrix products, which takes a few seconds.")
    ] = True,
) -> None:
    """Report the hardware, and installed and missing packages."""
    check_stdout()
    facts = {**_software(), **_hardware(measure)}
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


def _software() -> dict[str, Any]:
    import importlib.metadata
    import platform
    from importlib.util import find_spec

    from bertie.base.environment import install_command
    from bertie.text.unicode import UNICODE_VERSION

    facts = {"bertie": importlib.metadata.version("bertie"), "Python": platform.python_version()}
    for package in ("numpy", "numba", "safetensors", *EXTRAS):
        command = install_command(EXTRAS[package]) if package in EXTRAS else f"pip install {package}"
        missing = f"missing: {command}"
        facts[package] = importlib.metadata.version(package) if find_spec(package) else missing
    facts["Unicode tables"] = UNICODE_VERSION
    facts["compiled kernels"] = _kernel_cache()
    return facts


def _kernel_cache() -> str:
    import os

    from bertie.base.environment import cache_root

    try:
        directory = cache_root()
    except RuntimeError:
        return (
            "no home directory, so every process compiles the kernels; set BERTIE_CACHE to a writable folder"
        )
    if os.access(directory, os.W_OK):
        return str(directory)
    return f"{directory} is not writable, so every process compiles the kernels; set BERTIE_CACHE"


def _hardware(measure: bool) -> dict[str, Any]:
    import os
    import shutil
    from importlib.util import find_spec

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts: dict[str, Any] = {
        "processors": available_cpus(),
        "memory": f"{memory / 2**30:.1f} GiB",
        "disk free here": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB",
    }
    if find_spec("torch"):
        import torch

        processor = f"cpu, {count_noun(torch.get_num_threads(), 'thread')}"
        facts["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else processor
        if measure:
            facts["matrix rate"] = _matrix_rates()
    return facts


def _matrix_rates() -> str:
    """Describe the rate of matrix products in the types that training uses.

    These are float32, and on some hardware bfloat16.
    """
    import torch

    from bertie.model.engines.hardware import Hardware
    from bertie.model.products import multiplies_in_numpy

    hardware = Hardware().resolved()
    in_numpy = hardware.device == "cpu" and multiplies_in_numpy(torch.empty(0))
    said = f"{_matrix_rate(hardware.device, torch.float32):,.0f} GFLOP/s in float32{' (numpy)' * in_numpy}"
    if hardware.precision == "bfloat16":
        said += f", {_matrix_rate(hardware.device, torch.bfloat16):,.0f} in bfloat16"
    return said


def _matrix_rate(device: str, dtype: Any) -> float:
    """Return the GFLOP/s of the feed-forward product of a base model, best of five."""
    import torch

    from bertie.model.products import multiply

    tokens, hidden, intermediate = 4096, 768, 3072
    left = torch.randn(tokens, hidden, device=device, dtype=dtype)
    right = torch.randn(hidden, intermediate, device=device, dtype=dtype)
    product = torch.empty(tokens, intermediate, device=device, dtype=dtype)
    multiply_into = multiply if device == "cpu" else torch.mm
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        multiply_into(left, right, out=product)
        product[0, 0].item()  # waits for a GPU
        seconds.append(time.perf_counter() - started)
    return 2 * tokens * hidden * intermediate / min(seconds[1:]) / 1e9

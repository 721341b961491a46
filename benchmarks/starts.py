"""Measure new processes up to their first answer, with compiled kernels in the cache.

A process imports a library, loads a tokenizer or the model of 6 × 384, and encodes a word or embeds a
sentence. The figure is its processor time until then.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measure import UNCASED, Row, at_most, checkpoint, run_function, version


def first_id(file: str) -> None:
    """Load a tokenizer and encode a word."""
    import bertie

    bertie.Tokenizer.load(file).encode("Hello")
    print(time.process_time())


def first_id_of_peer(file: str) -> None:
    """Load a tokenizer into `tokenizers` and encode a word."""
    import tokenizers

    tokenizers.Tokenizer.from_file(file).encode("Hello")
    print(time.process_time())


def first_vector(directory: str) -> None:
    """Load a model and embed a sentence."""
    import bertie

    bertie.load(directory, "cpu").embed("A sentence.")
    print(time.process_time())


def first_vector_of_peer(directory: str) -> None:
    """Load a model into sentence-transformers and embed a sentence."""
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(directory, device="cpu").encode("A sentence.")
    print(time.process_time())


def take_turns(sides: dict[str, Path], rounds: int) -> dict[str, list[float]]:
    """Start a process for every function in turn; return the seconds of each.

    Args:
        sides: the argument of each function of this module
        rounds: after one that is not measured
    """
    seconds: dict[str, list[float]] = {function: [] for function in sides}
    for number in range(1 + rounds):
        for function, argument in sides.items():
            taken = float(run_function("starts", function, argument).output)
            if number:
                seconds[function].append(taken)
    return seconds


def rows(rounds: int) -> Iterator[Row]:
    """Compare the first id with a second, and the first vector with sentence-transformers."""
    from bertie.inference.export import export
    from bertie.model.formats.onnx import Quantization
    from bertie.text.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Tokenizer.load(UNCASED).save(folder)
        ids = take_turns({"first_id": UNCASED, "first_id_of_peer": folder / "tokenizer.json"}, 2 * rounds + 1)
        yield at_most(
            "start-first-id",
            "a new process to its first id",
            "a second",
            "s",
            ids["first_id"],
            [1.0] * len(ids["first_id"]),
            1.0,
            f"{version('tokenizers')} took {min(ids['first_id_of_peer']):.2f} s.",
        )
        peer = version("sentence-transformers")
        export(checkpoint(), folder / "onnx", Quantization())
        for engine, model, of in (
            ("torch", checkpoint(), "in PyTorch"),
            ("onnx", folder / "onnx", "of an ONNX export"),
        ):
            vectors = take_turns({"first_vector": model, "first_vector_of_peer": checkpoint()}, rounds)
            yield at_most(
                f"start-first-vector-{engine}",
                f"a new process to its first vector {of}, 6 × 384",
                peer,
                "s",
                vectors["first_vector"],
                vectors["first_vector_of_peer"],
                1.0,
            )

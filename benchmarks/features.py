"""Compare the speed of contextual vectors with `transformers`.

The texts are paragraphs of Wikipedia, titles and headings included, in the order of the file, so that
their lengths vary. Every side turns strings into float32 arrays with a vector for each token, with the
encoder of all-MiniLM-L6-v2 (6 x 384):

    bertie        the last four layers concatenated, as `bertie features --combine concat` does
    bertie, file  the same, and writes the Parquet file
    transformers  the same with BertModel and output_hidden_states, in batches of 32 padded to the
                  longest text
    pipeline      only the last layer, with pipeline("feature-extraction", batch_size=32)

Texts of more than 512 tokens are skipped, since only bertie reads them completely.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer, pipeline
from transformers.utils import logging

import bertie
from bertie.inference.feature_files import write_features
from bertie.inference.predictor import Predictor
from measure import Row, checkpoint, chunks, compare, paragraphs, take_turns, version

TEXTS, BATCH_SIZE, MAX_LENGTH = 96, 32, 512
LAST_FOUR = [-4, -3, -2, -1]

Vectors = list[np.ndarray]  # (tokens, W) for each text
Side = Callable[[list[str]], Vectors]


def bertie_sides(model: Predictor, output: Path) -> dict[str, Side]:
    def extract(texts: list[str]) -> Vectors:
        return [text.vectors[0] for text in model.features(texts, LAST_FOUR, combine="concat")]

    def extract_to_file(texts: list[str]) -> Vectors:
        features = model.features(texts, LAST_FOUR, combine="concat")
        write_features([features], output, "tokens")
        return [text.vectors[0] for text in features]

    return {"bertie": extract, "bertie, file": extract_to_file}


def transformers_sides(directory: Path) -> dict[str, Side]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModel.from_pretrained(directory).eval()
    extractor = pipeline("feature-extraction", model=model, tokenizer=tokenizer, batch_size=BATCH_SIZE)

    @torch.inference_mode()
    def extract(texts: list[str]) -> Vectors:
        vectors = []
        for part in chunks(texts, BATCH_SIZE):
            batch = tokenizer(
                part,
                padding=True,
                truncation=True,
                max_length=MAX_LENGTH,
                return_tensors="pt",
            )
            states = model(**batch, output_hidden_states=True).hidden_states
            concatenated = torch.cat(states[-4:], dim=-1).numpy()
            lengths = batch["attention_mask"].sum(1).tolist()
            vectors += [row[1 : length - 1] for row, length in zip(concatenated, lengths, strict=True)]
        return vectors

    def extract_with_pipeline(texts: list[str]) -> Vectors:
        tensors = extractor(texts, return_tensors=True)
        return [tensor[0, 1:-1].numpy() for tensor in tensors]

    return {"transformers": extract, "pipeline": extract_with_pipeline}


def rows(rounds: int) -> Iterator[Row]:
    """Compare bertie, with and without a file, with the peers."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = bertie.load(checkpoint(), "cpu")
    lines = paragraphs(10 * TEXTS * (rounds + 1))
    lengths = np.diff(model.tokenizer.encode_batch(lines).bounds)
    lines = [line for line, length in zip(lines, lengths, strict=True) if length <= MAX_LENGTH]
    texts = {
        name: iter(chunks(lines, TEXTS)) for name in ("bertie", "bertie, file", "transformers", "pipeline")
    }
    vectors: dict[str, Vectors] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = bertie_sides(model, Path(folder) / "features.parquet") | transformers_sides(checkpoint())

        def make_work(name: str) -> Callable[[], None]:
            def work() -> None:
                vectors[name] = sides[name](list(next(texts[name])))

            return work

        seconds = take_turns({name: make_work(name) for name in sides}, rounds)
    pairs = zip(vectors["bertie"], vectors["transformers"], strict=True)
    difference = max(np.abs(one - other).max(initial=0) for one, other in pairs)
    for name, ours, theirs, claim in (
        ("features", "bertie", "transformers", "vectors of the last four layers"),
        (
            "features-file",
            "bertie, file",
            "transformers",
            "the same, written to a Parquet file by bertie only",
        ),
        ("features-pipeline", "bertie", "pipeline", "the same; the peer returns only the last layer"),
    ):
        yield compare(
            name,
            f"{claim}, 6 × 384, ragged paragraphs",
            version("transformers") + (", pipeline" if theirs == "pipeline" else ""),
            "texts/s",
            TEXTS,
            seconds[ours],
            seconds[theirs],
            note=f"The largest difference between two numbers is {difference:.1e}."
            if name == "features"
            else "",
        )

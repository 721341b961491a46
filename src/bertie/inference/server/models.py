"""The models of a server, which are loaded on first use.

Models that are not in use are unloaded to fit a memory budget.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from unicodedata import normalize
from weakref import WeakSet

from starlette.exceptions import HTTPException

from bertie.base.checksums import verify
from bertie.base.errors import BertieError, SettingsError
from bertie.inference.capabilities import (
    decision_thresholds,
    main_method,
    reads_pairs,
    resolve_embedding,
    resolve_max_seq_length,
)
from bertie.inference.dispatch import REQUIRED_FIELDS, answer_records
from bertie.inference.predictor import Predictor
from bertie.inference.records import Record
from bertie.inference.results import Method
from bertie.inference.server.batching import Batcher, RequestThreads, TakingTurns, Turns, count_tokens
from bertie.inference.server.errors import ModelNotFoundError
from bertie.inference.server.metrics import Metrics
from bertie.inference.server.middleware import Limits
from bertie.inference.server.operations import EncodedText, Operation, compute
from bertie.model.engines.loading import Precision
from bertie.model.engines.onnx_engine import ONNX_FILE, has_int8_layers
from bertie.model.formats.directory import SEQUENCE_CLASSIFIER, ModelMetadata, read_metadata
from bertie.model.formats.sentence_transformers import find_transformer_folder
from bertie.text.vocabulary import MASK

logger = logging.getLogger(__name__)

GIGABYTE = 1_000_000_000

# Name, inode, modification time and size of each file of a directory.
Files = frozenset[tuple[str, int, int, int]]


class Stay:
    """One stay of a model in memory, and the requests that use it.

    It lasts from loading to unloading.

    Attributes:
        loading: the task that loads the model.
        users: number of requests that wait for the model or compute with it.
        is_unused: set while there are no users.
    """

    def __init__(self, loading: asyncio.Task[None]) -> None:
        self.loading = loading
        self.users = 0
        self.is_unused = asyncio.Event()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Count a request inside the `with` statement."""
        self.users += 1
        self.is_unused.clear()
        try:
            yield
        finally:
            self.users -= 1
            if not self.users:
                self.is_unused.set()


class ServedModel:
    """A model of the server.

    Its weights are in memory only while `predictor` is not None.

    Attributes:
        name: the name by which requests choose it.
        path: the model directory.
        threads: for large requests.
        written: the tokens of responses to /tokenize that are being written.
        files: the files of the directory when its metadata was read.
        metadata: everything in the directory except the weights.
        is_exported: whether it runs in ONNX Runtime or OpenVINO.
        is_int8: whether its layers multiply in int8.
        engine: the class of its engine; before the first load, the class for float32.
        size: bytes of its weights.
        modified: when its folder last changed, in seconds since 1970.
        predictor: the loaded model.
        stay: the stay that new requests join; None if they have to begin one.
    """

    def __init__(self, name: str, path: Path, threads: RequestThreads) -> None:
        self.name = name
        self.path = path
        self.threads = threads
        self.written: WeakSet[Any] = WeakSet()
        self.predictor: Predictor | None = None
        self.describe(*_read_directory(path))
        self.stay: Stay | None = None
        self._batcher: Batcher | None = None
        self._running: asyncio.Task[None] | None = None

    def describe(self, files: Files, metadata: ModelMetadata) -> None:
        """Take everything except the weights from the directory.

        The directory may have been replaced.
        """
        self.files = files
        self.metadata = metadata
        self.is_exported = (self.path / ONNX_FILE).exists()
        self.is_int8 = self.is_exported and has_int8_layers(self.path / ONNX_FILE)
        self.engine = "OnnxEngine" if self.is_exported else "TorchEngine"
        self.size = _weight_bytes(self.path, self.is_exported)
        self.modified = int(self.path.stat().st_mtime)

    @property
    def architecture(self) -> str:
        """The class of `transformers` with the same weights.

        Directories of 2018 do not name it; the weights of a loaded model show it.
        """
        return self.predictor.engine.architecture if self.predictor else self.metadata.architecture

    @property
    def method(self) -> Method | None:
        """The main method of the head; None for an encoder without a head."""
        return main_method(self.architecture, self.metadata)

    @property
    def can_rerank(self) -> bool:
        """Whether the model is a sequence classifier with one score.

        It is a regression, or has two classes. A model that was fine-tuned on single texts, or whose
        `long_texts` are not truncated, reads no pairs.
        """
        several = self.metadata.problem_type == "multi_label_classification"
        return (
            self.architecture == SEQUENCE_CLASSIFIER
            and len(self.metadata.labels) <= 2 - several
            and self.metadata.long_texts.method == "truncate"
            and reads_pairs(self.metadata) is not False
        )

    @property
    def methods(self) -> list[str]:
        """The methods of the model that requests can use."""
        able = {
            self.method or "": self.method is not None,
            "next_sentence": self.architecture == "BertForPreTraining" or self.method == "next_sentence",
            "embed": not self.is_exported or self.method is None,
            "rerank": self.can_rerank,
            "attention": not self.is_exported,
        }
        return [name for name, is_able in able.items() if is_able]

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens that the head reads at once."""
        return resolve_max_seq_length(self.metadata)

    @property
    def embedding(self) -> Any:
        """Pooling, normalization and truncation of the directory."""
        return resolve_embedding(self.metadata)

    @property
    def decision_thresholds(self) -> dict[str, float]:
        """See `Predictor.decision_thresholds`."""
        return decision_thresholds(self.method, self.metadata)

    @property
    def is_running(self) -> bool:
        """Whether the model is loaded and computes."""
        return self._running is not None

    async def submit(self, operation: Operation, records: Sequence[Record]) -> list[Any]:
        """Compute the records of a request together with the records of other requests."""
        assert self._batcher is not None
        return await self._batcher.submit(operation, records)

    def start(self, predictor: Predictor, turns: Turns, limits: Limits, metrics: Metrics) -> None:
        """Begin to compute with a loaded model."""
        self.predictor = predictor
        self.engine = type(predictor.engine).__name__
        predictor.engine = TakingTurns(predictor.engine, turns)
        counting = partial(_count_tokens, predictor)
        computing = partial(compute, predictor)
        self._batcher = Batcher(computing, counting, limits, self.threads, metrics, self.name)
        self._running = asyncio.create_task(self._batcher.run())

    def stop(self) -> None:
        """Stop computing, and release the weights."""
        if self._running is not None:
            self._running.cancel()
        self.predictor = self._batcher = self._running = None

    async def unload(self) -> None:
        """Stop when the requests that use the model are answered.

        Later requests begin another stay.
        """
        stay, self.stay = self.stay, None
        if stay is not None:
            await stay.is_unused.wait()
        self.stop()


class Models:
    """All models of a server.

    Args:
        paths: the model directories by name (in NFC), the default model first.
        load: loads a model directory.
        limits: limits of requests.
        memory_budget: bytes of weights in memory at once; 0 for no limit. Models are loaded one after
            the other, in the order of their first requests. If necessary, others are unloaded first:
            the least recently used ones without requests, then others, after answering their requests.
        precision: the precision in which `load` loads models that are not exported in int8.

    `limits` and `precision` are attributes, and so are the `metrics` and the `threads` of the server.

    Raises:
        BertieError: a directory is not a model directory.
        SettingsError: a model is larger than the budget.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        load: Callable[[Path], Predictor],
        limits: Limits,
        memory_budget: int = 0,
        precision: Precision = "float32",
    ) -> None:
        self.threads = RequestThreads(limits.max_waiting)
        self._models = {name: ServedModel(name, path, self.threads) for name, path in paths.items()}
        self.limits = limits
        self.precision = precision
        self.metrics = Metrics()
        self._load = load
        self._budget = memory_budget
        self._turns = Turns()
        self._loading = asyncio.Lock()  # first come, first served
        self._used: dict[str, None] = {}  # names of loaded models, the most recently used one last
        for model in self:
            if 0 < memory_budget < model.size:
                raise SettingsError(
                    f"--memory-budget {memory_budget / GIGABYTE:g}: the weights of {model.name} take "
                    f"{model.size / GIGABYTE:.2g} GB; raise the budget or serve other models"
                )

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def load_default(self) -> None:
        """Prepare the models before the server listens.

        Load the first model, verify the others, and compile the kernels.

        Raises:
            BertieError: a directory is damaged.
        """
        for model in self:
            if model is not self.default:  # `load` verifies the default model
                verify(model.path, weights=True)  # the other files, when their metadata was read
        self.default.predictor = self._load(self.default.path)
        _compute_once(self.default.predictor)  # the first time, compiling takes more than ten seconds
        self._used[self.default.name] = None

    @property
    def default(self) -> ServedModel:
        """The first model."""
        return next(iter(self))

    def find(self, name: str) -> ServedModel:
        """Return the model of a name, which may have a slash at its end, as addresses do.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        model = self._models.get(normalize("NFC", name).rstrip("/"))
        if model is None:
            raise ModelNotFoundError(name, self._models)
        return model

    async def describe_replaced(self, model: ServedModel) -> None:
        """Read a model's metadata again if its directory was replaced.

        This concerns models that are not loaded. A directory that cannot be read keeps its former
        description; loading it reports the error.
        """
        if model.predictor is not None or model.stay is not None:
            return
        with suppress(BertieError, OSError):
            if await asyncio.to_thread(_list_files, model.path) != model.files:
                model.describe(*await asyncio.to_thread(_read_directory, model.path))

    @asynccontextmanager
    async def use(self, model: ServedModel) -> AsyncIterator[ServedModel]:
        """Load a model if necessary, and keep it in memory inside the `with` statement.

        Raises:
            HTTPException: the directory is damaged (500).
        """
        if model.stay is None:
            model.stay = Stay(asyncio.create_task(self._start(model)))
            # If every client has gone, nobody else reads its exception, and asyncio would log it.
            model.stay.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        stay = model.stay
        with stay.joined():
            await asyncio.shield(stay.loading)  # a client that goes away does not stop it
            self._used[model.name] = self._used.pop(model.name)  # to the end
            yield model

    def stop(self) -> None:
        """Unload every model."""
        for model in self:
            model.stop()

    async def _start(self, model: ServedModel) -> None:
        """Begin a stay of a model, after the models that were asked for before it."""
        if model.predictor and not model.is_running:  # the first model, loaded before the server listens
            self._run(model, model.predictor)
            return
        async with self._loading:
            try:
                if model.stay and model.stay.users:  # otherwise its clients have gone meanwhile
                    # Before room is made, so that a damaged directory unloads no other model.
                    await self._describe(model)
                    await self._make_room(model)
                    begin = perf_counter()
                    self._run(model, await asyncio.to_thread(self._load, model.path))
                    self.metrics.loading.labels(model.name).observe(perf_counter() - begin)
            except BertieError as error:  # no fault of the request
                logger.error("%s: %s", model.name, error)
                raise HTTPException(
                    500, f"{model.name}: the model cannot be loaded; see the server's log"
                ) from None
            finally:
                if not model.is_running:
                    model.stay = None

    def _run(self, model: ServedModel, predictor: Predictor) -> None:
        model.start(predictor, self._turns, self.limits, self.metrics)
        self._used[model.name] = None

    async def _describe(self, model: ServedModel) -> None:
        """Read the metadata of a directory again.

        Raises:
            HTTPException: it now has a model with other methods, which the request does not fit (503).
        """
        methods = model.methods
        model.describe(*await asyncio.to_thread(_read_directory, model.path))
        if model.methods != methods:
            message = f"{model.name}: replaced by a model with other methods; send the request again"
            raise HTTPException(503, message, {"Retry-After": "1"})

    async def _make_room(self, model: ServedModel) -> None:
        """Unload models until another one fits."""
        if not self._budget:
            return
        if model.size > self._budget:  # a larger model has replaced it
            raise HTTPException(500, f"{model.name}: larger than --memory-budget; raise it")
        while sum(other.size for other in self._loaded()) + model.size > self._budget:
            # The first one without requests, or else the first one.
            oldest = min(self._loaded(), key=lambda other: other.stay is not None and other.stay.users > 0)
            await oldest.unload()
            del self._used[oldest.name]
            logger.warning("%s: unloaded, to load %s within --memory-budget", oldest.name, model.name)

    def _loaded(self) -> list[ServedModel]:
        """Return the loaded models, the least recently used one first."""
        return [self._models[name] for name in self._used]


def _compute_once(model: Predictor) -> None:
    """Compute one short record.

    Then no request waits until the kernels are compiled or loaded.
    """
    if model.method is None:
        model.embed([MASK])
        return
    fields = dict.fromkeys([*REQUIRED_FIELDS[model.method], *model.input_columns.keys() & {"pair"}])
    texts = tuple([MASK] if field == "endings" else MASK for field in fields)
    answer_records(model, [Record("", {}, texts)], top_k=1)


def _count_tokens(model: Predictor, records: Sequence[Record]) -> list[int]:
    """Return the number of tokens of the records of one request; see `Batcher`."""
    if records and isinstance(records[0].texts[0], EncodedText):
        return [len(record.texts[0].input_ids) for record in records]
    return count_tokens(model.tokenizer, records)


def _read_directory(path: Path) -> tuple[Files, ModelMetadata]:
    """Return the files and the metadata of a model directory."""
    files = _list_files(path)  # first, so that files that change meanwhile are read again
    return files, read_metadata(path)


def _list_files(path: Path) -> Files:
    """Return the identity of each file in a directory and its subdirectories."""
    found = ((file, file.stat()) for file in path.rglob("*") if file.is_file())
    return frozenset((str(file), stat.st_ino, stat.st_mtime_ns, stat.st_size) for file, stat in found)


def _weight_bytes(path: Path, is_exported: bool) -> int:
    """Return the size of the files of weights that the engine reads."""
    if is_exported:
        return sum(file.stat().st_size for file in path.glob(f"{ONNX_FILE}*"))
    folder = find_transformer_folder(path)
    for pattern in ("*.safetensors", "*.bin", "*.ckpt*"):  # in the order in which they are preferred
        if sizes := [file.stat().st_size for file in folder.glob(pattern)]:
            return sum(sizes)
    return 0  # loading reports missing files

"""Several models: chosen by name, loaded once on first use, unloaded to fit the memory budget."""

import asyncio
import gc
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.parse import quote

import huggingface_hub
import pytest
from starlette.exceptions import HTTPException
from tests.inference.server.serving import serving, serving_models
from tests.inference.small_models import MODELS, save_small

import bertie
from bertie.base.errors import ModelError, SettingsError
from bertie.commands.serve import name_models
from bertie.inference.export import export
from bertie.inference.server.info import describe_server
from bertie.inference.server.middleware import Limits
from bertie.inference.server.models import Models
from bertie.inference.server.openai import describe
from bertie.model.formats.onnx import Quantization

KINDS = ("encoder", "classifier", "masked LM")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    return {kind: save_small(directory, kind) for kind in KINDS}


class Loader:
    """Loads models, and records their names; the first load waits for `may_begin` if it is cleared."""

    def __init__(self):
        self.names, self.may_begin = [], Event()
        self.may_begin.set()

    def __call__(self, path):
        self.names.append(path.name)
        assert self.may_begin.wait(60)
        return bertie.load(path)


def run(paths, scenario, memory_budget=0):
    """Run `scenario(models, loader)`."""

    async def both():
        loader = Loader()
        models = Models(paths, loader, Limits(), memory_budget)
        try:
            await asyncio.wait_for(scenario(models, loader), 60)
        finally:
            models.stop()

    asyncio.run(both())


async def use(models, name):
    async with models.use(models.find(name)):
        pass


def test_concurrent_first_requests_load_a_model_once(paths):
    async def scenario(models, loader):
        loader.may_begin.clear()
        tasks = [asyncio.create_task(use(models, "encoder")) for _ in range(5)]
        await asyncio.sleep(0.05)  # the event loop is free meanwhile
        tasks[0].cancel()
        loader.may_begin.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * 4
        assert loader.names == ["encoder"]
        assert [model.predictor is not None for model in models] == [True, False, False]

    run(paths, scenario)


def test_damage_of_any_model_is_found_at_the_start(paths, tmp_path):
    damaged = save_small(tmp_path, "classifier")
    file = damaged / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    models = Models({"encoder": paths["encoder"], "classifier": damaged}, bertie.load, Limits())
    with pytest.raises(ModelError, match=r"model\.safetensors: does not match its checksum in SHA256SUMS"):
        models.load_default()


def test_the_least_recently_used_idle_model_is_unloaded(paths, caplog):
    async def scenario(models, loader):
        await use(models, "encoder")
        await use(models, "classifier")
        await use(models, "encoder")
        await use(models, "masked LM")
        assert [model.predictor is not None for model in models] == [True, False, True]
        async with models.use(models.find("encoder")):
            await use(models, "classifier")
            assert [model.predictor is not None for model in models] == [True, True, False]
        assert loader.names == ["encoder", "classifier", "masked LM", "classifier"]
        count = "bertie_model_load_duration_count"
        loads = {name: models.metrics.registry.get_sample_value(count, {"model": name}) for name in paths}
        assert loads == {"encoder": 1, "classifier": 2, "masked LM": 1}

    sizes = [path.joinpath("model.safetensors").stat().st_size for path in paths.values()]
    run(paths, scenario, memory_budget=sum(sizes) - min(sizes) // 2)
    assert caplog.messages == [
        "classifier: unloaded, to load masked LM within --memory-budget",
        "masked LM: unloaded, to load classifier within --memory-budget",
    ]


def test_models_that_are_in_use_make_room_in_the_order_of_requests(paths):
    """Each model has several clients who send one request after the other, and one model fits."""

    async def scenario(models, loader):
        served = dict.fromkeys(paths, 0)

        async def client(name):
            while min(served.values()) < 20:
                async with models.use(models.find(name)) as model:
                    await asyncio.sleep(0.001)
                    assert model.predictor
                    assert sum(other.predictor is not None for other in models) == 1
                    served[name] += 1

        await asyncio.gather(*(client(name) for name in paths for _ in range(4)))
        await asyncio.sleep(0)
        turns = [*paths] * (len(loader.names) // len(paths) + 1)
        assert loader.names == turns[: len(loader.names)]

    run(paths, scenario, memory_budget=largest(paths))


def test_a_model_answers_its_requests_before_it_is_unloaded(paths):
    """Requests that come after another model was asked for wait until their model is loaded again."""

    async def scenario(models, loader):
        encoder, answered = models.find("encoder"), []
        async with models.use(encoder):
            other = asyncio.create_task(use(models, "classifier"))
            other.add_done_callback(lambda _: answered.append("classifier"))
            while encoder.stay:
                await asyncio.sleep(0.01)
            later = asyncio.create_task(use(models, "encoder"))
            later.add_done_callback(lambda _: answered.append("encoder"))
            await asyncio.sleep(0.05)
            assert encoder.is_running
            assert not answered
        await asyncio.gather(other, later)
        assert answered == ["classifier", "encoder"]
        assert loader.names == ["encoder", "classifier", "encoder"]

    run(paths, scenario, memory_budget=largest(paths))


def test_a_model_whose_clients_have_gone_is_not_loaded(paths):
    async def scenario(models, loader):
        loader.may_begin.clear()
        first, gone = (asyncio.create_task(use(models, name)) for name in ("encoder", "classifier"))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.wait([gone])
        loader.may_begin.set()
        await first
        await use(models, "masked LM")
        assert loader.names == ["encoder", "masked LM"]
        await use(models, "classifier")

    run(paths, scenario)


def test_the_first_model_is_not_delayed_by_the_loading_of_another(paths):
    async def scenario(models, loader):
        models.load_default()
        loader.may_begin.clear()
        other = asyncio.create_task(use(models, "classifier"))
        await asyncio.sleep(0.05)
        await use(models, "encoder")
        assert not other.done()
        loader.may_begin.set()
        await other

    run(paths, scenario)


def test_busy_models_do_not_refuse_the_clients_of_another(predictors):
    """Eight clients keep one model busy; the clients of two others are answered, though one model fits."""
    kinds = ("encoder", "classifier", "regression")
    budget = largest({kind: predictors[kind].path for kind in kinds})
    done = Event()
    with serving(*(predictors[kind] for kind in kinds), memory_budget=budget) as served:

        def keep_busy():
            statuses = set()
            while not done.is_set():
                statuses.add(served.post("/models/encoder/embed", {"inputs": ["the cat"] * 8})[0])
            return statuses

        def ask(kind):
            return [served.post(f"/models/{kind}/embed", {"inputs": "a cat"})[0] for _ in range(5)]

        with ThreadPoolExecutor(10) as clients:
            busy = [clients.submit(keep_busy) for _ in range(8)]
            try:
                assert [*clients.map(ask, kinds[1:])] == [[200] * 5] * 2
            finally:
                done.set()
        assert [client.result() for client in busy] == [{200}] * 8


def test_a_request_that_waits_too_long_for_memory_fails_with_503(predictors):
    """A request that does not end keeps the only model that fits."""
    kinds = ("encoder", "classifier")
    budget = largest({kind: predictors[kind].path for kind in kinds})
    limits = Limits(request_seconds=0.5)
    with serving(*(predictors[kind] for kind in kinds), limits=limits, memory_budget=budget) as served:
        assert served.post("/models/encoder/embed", {"inputs": "a"})[0] == 200
        with served.models.find("encoder").stay.joined():
            response, content = served.send("POST", "/models/classifier/embed", {"inputs": "a"})
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert content == {
        "error": "not computed within 0.5 s; send fewer texts in a request, or retry later",
        "error_type": "Unhealthy",
    }


def test_a_failed_load_is_tried_again(paths, monkeypatch, caplog):
    async def scenario(models, loader):
        original = bertie.load

        def fail(path):
            raise ModelError(f"{path}/model.safetensors: damaged")

        monkeypatch.setattr(bertie, "load", fail)
        with pytest.raises(HTTPException, match="500: encoder: the model cannot be loaded"):
            await use(models, "encoder")
        assert "model.safetensors: damaged" in caplog.text
        monkeypatch.setattr(bertie, "load", original)
        await use(models, "encoder")

    run(paths, scenario)


def test_a_failed_load_without_clients_is_not_logged_twice(paths, monkeypatch, caplog):
    async def scenario(models, loader):
        def fail(path):
            raise ModelError(f"{path}/model.safetensors: damaged")

        monkeypatch.setattr(bertie, "load", fail)
        loader.may_begin.clear()
        client = asyncio.create_task(use(models, "encoder"))
        await asyncio.sleep(0.05)
        client.cancel()
        loader.may_begin.set()
        while models.find("encoder").stay:
            await asyncio.sleep(0.01)
        gc.collect()
        assert "model.safetensors: damaged" in caplog.text
        assert "never retrieved" not in caplog.text

    run(paths, scenario)


class Recording:
    """An engine that records the names of its methods that are used."""

    def __init__(self, engine):
        self.engine, self.used = engine, []

    def __getattr__(self, name):
        value = getattr(self.engine, name)
        if callable(value):
            self.used.append(name)
        return value


@pytest.mark.parametrize("kind", MODELS)
def test_the_default_model_computes_before_the_first_request(tmp_path, kind):
    path = save_small(tmp_path, kind)
    predictor = bertie.load(path)
    predictor.engine = Recording(predictor.engine)
    models = Models({kind: path}, lambda _: predictor, Limits())
    models.load_default()
    assert predictor.engine.used


def test_a_default_model_of_pairs_computes_a_pair(tmp_path):
    """A single text would be refused."""
    path = save_small(tmp_path, "classifier", input_columns={"text": "a", "pair": "b"})
    predictor = bertie.load(path)
    predictor.engine = Recording(predictor.engine)
    Models({"classifier": path}, lambda _: predictor, Limits()).load_default()
    assert "logits" in predictor.engine.used


def replace_with_classifier(directory, labels):
    """Put a classifier with other labels in the place of a model."""
    shutil.rmtree(directory)
    save_small(directory.parent / "new", "classifier", labels=labels).rename(directory)


def test_a_replaced_model_has_its_new_labels(paths, tmp_path):
    path = save_small(tmp_path, "classifier")

    async def scenario(models, loader):
        await use(models, "classifier")
        await use(models, "encoder")
        replace_with_classifier(path, ("x", "y", "z"))
        await use(models, "classifier")
        assert models.find("classifier").metadata.labels == ("x", "y", "z")

    run({"encoder": paths["encoder"], "classifier": path}, scenario, memory_budget=largest(paths))


def test_a_model_with_another_head_asks_for_another_request(paths, tmp_path):
    path = save_small(tmp_path, "encoder")

    async def scenario(models, loader):
        replace_with_classifier(path, ("x", "y", "z"))
        with pytest.raises(HTTPException, match="503: encoder: replaced by a model with other methods; send"):
            await use(models, "encoder")
        await use(models, "encoder")
        assert models.find("encoder").method == "classify"

    run({"masked LM": paths["masked LM"], "encoder": path}, scenario)


def test_requests_reach_a_model_that_was_replaced_before_its_first_use(paths, tmp_path, monkeypatch):
    path, row = save_small(tmp_path, "encoder"), {"inputs": "the [MASK] sat"}
    with serving(bertie.load(paths["classifier"]), bertie.load(path)) as served:
        monkeypatch.setattr(served.models, "_load", bertie.load)
        assert served.post("/models/encoder/predict", row)[0] == 424
        shutil.rmtree(path)
        save_small(tmp_path, "masked LM").rename(path)
        info = served.send("GET", "/info")[1]
        assert [model["method"] for model in info["models"]] == ["classify", "fill_mask"]
        shutil.rmtree(path)
        save_small(tmp_path, "tagger").rename(path)
        status, content = served.post("/models/encoder/predict", row)
        assert status == 200
        assert content["predictions"][0][0].keys() == {"label", "text", "start", "end", "score"}
        shutil.rmtree(path)  # the loaded model stays
        save_small(tmp_path, "masked LM").rename(path)
        assert served.post("/models/encoder/predict", row) == (200, content)


def test_a_broken_link_in_a_model_directory_is_ignored(tmp_path):
    path = save_small(tmp_path, "encoder")
    (path / "link").symlink_to(tmp_path / "nowhere")
    assert Models({"encoder": path}, bertie.load, Limits()).default.method is None


def test_requests_to_a_removed_model_report_that_it_cannot_be_loaded(paths, tmp_path, monkeypatch):
    path = save_small(tmp_path, "encoder")
    with serving(bertie.load(paths["classifier"]), bertie.load(path)) as served:
        monkeypatch.setattr(served.models, "_load", bertie.load)
        shutil.rmtree(path)
        assert served.send("GET", "/info")[1]["models"][1]["methods"] == ["embed", "attention"]
        assert served.post("/models/encoder/embed", {"inputs": "a"})[0] == 500


def test_a_model_that_a_larger_one_replaced_does_not_wait_for_room(paths, tmp_path):
    path = save_small(tmp_path, "encoder")

    async def scenario(models, loader):
        (path / "model.safetensors").write_bytes(bytes(2 * largest({"encoder": path})))
        with pytest.raises(HTTPException, match="500: encoder: larger than --memory-budget; raise it"):
            await use(models, "encoder")

    run({"encoder": path}, scenario, memory_budget=largest({"encoder": path}))


def test_a_removed_model_unloads_no_other_and_is_still_listed(paths, tmp_path):
    path = save_small(tmp_path, "encoder")

    async def scenario(models, loader):
        await use(models, "classifier")
        shutil.rmtree(path)
        with pytest.raises(HTTPException, match="500: encoder: the model cannot be loaded"):
            await use(models, "encoder")
        assert models.find("classifier").predictor
        assert describe(models.find("encoder"))["id"] == "encoder"

    run({"classifier": paths["classifier"], "encoder": path}, scenario, memory_budget=largest(paths))


def test_only_the_weights_that_are_read_count(paths, tmp_path):
    """model.safetensors is preferred to files of other formats."""
    path = save_small(tmp_path, "encoder")
    size = path.joinpath("model.safetensors").stat().st_size
    (path / "pytorch_model.bin").write_bytes(bytes(size))
    assert Models({"encoder": path}, bertie.load, Limits(), size).default.size == size
    with pytest.raises(
        SettingsError, match=r"the weights of encoder take .*; raise the budget or serve other"
    ):
        Models({"encoder": path}, bertie.load, Limits(), size - 1)


def test_a_server_that_stops_unloads_its_models(predictors):
    with serving(predictors["encoder"], predictors["classifier"]) as served:
        assert served.post("/embed", {"inputs": "a"})[0] == 200
    assert [(model.predictor, model.is_running) for model in served.models] == [(None, False)] * 2


def largest(paths):
    return max(path.joinpath("model.safetensors").stat().st_size for path in paths.values())


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [(Quantization(), "float32"), (Quantization(embeddings=True), "float32"), (Quantization(True), "int8")],
)
@pytest.mark.parametrize("kind", ["encoder", "classifier"])
def test_info_reports_the_precision_of_an_exported_model(paths, tmp_path, kind, quantization, dtype):
    """Also before the model is loaded."""
    export(paths[kind], tmp_path / "exported", quantization)
    models = Models({"exported": tmp_path / "exported"}, bertie.load, Limits())
    assert describe_server(models, models.default)["model_dtype"] == dtype


def test_a_model_larger_than_the_budget_is_rejected(paths):
    with pytest.raises(SettingsError, match=r"--memory-budget 1e-06: the weights of encoder take .*; raise"):
        Models(paths, bertie.load, Limits(), 1000)


def test_models_are_named_after_their_directories(tmp_path):
    (tmp_path / "a" / "model").mkdir(parents=True)
    (tmp_path / "b" / "model").mkdir(parents=True)
    a, b = tmp_path / "a" / "model", tmp_path / "b" / "model"
    with pytest.raises(SettingsError, match="another model is named 'model' too; name this one: ") as raised:
        name_models([str(a), str(b)])
    advice = str(raised.value).split(": ")[-1].replace("NAME", "other")
    assert name_models([str(a), advice]) == {"model": a, "other": b}
    with pytest.raises(SettingsError, match="cannot be part of a URL; name the model: NAME="):
        name_models([str(tmp_path / "50%")])
    with pytest.raises(SettingsError, match=f"cannot be part of a URL; name the model: NAME={a}$"):
        name_models([f"b?#%={a}"])


def test_a_name_may_have_slashes(tmp_path):
    model = tmp_path / "lr=1" / "model"
    model.mkdir(parents=True)
    assert name_models([f"BAAI/bge-small={model}", str(model)]) == {"BAAI/bge-small": model, "model": model}
    for name in ("BAAI/", "/bge", "a//b", "../b", "."):
        with pytest.raises(SettingsError, match=f"the name '{name}' cannot be part of a URL"):
            name_models([f"{name}={model}"])
    missing = f"{tmp_path}/lr=2/model"  # a path, and not a name before an equals sign
    assert name_models([missing]) == {"model": Path(missing)}


def test_requests_choose_a_model_whose_name_has_a_slash(predictors):
    paths = {f"org/{kind}": predictors[kind].path for kind in ("classifier", "encoder")}
    with serving_models(Models(paths, bertie.load, Limits())) as served:
        for body, address in (({"model": "org/encoder"}, ""), ({}, "/models/org/encoder")):
            status, content = served.post(f"{address}/v1/embeddings", {"input": "a cat", **body})
            assert (status, content["model"]) == (200, "org/encoder")
        for path in ("/models/org%2Fencoder/info", "/models/org/encoder/info"):
            assert served.send("GET", path)[1]["name"] == "org/encoder"
        assert served.send("GET", "/v1/models/org/encoder")[1]["id"] == "org/encoder"
        found = served.post("/models/org/classifier", {"inputs": "a cat"})
        assert found[0] == 200
        response, content = served.send("GET", "/models/org/encoder/v1/embeddings")
        assert (response.status, content["error"]["type"]) == (405, "invalid_request_error")
        for path in ("/models/encoder/embed", "/models/org/encoder/nowhere"):
            assert served.post(path, {"inputs": "a"})[0] == 404
        metrics = served.send_text("GET", "/metrics")[1]
    assert 'te_request_count{method="v1/embeddings",model="org/encoder"} 2.0' in metrics


@pytest.mark.parametrize("requested", ["caf\u00e9", "cafe\u0301", "caf\u00e9/"])
def test_a_request_may_write_the_name_in_another_way(predictors, requested):
    paths = name_models([f"cafe\u0301={predictors['classifier'].path}", str(predictors["encoder"].path)])
    with serving_models(Models(paths, bertie.load, Limits())) as served:
        address = f"/models/{quote(requested)}"
        assert served.post("/predict", {"inputs": "a cat", "model": requested})[0] == 200
        assert served.post(f"{address}/predict", {"inputs": "a cat", "model": "caf\u00e9"})[0] == 200
        assert served.post(address, {"inputs": "a cat"})[0] == 200
        status, content = served.post(f"{address}/predict", {"inputs": "a cat", "model": "encoder"})
        assert (status, content["error"][:16]) == (422, "model: 'encoder'")


def test_requests_choose_a_model(several, predictors):
    row = {"text": "the cat", "pair": "sat"}
    for path, body in (
        ("/models/regression/predict", {"inputs": [row]}),
        ("/predict", {"inputs": [row], "model": "regression"}),
    ):
        status, content = several.post(path, body)
        expected = predictors["regression"].regress("the cat", "sat")
        assert (status, content["predictions"]) == (200, [pytest.approx(expected, abs=1e-5)])
    for path, body in (("/models/x/embed", {"inputs": "a"}), ("/predict", {"inputs": "a", "model": "x"})):
        status, content = several.post(path, body)
        assert (status, content["error"].split(";")[0]) == (404, "model 'x': no such model")
    status, content = several.post("/models/regression/predict", {"inputs": [row], "model": "encoder"})
    assert (status, content["error"]) == (
        422,
        "model: 'encoder', but the address names 'regression'; omit one",
    )


def test_strings_for_a_classifier_may_name_the_model(several):
    by_address = several.post("/models/classifier/predict", {"inputs": "the cat"})
    assert by_address[0] == 200
    assert several.post("/predict", {"inputs": "the cat", "model": "classifier"}) == by_address


def test_without_a_name_the_first_able_model_answers(several, predictors):
    status, content = several.post("/next-sentence", {"inputs": [{"text": "a cat", "pair": "sat"}]})
    expected = predictors["pre-training"].next_sentence("a cat", "sat")
    assert (status, content["predictions"]) == (200, [pytest.approx(expected, abs=1e-5)])
    status, content = several.post("/next-sentence", {"inputs": {"text": " ", "pair": "sat"}})
    assert content == {"predictions": [None]}
    status, content = several.post("/models/tagger/next-sentence", {"inputs": [{"text": "a", "pair": "b"}]})
    assert (status, content["error"]) == (
        422,
        "tagger: the model does not support next_sentence; it supports: tag, embed, attention",
    )


def test_an_error_names_no_model_that_the_client_did_not_choose(predictors):
    with serving(predictors["tagger"], predictors["classifier"]) as served:
        for path, status in (("/next-sentence", 422), ("/rerank", 424)):
            found, content = served.post(path, {})
            assert found == status
            assert content["error"].startswith("no served model supports ")


def test_an_error_names_the_models_that_read_such_inputs(predictors, tmp_path):
    """Of a request that named no model, so that the first one answered."""
    singles = save_small(tmp_path / "singles", "regression", input_columns={"text": "a"})
    pairs = save_small(tmp_path / "pairs", "regression", input_columns={"text": "a", "pair": "b"})
    paths = {"tagger": predictors["tagger"].path, "singles": singles, "pairs": pairs}
    pair, single = {"text": "the cat", "pair": "sat"}, {"text": "the cat"}
    advice = "; name a model that reads such inputs in the key `model`: pairs"
    with serving_models(Models(paths, bertie.load, Limits())) as served:
        status, content = served.post("/predict", {"inputs": pair})
        assert (status, content["error"]) == (422, f"inputs.0.pair: unknown key{advice}")
        assert served.post("/predict", {"inputs": pair, "model": "pairs"})[0] == 200
        for path, body in (
            ("/predict", {"inputs": pair, "model": "tagger"}),
            ("/models/tagger/predict", {"inputs": pair}),
            ("/predict", {"inputs": single, "nonsense": 1}),
        ):
            status, content = served.post(path, body)
            assert status == 422
            assert content["error"].endswith(": unknown key")
    with serving_models(Models({"singles": singles, "pairs": pairs}, bertie.load, Limits())) as served:
        for inputs in ([pair], [[*pair.values()]]):
            status, content = served.post("/predict", {"inputs": inputs})
            assert status == 422
            assert "the model was fine-tuned on single texts" in content["error"]
            assert content["error"].endswith(advice)


def test_inference_client_calls_a_model_by_its_address(several, predictors):
    client = huggingface_hub.InferenceClient(model=f"{several.url}/models/tagger", timeout=60)
    text = "cats sat in Paris, on a mat"
    found = client.token_classification(text, aggregation_strategy="first")
    assert [item.word for item in found] == [entity.text for entity in predictors["tagger"].tag(text)]


def test_attention_returns_every_layer_and_head(several, predictors):
    status, content = several.post("/models/encoder/attention", {"inputs": {"text": "a cat", "pair": "sat"}})
    expected = predictors["encoder"].attention("a cat", "sat")
    assert (status, content["tokens"]) == (200, expected.tokens)
    assert content["token_type_ids"] == expected.token_type_ids
    for layer, probabilities in zip(content["attentions"], expected.probabilities, strict=True):
        assert layer == [[pytest.approx(row, abs=1e-4) for row in head] for head in probabilities.tolist()]
    status, content = several.post("/attention", {"inputs": "a " * 200})
    assert (status, content["error"]) == (413, "inputs: 202 tokens; send at most 128")

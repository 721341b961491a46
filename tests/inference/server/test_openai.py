"""OpenAI's API, with OpenAI's client."""

import base64

import numpy as np
import openai
import pytest


@pytest.fixture(scope="module")
def client(several):
    with openai.OpenAI(base_url=f"{several.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_embeddings_are_the_models(client, predictors, options):
    """The client asks for base64 unless told otherwise, and decodes it itself."""
    texts = ["the cat", "paris"]
    found = client.embeddings.create(model="encoder", input=texts, **options)
    vectors = [item.embedding for item in found.data]
    if options.get("encoding_format") == "base64":
        vectors = [np.frombuffer(base64.b64decode(row), "<f4") for row in vectors]
    np.testing.assert_allclose(vectors, predictors["encoder"].embed(texts, normalize=True), atol=1e-5)
    assert [item.index for item in found.data] == [0, 1]
    assert found.model == "encoder"
    assert found.usage.prompt_tokens == found.usage.total_tokens == 7


def test_a_null_encoding_format_is_the_default(several):
    bodies = [{"input": "the cat"}, {"input": "the cat", "encoding_format": None}]
    default, null = (several.post("/v1/embeddings", body) for body in bodies)
    assert default[0] == 200
    assert null == default


def test_token_ids_and_dimensions(client, predictors):
    ids = predictors["encoder"].tokenizer.encode("the cat").input_ids.tolist()
    for batch in (ids, [ids]):
        found = client.embeddings.create(model="encoder", input=batch, dimensions=4)
        vector = predictors["encoder"].embed("the cat")[:4]
        np.testing.assert_allclose(found.data[0].embedding, vector / np.linalg.norm(vector), atol=1e-5)


@pytest.mark.parametrize("base", ["", "/models/encoder"])
def test_the_base_url_may_lack_v1(several, predictors, base):
    """As in Text Embeddings Inference. Without OpenAI's format, the client would hide the message."""
    with openai.OpenAI(base_url=several.url + base, api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="encoder", input="the cat")
        np.testing.assert_allclose(
            found.data[0].embedding, predictors["encoder"].embed("the cat", normalize=True), atol=1e-5
        )
        with pytest.raises(openai.BadRequestError, match="`input` cannot be empty"):
            client.embeddings.create(model="encoder", input=[])


def test_models_are_listed(client, predictors):
    assert [model.id for model in client.models.list()] == [*predictors]
    assert client.models.retrieve("tagger").owned_by == "bertie"


def test_errors_have_openais_format(client):
    with pytest.raises(openai.NotFoundError, match="model 'gpt': no such model; served: encoder") as raised:
        client.embeddings.create(model="gpt", input="a")
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions: Not Found") as raised:
        client.chat.completions.create(model="encoder", messages=[])
    assert raised.value.code is None
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("gpt")
    assert raised.value.body["message"].startswith("model 'gpt': no such model; served: encoder")
    with pytest.raises(openai.BadRequestError, match="dimensions") as raised:
        client.embeddings.create(model="encoder", input="a", dimensions=17)
    assert raised.value.type == "invalid_request_error"


def test_errors_name_the_key_input(client):
    for value, message in [
        ([], "`input` cannot be empty"),
        ([[]], "`input` cannot be empty"),
        ([[1000]], "input: no token has the id 1000"),
        (["a"] * 33, "input: 33 items"),
    ]:
        with pytest.raises(openai.APIStatusError) as raised:
            client.embeddings.create(model="encoder", input=value)
        assert raised.value.body["message"].startswith(message)

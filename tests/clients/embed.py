"""Embed texts with one client, in the clients' own environment: embed.py URL CLIENT TEXT [TEXT …]."""

import json
import sys


def langchain(url: str, texts: list[str]) -> list[list[float]]:
    from langchain_openai import OpenAIEmbeddings

    # By default it sends token ids of OpenAI's own vocabulary, and 1,000 texts in a request.
    client = OpenAIEmbeddings(
        model="encoder",
        base_url=f"{url}/v1",
        api_key="none",
        check_embedding_ctx_length=False,
        chunk_size=32,
    )
    return [client.embed_query(texts[0]), *client.embed_documents(texts[1:])]


def llama_index_openai(url: str, texts: list[str]) -> list[list[float]]:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    client = OpenAILikeEmbedding(model_name="encoder", api_base=f"{url}/v1", api_key="none")
    return [client.get_query_embedding(texts[0]), *client.get_text_embedding_batch(texts[1:])]


def llama_index_tei(url: str, texts: list[str]) -> list[list[float]]:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(model_name="encoder", base_url=f"{url}/models/encoder")
    return [client.get_query_embedding(texts[0]), *client.get_text_embedding_batch(texts[1:])]


if __name__ == "__main__":
    url, name, *texts = sys.argv[1:]
    json.dump(globals()[name](url, texts), sys.stdout)

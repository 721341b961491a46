"""The server that people write first: sentence-transformers behind FastAPI, a peer of serving.py.

python benchmarks/sentence_transformers_server.py MODEL PORT
"""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()


class Request(BaseModel):
    inputs: str


@app.post("/embed")
def embed(request: Request) -> list[list[float]]:
    return model.encode([request.inputs]).tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")

"""Time `tokenizers` in the environment that runs this script; `tokenizer_peers.py` starts it.

    python benchmarks/next_tokenizers.py TOKENIZER.json TEXTS.json

TEXTS.json has lists of texts. The first line of stdout has the version. For each line of stdin, the next list
is encoded, and a line of stdout has the processor time and the time on the clock, in seconds. The first list
follows the last one.
"""

import json
import sys
import time
from itertools import cycle
from pathlib import Path

import tokenizers


def main(file: str, texts_file: str) -> None:
    peer = tokenizers.Tokenizer.from_file(file)
    lists = cycle(json.loads(Path(texts_file).read_text(encoding="utf-8")))
    encode = getattr(peer, "encode_batch_fast", None) or peer.encode_batch
    print(f"tokenizers {tokenizers.__version__}", flush=True)
    for _ in sys.stdin:
        texts = next(lists)
        clock, processor = time.perf_counter(), time.process_time()
        encode(texts)
        print(json.dumps([time.process_time() - processor, time.perf_counter() - clock]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

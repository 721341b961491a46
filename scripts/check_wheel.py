"""Try the built wheel as a user would: a new environment, an empty folder, no checkout.

    python scripts/check_wheel.py dist

Installs the only wheel in DIST with the extra `train`, learns a vocabulary, prepares a corpus, pre-trains for
a few steps, fills in a mask and imports the public API. Also checks that the sdist holds what a packager
needs to run the tests.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SDIST_FILES = ["pyproject.toml", "constraints.txt", "README.md", "LICENSE", "Makefile", "tests/conftest.py"]
TEXT = "The cat sat on the mat. The dog sat on the log. A bird flew over the house.\n" * 40
RECIPE = """
warmup_steps = 2
batch_size = 4
held_out_examples = 4
[[phases]]
steps = 4
max_seq_length = 32
[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 32
"""
IMPORTS = """
import sys, bertie
assert "site-packages" in bertie.__file__, bertie.__file__
assert "torch" not in sys.modules
for name in bertie.__all__:
    getattr(bertie, name)
print(bertie.load("run/model").fill_mask("the cat sat on the [MASK] .", top_k=1))
"""


def main(dist: Path) -> None:
    """Check the wheel and the sdist in `dist`."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := [name for name in SDIST_FILES if name not in names]:
        sys.exit(f"{sdist}: lacks {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        venv.create(environment, with_pip=True)
        python, bertie = environment / "bin" / "python", environment / "bin" / "bertie"
        work = Path(folder) / "work"
        (work / "text").mkdir(parents=True)
        for number in range(40):
            (work / "text" / f"{number}.txt").write_text(f"Document {number}. {TEXT}", encoding="utf-8")
        (work / "recipe.toml").write_text(RECIPE, encoding="utf-8")
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

        def run(*command: object) -> None:
            print("$", *command, flush=True)
            subprocess.run([str(part) for part in command], check=True, cwd=work, env=clean)

        run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel.resolve()}[train]")
        run(bertie, "vocab", "text", "--size", "150", "--out", "tokenizer")
        run(bertie, "prepare", "text", "--tokenizer", "tokenizer", "--held-out", "0.2", "--out", "corpus")
        run(bertie, "pretrain", "recipe.toml", "--corpus", "corpus", "--out", "run")
        run(bertie, "predict", "run/model", "--text", "the cat sat on the [MASK] .")
        run(python, "-c", IMPORTS)
    print(f"{wheel.name}: installs and runs without the checkout")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Make `bertie demo` take seconds, and its schedule independent of the speed of the machine.

`python -m tests.faults.small_demo ARGUMENTS` is `bertie ARGUMENTS` with this demo.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertie import recipes
from bertie.commands import demo, demo_report, documentation
from bertie.commands.documentation import Passage

RECIPE = {
    "batch_size": 4,
    "warmup_steps": 1,
    "log_every": 2,
    "evaluate_every": 2,
    "save_every": 1,
    "held_out_examples": 4,
    "device": "cpu",
    "phases": [{"steps": 2, "max_seq_length": 16}],
    "model": {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 64,
    },
}
PACKAGES, MODULES = 3, 30


def passages(workers: int) -> list[Passage]:
    """Return passages of some packages, each of which names its package."""
    text = "The module number {} of package{} opens the file, and closes it at the end."
    return [
        Passage(f"package{p}.module{m}", text.format(m, p) + " It is long enough to be labelled.")
        for p in range(PACKAGES)
        for m in range(MODULES)
    ]


def install() -> None:
    """Replace the demo's text, recipe and sizes in this process."""
    read_recipe, measure_scale = recipes.read_recipe, demo._measure_scale

    def read_small_recipe(name: str, *options: Any) -> Any:
        return RECIPE if name == "demo" else read_recipe(name, *options)

    def measure_but_keep_the_steps(settings: Any, out: Path, seconds: int) -> float:
        measure_scale(settings, out, seconds)
        return 1.0

    def check_nothing(outcome: Any, say: Any) -> None:
        pass

    def no_topics() -> dict[str, str]:
        return {}

    sizes: Sequence[tuple[str, int]] = (
        ("VOCABULARY_SIZE", 150),
        ("CALIBRATION_STEPS", 4),
        ("CLASSES", PACKAGES),
        ("LABELLED", 8),
        ("UNSEEN", 4),
        ("SEEDS", 2),
    )
    for name, size in sizes:
        setattr(demo, name, size)
    demo.HELD_OUT = 0.2
    demo._measure_scale = measure_but_keep_the_steps
    recipes.read_recipe = read_small_recipe
    demo_report.check = check_nothing  # whether pre-training won
    documentation.passages, documentation.topics = passages, no_topics


if __name__ == "__main__":
    from bertie.commands.main import main

    install()
    main()

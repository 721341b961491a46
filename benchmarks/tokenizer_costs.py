"""Measure the tokenizer in other languages, with two threads, and its memory for one string.

The other side of a row is bertie itself: with English, with one thread, or with the lines of the string.
"""

import random
import statistics
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bertie.base.environment import freed_memory_kept
from bertie.text.tokenizer import Tokenizer
from measure import LINEAR, UNCASED, Row, at_most, take_turns, use_cores
from tokenizer_peers import make_inputs

LINES = 4000  # of a language
WORDS = 40  # in a line

# Article 1 of the Universal Declaration of Human Rights.
DECLARATION = {
    "English": "All human beings are born free and equal in dignity and rights. They are endowed with reason "
    "and conscience and should act towards one another in a spirit of brotherhood.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und "
    "Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "Arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلًا وضميرًا وعليهم أن يعامل "
    "بعضهم بعضًا بروح الإخاء.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता "
    "प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें "
    "भाईचारे के भाव से बर्ताव करना चाहिए।",
    "Chinese": "人人|生而|自由|,|在|尊严|和|权利|上|一律|平等|。|"
    "他们|赋有|理性|和|良心|,|并|应以|兄弟|关系|的|精神|"
    "相|对待|。",
    "Japanese": "すべての|人間は|、|生まれながらにして|自由であり|、|かつ|、|"
    "尊厳と|権利とについて|平等である|。|人間は|、|理性と|良心とを|"
    "授けられており|、|互いに|同胞の|精神をもって|行動しなければならない|。",
}


def make_lines(sentence: str) -> list[str]:
    """Return lines of the words of a sentence, in random order. "|" divides words without spaces."""
    generator = random.Random(0)
    words, gap = (sentence.split("|"), "") if "|" in sentence else (sentence.split(" "), " ")
    return [gap.join(generator.choices(words, k=WORDS)) for _ in range(LINES)]


def compare_languages(tokenizer: Tokenizer, rounds: int) -> Iterator[Row]:
    """Compare the nanoseconds of a character with English."""
    texts = {language: make_lines(sentence) for language, sentence in DECLARATION.items()}

    def make_work(lines: list[str]) -> Callable[[], object]:
        return lambda: tokenizer.encode_batch(lines)

    # Otherwise the system takes up to half of the time, in some processes and for some languages, to provide
    # the memory of the result again.
    with freed_memory_kept():
        seconds = take_turns(
            {language: make_work(lines) for language, lines in texts.items()}, 2 * rounds + 1
        )
    costs = {
        language: [taken.processor / sum(map(len, texts[language])) * 1e9 for taken in seconds[language]]
        for language in texts
    }
    for language in list(texts)[1:]:
        yield at_most(
            f"tokenizer-{language.lower()}",
            f"a character of {language}, beside one of English",
            "English",
            "ns",
            costs[language],
            costs["English"],
            2.0,
        )


def compare_threads(tokenizer: Tokenizer, rounds: int) -> Row:
    """Compare two threads, each with half of the lines, with one: in time on the clock."""
    lines = make_inputs()["lines"]
    halves = [lines[::2], lines[1::2]]
    size = sum(len(line.encode()) for line in lines) / 1e6
    use_cores(2)
    with ThreadPoolExecutor(2) as pool:

        def encode_halves() -> None:
            for _ in pool.map(tokenizer.encode_batch, halves):
                pass

        def encode_all() -> None:
            tokenizer.encode_batch(lines)

        seconds = take_turns({"two": encode_halves, "one": encode_all}, 4 * rounds + 1)
    use_cores(1)
    two, one = ([taken.clock for taken in seconds[side]] for side in ("two", "one"))
    ratios = [b / a for a, b in zip(two, one, strict=True)]
    return Row(
        "tokenizer-threads",
        f"tokenize lines with two threads, {size:.1f} MB, time on the clock",
        "one thread",
        "MB/s",
        size / statistics.median(two),
        size / statistics.median(one),
        statistics.median(ratios),
        (min(ratios), max(ratios)),
        1.9,
        note="Both cores must be free of other programs.",
    )


def compare_memory(tokenizer: Tokenizer) -> Row:
    """Compare the peak memory for one string and for its lines. Both include the result."""
    inputs = make_inputs()
    size = len(inputs["string"][0].encode())
    peaks = {}
    for kind in ("string", "lines"):
        tracemalloc.start()
        tokenizer.encode_batch(inputs[kind])
        peaks[kind] = tracemalloc.get_traced_memory()[1] / size
        tracemalloc.stop()
    return at_most(
        "tokenizer-string-memory",
        f"peak memory to tokenize one string, {size / 1e6:.1f} MB, result included",
        "the same text as lines",
        "B/B",
        [peaks["string"]],
        [peaks["lines"]],
        LINEAR,
    )


def rows(rounds: int) -> Iterator[Row]:
    """Compare languages, threads, and the memory of one string."""
    tokenizer = Tokenizer.load(UNCASED)
    yield from compare_languages(tokenizer, rounds)
    yield compare_threads(tokenizer, rounds)
    yield compare_memory(tokenizer)

"""Settings: layers, validation with helpful errors, round trips through TOML."""

import contextlib
import copy
import math
from pathlib import Path
from typing import Any, ClassVar

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import SettingsError
from bertie.base.settings import (
    Seed,
    Settings,
    merge,
    parse_assignments,
    read_settings,
    read_toml,
    resolve,
    write_settings,
    write_toml,
)


class Optimizer(Settings):
    renamed: ClassVar = {"rate": "learning_rate"}

    learning_rate: float = 1e-4
    warmup_steps: int = pydantic.Field(default=10_000, ge=0)


class Phase(Settings):
    max_seq_length: int
    steps: int = 1


class Recipe(Settings):
    name: str = "base"
    seed: int = 0
    resume: bool = False
    note: str | None = None
    optimizer: Optimizer = Optimizer()
    teacher: Optimizer | None = None
    phases: tuple[Phase, ...] = ()
    tags: tuple[int, ...] = ()
    data_fingerprint: str = ""  # which a run fills in

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Recipe":
        if self.name == "impossible":
            raise ValueError("There is no such recipe")
        return self


def test_later_layers_win_and_defaults_fill_in() -> None:
    recipe = {"seed": 1, "optimizer": {"learning_rate": 3e-5, "warmup_steps": 5}}
    settings = resolve(Recipe, recipe, parse_assignments(["optimizer.learning_rate=2e-5", "name=tiny"]))
    assert settings == Recipe(name="tiny", seed=1, optimizer=Optimizer(learning_rate=2e-5, warmup_steps=5))


def test_assignment_cannot_use_a_value_as_a_section() -> None:
    with pytest.raises(SettingsError, match=r"--set a\.b=2: 'a' has a value already; remove one"):
        parse_assignments(["a=1", "a.b=2"])
    with pytest.raises(SettingsError, match=r"--set a=1: 'a' is a section here; remove one"):
        parse_assignments(["a.b=2", "a=1"])


class Finetuning(Settings):
    optimizer: Optimizer = Optimizer(warmup_steps=7)


class Search(Settings):
    finetuning: Finetuning = Finetuning()


def test_nested_defaults_survive_when_another_key_is_set() -> None:
    search = resolve(Search, parse_assignments(["finetuning.optimizer.learning_rate=2e-5"]))
    assert search.finetuning.optimizer == Optimizer(learning_rate=2e-5, warmup_steps=7)


def test_settings_are_immutable() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        Recipe().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("seed=7", {"seed": 7}),
        ("a.b.c=1e-4", {"a": {"b": {"c": 1e-4}}}),
        ("resume=true", {"resume": True}),
        ('name="7"', {"name": "7"}),
        ("name=plain words", {"name": "plain words"}),
        ("name = plain words ", {"name": "plain words"}),
        ("name=a=b", {"name": "a=b"}),
        ("name=", {"name": ""}),
        (" seed = 7", {"seed": 7}),
        ("phases=[{max_seq_length=128}]", {"phases": [{"max_seq_length": 128}]}),
    ],
)
def test_assignment_values_are_toml_or_strings(text: str, tree: dict[str, Any]) -> None:
    assert parse_assignments([text]) == tree


def test_assignments_merge_into_their_sections() -> None:
    assert parse_assignments(["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}
    for assignments in (["a.b=1", "a={c=2}"], ["a={c=2}", "a.b=1"]):
        assert parse_assignments(assignments) == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize("text", ["seed", "=7", ""])
def test_assignment_needs_a_key_and_an_equals_sign(text: str) -> None:
    with pytest.raises(SettingsError, match=r"expected KEY=VALUE"):
        parse_assignments([text])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"sede": 1}, "recipe.toml: unknown setting 'sede'; did you mean 'seed'?"),
        ({"seed": True}, "recipe.toml: seed = True: expected a number, not a flag"),
        (
            {"optimizer": {"learning_rate": False}},
            "recipe.toml: optimizer.learning_rate = False: expected a number, not a flag",
        ),
        (
            {"optimizer": {"learningrate": 1}},
            "recipe.toml: unknown setting 'optimizer.learningrate'; did you mean 'optimizer.learning_rate'?",
        ),
        (
            {"teacher": {"warmup": 1}},
            "recipe.toml: unknown setting 'teacher.warmup'; did you mean 'teacher.warmup_steps'?",
        ),
        (
            {"phases": [{"max_seq_length": 1}, {"max_seq_length": 1, "step": 1}]},
            "recipe.toml: unknown setting 'phases.1.step'; did you mean 'phases.1.steps'?",
        ),
        (
            {"optimizer": {"zzz": 1}},
            "recipe.toml: unknown setting 'optimizer.zzz'; the settings here are learning_rate, warmup_steps",
        ),
        ({"phases": [{}]}, "recipe.toml: 'phases.0.max_seq_length' is missing; add it"),
        (
            {"optimizer": {"warmup_steps": -1}},
            "recipe.toml: optimizer.warmup_steps = -1: expected a number greater than or equal to 0",
        ),
        (
            {"seed": "x"},
            "recipe.toml: seed = 'x': expected an integer",
        ),
        (
            {"learning_rate": 1},
            "recipe.toml: unknown setting 'learning_rate'; did you mean 'optimizer.learning_rate'?",
        ),
        (
            {"learning_rte": 1},
            "recipe.toml: unknown setting 'learning_rte'; did you mean 'optimizer.learning_rate'?",
        ),
        ({"lr": 1}, "recipe.toml: unknown setting 'lr'; did you mean 'optimizer.learning_rate'?"),
        (
            {"zzz": 1},
            "recipe.toml: unknown setting 'zzz'; the settings here are name, note, optimizer, phases, "
            "resume, seed, tags, teacher",
        ),
        ({"steps": 1}, "recipe.toml: unknown setting 'steps'; did you mean 'phases.0.steps'?"),
        ({"max_steps": 1}, "recipe.toml: unknown setting 'max_steps'; did you mean 'phases.0.steps'?"),
        ({"tags": 3}, "recipe.toml: tags = 3: expected a list; write [3]"),
        (
            {"phases": 3},
            "recipe.toml: phases = 3: expected a section; set a key in it, such as phases.0.max_seq_length",
        ),
        (
            {"optimizer": 3},
            "recipe.toml: optimizer = 3: expected a section; set a key in it, such as "
            "optimizer.learning_rate",
        ),
        ({"name": "impossible"}, "recipe.toml: there is no such recipe"),
    ],
)
def test_error_names_the_setting_and_the_remedy(layer: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        resolve(Recipe, layer, source="recipe.toml")
    assert str(raised.value) == message


class Limits(Settings):
    seed: Seed = 0
    limit: int | None = None


def test_seed_has_less_than_64_bits() -> None:
    for seed in (-(2**63), 2**63 - 1):
        assert resolve(Limits, {"seed": seed}).seed == seed
    for seed in (-(2**63) - 1, 2**63):
        with pytest.raises(SettingsError, match=f"seed = {seed}: use a seed of less than 64 bits"):
            resolve(Limits, {"seed": seed})


def test_flag_is_no_number_that_may_be_missing() -> None:
    with pytest.raises(SettingsError, match="limit = True: expected a number, not a flag"):
        resolve(Limits, {"limit": True})


class Schedule(Settings):
    decay_steps: int = 1


class Training(Settings):
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()


def test_same_name_in_another_section_is_nearer_than_a_similar_one() -> None:
    for unknown, nearest in {
        "warmup_steps": "optimizer.warmup_steps",
        "decay_step": "schedule.decay_steps",
    }.items():
        with pytest.raises(SettingsError, match=f"did you mean '{nearest}'"):
            resolve(Training, {"schedule": {unknown: 1}})


class Fractions(Settings):
    first: float = 0.5
    second: float = 0.5

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Fractions":
        if self.first + self.second > 1:
            raise ValueError("first and second exceed 1; lower one of them")
        return self


class Sampling(Settings):
    fractions: Fractions = Fractions()


def test_error_about_a_whole_section_does_not_print_it() -> None:
    with pytest.raises(SettingsError) as raised:
        resolve(Sampling, parse_assignments(["fractions.first=0.8"]))
    assert str(raised.value) == "settings: fractions: first and second exceed 1; lower one of them"


trees: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers() | st.lists(st.integers())),
    lambda inner: st.dictionaries(st.sampled_from("abc"), st.integers() | inner),
    max_leaves=8,
)


@given(trees, trees)
def test_merge_prefers_the_later_layer_and_changes_neither(first: Any, second: Any) -> None:
    before = copy.deepcopy((first, second))
    merged = merge(first, second)
    assert (first, second) == before
    assert merge(merged, second) == merged
    assert set(merged) == set(first) | set(second)
    for key, value in merged.items():
        if isinstance(value, dict) and isinstance(first.get(key), dict) and isinstance(second.get(key), dict):
            assert value == merge(first[key], second[key])
        else:
            assert value == second.get(key, first.get(key))


@given(trees)
def test_merged_tree_shares_no_section_with_its_layers(tree: Any) -> None:
    before = copy.deepcopy(tree)
    for value in merge(tree).values():
        if isinstance(value, dict):
            value["new"] = 1
    assert tree == before


recipes = st.builds(
    Recipe,
    name=st.text(st.characters(exclude_categories=["Cs"])).filter(lambda name: name != "impossible"),
    seed=st.integers(-(2**63), 2**63 - 1),
    resume=st.booleans(),
    note=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    optimizer=st.builds(Optimizer, learning_rate=st.floats(allow_nan=False)),
    teacher=st.none() | st.builds(Optimizer),
    phases=st.lists(st.builds(Phase, max_seq_length=st.integers(1, 512)), max_size=3).map(tuple),
)


@given(recipe=recipes)
def test_settings_round_trip_through_toml(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe) -> None:
    path = tmp_path_factory.getbasetemp() / "settings.toml"
    write_toml(path, recipe)
    assert resolve(Recipe, read_toml(path)) == recipe


def test_infinity_round_trips_through_toml(tmp_path: Path) -> None:
    write_toml(tmp_path / "s.toml", Optimizer(learning_rate=math.inf))
    assert resolve(Optimizer, read_toml(tmp_path / "s.toml")).learning_rate == math.inf


@given(recipe=recipes, place=st.integers(0), bit=st.integers(0, 7))
def test_settings_of_a_run_survive_no_flipped_bit(
    tmp_path_factory: pytest.TempPathFactory, recipe: Recipe, place: int, bit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "settings.toml"
    write_settings(path, recipe)
    assert resolve(Recipe, read_settings(path)) == recipe
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    with contextlib.suppress(SettingsError):
        assert resolve(Recipe, read_settings(path)) == recipe  # the flip is in the words before the checksum


def test_changed_settings_of_a_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    write_settings(path, Optimizer(learning_rate=0.25))
    path.write_text(path.read_text().replace("0.25", "0.5"))
    with pytest.raises(SettingsError, match=r"settings\.toml: changed since the run wrote it; restore it"):
        read_settings(path)
    path.write_text(path.read_text().partition("\n")[2])
    assert read_settings(path)["learning_rate"] == 0.5


def test_byte_order_mark_is_no_part_of_a_key(tmp_path: Path) -> None:
    """Windows' editor writes one."""
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfseed = 7\n")
    assert read_toml(tmp_path / "a.toml") == {"seed": 7}


def test_read_toml_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml: no such file"):
        read_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize("content", [b"seed = ", b"a = 1\na = 2", b'a = "\xff"'])
def test_read_toml_rejects_invalid_toml(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=r"broken\.toml: not valid TOML"):
        read_toml(tmp_path / "broken.toml")


@pytest.mark.parametrize("former", [{"rate": 0.5}, {"learning_rate": 0.5}])
def test_former_names_of_settings_load(former):
    expected = resolve(Recipe, {"optimizer": {"learning_rate": 0.5}})
    assert resolve(Recipe, {"optimizer": former}) == expected


def test_later_layer_wins_over_a_former_name():
    layers = {"optimizer": {"learning_rate": 0.1}}, {"optimizer": {"rate": 0.5}}
    assert resolve(Recipe, *layers).optimizer.learning_rate == 0.5
    assert resolve(Recipe, *reversed(layers)).optimizer.learning_rate == 0.1


def test_former_names_load_inside_lists_of_sections():
    class Phases(Settings):
        parts: tuple[Optimizer, ...] = ()

    assert resolve(Phases, {"parts": [{"rate": 0.5}, {}]}).parts[0].learning_rate == 0.5


class TwoPhases(Settings):
    phases: tuple[Phase, ...] = (Phase(max_seq_length=16), Phase(max_seq_length=64, steps=5))


@pytest.mark.parametrize("recipe", [{}, {"phases": [{"max_seq_length": 8}, {"max_seq_length": 9}]}])
def test_entry_of_a_list_can_be_changed(recipe: dict[str, Any]) -> None:
    changed = resolve(
        TwoPhases, recipe, parse_assignments(["phases.1.steps=7", "phases.1.max_seq_length=32"])
    )
    unchanged = resolve(TwoPhases, recipe)
    assert changed.phases == (unchanged.phases[0], Phase(max_seq_length=32, steps=7))


@pytest.mark.parametrize("index", ["1", 1])
def test_index_of_an_entry_may_be_an_integer(index: str | int) -> None:
    recipe = {"phases": [{"max_seq_length": 8}, {"max_seq_length": 9}]}
    for layers in ([], [recipe]):
        changed = resolve(TwoPhases, *layers, {"phases": {index: {"steps": 7}}})
        assert [phase.steps for phase in changed.phases] == [resolve(TwoPhases, *layers).phases[0].steps, 7]


def test_key_that_is_not_a_string_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"phases\.1\.2 = 2: keys should be strings"):
        resolve(TwoPhases, {"phases": {1: {2: 3}}})


def test_advice_about_a_list_of_sections_works() -> None:
    with pytest.raises(SettingsError, match=r"such as phases\.0\.max_seq_length") as raised:
        resolve(TwoPhases, parse_assignments(["phases.steps=7"]))
    key = str(raised.value).rpartition(" ")[2]
    assert resolve(TwoPhases, parse_assignments([f"{key}=7"])).phases[0].max_seq_length == 7


def test_entry_that_the_list_lacks_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"phases\.2: no such entry; the list has phases\.0, phases\.1"):
        resolve(TwoPhases, parse_assignments(["phases.2.steps=7"]))


def test_entries_with_former_names_can_be_changed() -> None:
    class Parts(Settings):
        parts: tuple[Optimizer, ...] = (Optimizer(),)

    assert resolve(Parts, {"parts": {"0": {"rate": 0.5}}}).parts[0].learning_rate == 0.5

"""Settings files shipped with the package.

There is one for each run, grid, table of the paper, and scale.
"""

import difflib
import re
from pathlib import Path
from typing import Literal, NamedTuple

from bertie.base.errors import SettingsError
from bertie.base.files import local_path
from bertie.base.settings import Tree, read_toml

FOLDER = Path(__file__).parent

RecipeKind = Literal["recipe", "grid", "table", "scale"]
# The commands that take a recipe of each kind; {} is its name.
USES: dict[RecipeKind, str] = {
    "recipe": "bertie pretrain {}",
    "grid": "bertie search --recipe {}",
    "table": "bertie reproduce {}",
    "scale": "bertie reproduce TABLE --scale {}",
}


class Recipe(NamedTuple):
    """A shipped settings file.

    Attributes:
        name: its name on the command line
        kind: what it configures: "recipe" (a pre-training run), "grid" (a search), "table"
            or "scale"
        description: one line: a table's title, and the first line of any other file
    """

    name: str
    kind: RecipeKind
    description: str


def list_recipes(kind: RecipeKind | None = None) -> list[Recipe]:
    """List the shipped recipes of a kind, or all of them, by name."""
    recipes = sorted(_describe(path) for path in FOLDER.glob("*.toml"))
    return [recipe for recipe in recipes if kind in (None, recipe.kind)]


def read_recipe(name: str, kind: RecipeKind = "recipe") -> Tree:
    """Read a recipe of a kind, by its name or by the path of a .toml file.

    Raises:
        SettingsError: there is none of this kind, or it is not TOML.
    """
    if name.endswith(".toml"):
        return read_toml(local_path(name))
    recipes = {recipe.name: recipe for recipe in list_recipes()}
    recipe = recipes.get(name)
    if recipe is None or recipe.kind != kind:
        known = [other.name for other in recipes.values() if other.kind == kind]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"choose one of {', '.join(known)}, or the path of a .toml file"
        if recipe is not None:
            hint = f"it is a {recipe.kind}; use it with `{USES[recipe.kind].format(name)}`"
        elif near:
            hint = f"did you mean {near[0]!r}?"
        raise SettingsError(f"no {kind} {name!r}; {hint}")
    return read_toml(_path(recipe))


def _path(recipe: Recipe) -> Path:
    prefix = "scale-" if recipe.kind == "scale" else ""
    return FOLDER / f"{prefix}{recipe.name}.toml"


def _describe(path: Path) -> Recipe:
    """Describe a shipped file.

    A table has rows; scales and grids have a prefix in their file names.
    """
    text = path.read_text(encoding="utf-8")
    title = re.search('^title = "(.*)"$', text, re.MULTILINE)
    description = title[1] if title else text.partition("\n")[0].removeprefix("# ")
    kind: RecipeKind = "recipe"
    if path.stem.startswith("scale-"):
        kind = "scale"
    elif path.stem.startswith("search"):
        kind = "grid"
    elif "[[rows]]" in text:
        kind = "table"
    return Recipe(path.stem.removeprefix("scale-"), kind, description)

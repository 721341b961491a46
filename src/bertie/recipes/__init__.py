"""Settings files shipped with the package, one a run."""

import difflib
from pathlib import Path

from bertie.base.errors import SettingsError
from bertie.base.settings import Tree, read_toml

FOLDER = Path(__file__).parent


def read_recipe(name: str) -> Tree:
    """A recipe by the path of a .toml file, or by the name of one that is shipped.

    Raises:
        SettingsError: there is none, or it is not TOML.
    """
    if name.endswith(".toml"):
        return read_toml(Path(name))
    known = sorted(path.stem for path in FOLDER.glob("*.toml"))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f"known: {', '.join(known)}, or the path of a .toml file"
        )
        raise SettingsError(f"no recipe {name!r}; {hint}")
    return read_toml(FOLDER / f"{name}.toml")

"""Parse the arguments of commands, with advice on wrong ones."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from bertie.base.settings import Settings
    from bertie.recipes import RecipeKind


# Words for the types of options' values, as typer calls them.
_TYPES = {
    "str": "TEXT",
    "list[str]": "TEXT",
    "int": "NUMBER",
    "int range": "NUMBER",
    "float": "NUMBER",
    "float range": "NUMBER",
}


class Command(TyperCommand):
    """A command that says which option or argument was probably meant."""

    options: ClassVar[dict[str, str]] = {
        "pretrain": "--corpus",
        "finetune": "--train",
        "search": "--train",
        "evaluate": "--model",
        "predict": "--text",
        "embed": "--text",
        "features": "--input",
        "export": "--onnx",
        "reproduce": "--model",
    }

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options without names of Python's types, which recent typer shows."""
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            parameters = [
                parameter for parameter in self.get_params(ctx) if parameter.param_type_name == kind
            ]
            records = [record for parameter in parameters if (record := parameter.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl([(_without_types(name, kind), help) for name, help in records])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; exit with status 2 if an argument is left over."""
        ctx.allow_extra_args = True
        try:
            extra = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            from bertie.base.schemas import describe_problem  # imports pydantic, which takes 0.1 s

            if error.message:  # it may be one of pydantic's; that of a missing option is empty
                error.message = describe_problem(error.message)
            raise
        except TyperException as error:
            if advice := self._advise(getattr(error, "option_name", "")):
                ctx.fail(advice)
            raise
        if extra:
            option = self.options.get(str(self.name))
            if option == "--train" and Path(extra[0]).is_dir():
                option = "--model"
            elif option == "--text" and Path(extra[0]).is_file():
                option = "--input"
            advice = f"; did you mean {option} {shlex.quote(extra[0])}?" if option else ""
            ctx.fail(f"unexpected argument {extra[0]!r}{advice}")
        return extra

    def _advise(self, option: str) -> str | None:
        """Return what to do instead of giving an unknown option, such as --learning-rate."""
        name = {"--model": "DIR", "--output": "OUT"}.get(option, option.removeprefix("--").upper())
        for parameter in self.params:
            shown = parameter.metavar or parameter.name
            if parameter.param_type_name == "argument" and shown.upper() == name:
                return f"{option}: this command takes {shown} without an option"
        if option == "--out" and self.name == "export":
            return "No such option: --out; name the output with --onnx or --openvino"
        section = _settings_section(str(self.name))
        if section is None:
            return None
        from bertie.base.settings import nearest_setting  # also imports pydantic

        setting = nearest_setting(section, (name.lower().replace("-", "_"),), cutoff=0.8)
        return f"No such option: {option}; did you mean --set {setting}=…?" if setting else None

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        An EOFError keeps its traceback, which typer would hide as "Aborted!".
        """
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise RuntimeError("unexpected end of a file") from error


class CommandWithRecipes(Command):
    """A command whose help ends with a list of the shipped recipes that it takes."""

    kinds: ClassVar[dict[str, "list[RecipeKind]"]] = {
        "pretrain": ["recipe"],
        "search": ["grid"],
        "reproduce": ["table", "scale"],
    }

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the name and the description of each recipe."""
        from bertie.recipes import list_recipes

        for kind in self.kinds[str(self.name)]:
            with formatter.section(f"{kind}s".capitalize()):
                formatter.write_dl([(recipe.name, recipe.description) for recipe in list_recipes(kind)])


def _without_types(name: str, kind: str) -> str:
    """Return the name of an argument or option with a word for the type of its values.

    Example:
        >>> _without_types("DIR <Path>", "argument"), _without_types("--top-k <int range>", "option")
        ('DIR', '--top-k NUMBER')
    """
    if kind == "argument":
        return re.sub(r" <[^<>]*>$", "", name)
    return re.sub(r"<([\w\[\] ]+)>$", lambda match: _TYPES.get(match[1], match[0]), name)


def _settings_section(command: str) -> "type[Settings] | None":
    """Return the class of the settings that --set changes."""
    if command == "pretrain":
        from bertie.training.pretraining_settings import PretrainingSettings

        return PretrainingSettings
    if command == "finetune":
        from bertie.training.finetuning_settings import FinetuningSettings

        return FinetuningSettings
    if command == "search":
        from bertie.training.search import SearchSettings

        return SearchSettings
    return None

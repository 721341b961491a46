"""`bertie`: reads the command line and hands over to one verb. Errors end here, as one line."""

import os
import sys

import typer

from bertie.base.errors import BertieError
from bertie.commands.demo import demo
from bertie.commands.doctor import doctor
from bertie.commands.predict import predict
from bertie.commands.prepare import prepare
from bertie.commands.pretrain import pretrain
from bertie.commands.tokenize import tokenize
from bertie.commands.vocab import vocab

app = typer.Typer(
    name="bertie",
    help="The whole of BERT, from raw text to a served model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in (vocab, prepare, pretrain, predict, tokenize, doctor, demo):
    app.command()(verb)


def main() -> None:
    """The entry point. Exits 0, 2 on an error the user can mend, 128 + n after the signal n."""
    # Beside other work on its processors, torch's threads would wait for each other by burning whole time
    # slices: steps of a small model took ten times as long (docs/decisions/threads.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        app()
    except BertieError as error:
        print(f"bertie: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()

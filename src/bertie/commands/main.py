"""`bertie`: reads the command line and hands over to one verb. Errors end here, as one line."""

import errno
import os
import sys

import typer

from bertie.base.errors import BertieError
from bertie.commands.convert import convert
from bertie.commands.demo import demo
from bertie.commands.doctor import EXTRAS, doctor
from bertie.commands.evaluate import evaluate
from bertie.commands.export import export
from bertie.commands.features import features
from bertie.commands.finetune import finetune
from bertie.commands.inspect import inspect
from bertie.commands.predict import predict
from bertie.commands.prepare import prepare
from bertie.commands.pretrain import pretrain
from bertie.commands.reproduce import reproduce
from bertie.commands.search import search
from bertie.commands.serve import serve
from bertie.commands.submission import submission
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
for verb in (
    vocab,
    prepare,
    pretrain,
    finetune,
    search,
    evaluate,
    predict,
    features,
    submission,
    tokenize,
    convert,
    export,
    serve,
    inspect,
    reproduce,
    doctor,
    demo,
):
    app.command()(verb)

_FREE_SPACE = "free some space and run the command again (pretrain: with --resume)"
_NO_PERMISSION = "no permission; name another place, or have the permissions changed"
_NO_FOLDER = "a file stands where a folder is needed; name another place"
# What the system may refuse without a fault of ours. Every other OSError keeps its traceback.
REFUSALS = {
    errno.ENOSPC: f"the disk is full; {_FREE_SPACE}",
    errno.EDQUOT: f"the disk quota is used up; {_FREE_SPACE}",
    errno.EFBIG: f"larger than a file may be here (`ulimit -f` says how large); {_FREE_SPACE}",
    errno.EROFS: "this file system is read-only; name another place",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EEXIST: _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    errno.ENAMETOOLONG: "no file can have so long a name; is a path missing before it?",
    errno.EIO: "the disk fails to read or write this; look at it, or use another one",
}


def main() -> None:
    """The entry point. Exits 0, 2 on an error the user can mend, 128 + n after the signal n."""
    # Beside other work on its processors, torch's threads would wait for each other by burning whole time
    # slices: steps of a small model took ten times as long (docs/decisions/threads.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Large tensors in large pages: a step of fine-tuning took 5 % less (docs/decisions/processors.md).
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        app()
    except BertieError as error:
        print(f"bertie: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        extra = EXTRAS[error.name]
        print(f"bertie: this needs {error.name}: pip install 'bertie[{extra}]'", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        place = f"{error.filename}: " if error.filename else ""  # writing to standard output names no file
        print(f"bertie: {place}{REFUSALS[error.errno]}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

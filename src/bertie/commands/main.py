"""The command line, with a module for each command.

Errors that a user can fix become one line here.
"""

import atexit
import errno
import gc
import os
import signal
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from types import FrameType
from typing import Any

import typer

from bertie.base.environment import install_command, let_main_process_report
from bertie.base.errors import BertieError, DataError, ModelError, SettingsError, escape_controls
from bertie.base.files import FULL_DISK
from bertie.commands.convert import convert
from bertie.commands.demo import demo
from bertie.commands.doctor import EXTRAS, doctor
from bertie.commands.embed import embed
from bertie.commands.evaluate import evaluate
from bertie.commands.export import export
from bertie.commands.features import features
from bertie.commands.finetune import finetune
from bertie.commands.inspect import inspect
from bertie.commands.options import Version
from bertie.commands.parsing import Command, CommandWithRecipes
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
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _main(version: Version = False) -> None:
    pass


for command in (
    vocab,
    prepare,
    pretrain,
    finetune,
    search,
    evaluate,
    predict,
    embed,
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
    app.command(cls=CommandWithRecipes if command in (pretrain, search, reproduce) else Command)(command)

_AGAIN = "run the command again"
_NO_PERMISSION = "permission denied; choose another path or change the permissions"
_FEW_FILES = "too many open files; allow more with `ulimit -n`, or use fewer workers"
_OUT_OF_MEMORY = "out of memory; free some, or use fewer workers or smaller batches"
# What torch, Python and the loader of libraries say when the memory, or its limit (`ulimit -v`), is too
# small.
_MEMORY_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "failed to map segment",
    "out of memory",
    "can't start new thread",
)
_NOT_A_FOLDER = "a file has the name of a folder that is needed; choose another path"
# Errors of the operating system that a user can fix. Every other OSError keeps its traceback.
SYSTEM_ERRORS = {
    errno.ENOENT: f"no such file or folder; if it was there before, {_AGAIN}",
    errno.ENOSPC: f"the disk is full; free some space and {_AGAIN}",
    errno.EDQUOT: f"the disk quota is used up; free some space and {_AGAIN}",
    errno.EFBIG: f"the file exceeds the size limit; raise it with `ulimit -f` and {_AGAIN}",
    errno.EROFS: "the file system is read-only; choose another path",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: "a folder has the name of a file that is needed; remove it or choose another path",
    errno.ELOOP: "a symbolic link leads to itself; fix or remove it",
    errno.ENAMETOOLONG: "the file name is too long; is a folder missing before it?",
    errno.EMFILE: _FEW_FILES,
    errno.ENFILE: _FEW_FILES,
    errno.ENOMEM: _OUT_OF_MEMORY,
    errno.EBUSY: "in use, perhaps as a mount point; choose another path",
    errno.EXDEV: "cannot be replaced, because it is on another file system; choose another path",
    errno.EIO: "the disk cannot read or write this file; check the disk or use another one",
}

# Functions whose callers, in compiled code, do not check for exceptions.
_UNCHECKED_FUNCTIONS = {
    "_numba_unpickle",  # in a kernel that returns arrays: an exception gives a SystemError, or a crash
    "_raw_object_cache_notify",  # these two while a kernel is loaded: llvmlite drops an exception
    "_raw_object_cache_getbuffer",
    "create_module",  # of an extension module, which may drop an exception that its imports raise
    "__del__",  # Python drops exceptions here, and in the next three, callbacks of weak references
    "cb",  # of importlib, for each imported module
    "remove",  # of WeakValueDictionary and WeakKeyDictionary
    "_remove",  # of WeakSet
}


def main() -> None:
    """Run the command line.

    Exit with 0, with 2 on an error that the user can fix, or with 128 + n after signal n. Like other
    programs, it counts as stopped by SIGPIPE if the reader of its output is gone (`bertie … | head`).
    """
    _prepare_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, _interrupt)
    atexit.register(gc.freeze)  # or Python searches all that was imported several times, which takes 0.3 s
    try:
        _check_current_folder()
        app()
    except BertieError as error:
        if isinstance(error, SettingsError | DataError | ModelError):
            let_main_process_report()
        print(f"bertie: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        command = install_command(EXTRAS[error.name])
        print(f"bertie: this needs {error.name}: {command}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # before a command runs; then typer handles it
        sys.exit(128 + signal.SIGINT)
    except SystemExit as exit:
        if isinstance(exit.__context__, BrokenPipeError):  # which typer handles, with exit status 1
            sys.exit(128 + signal.SIGPIPE)
        raise
    except (MemoryError, RuntimeError, ImportError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in _MEMORY_MESSAGES):
            raise
        print(f"bertie: {_OUT_OF_MEMORY}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if any(text in str(error) for text in _MEMORY_MESSAGES):  # while a shared library is loaded
            print(f"bertie: {_OUT_OF_MEMORY}", file=sys.stderr)
            sys.exit(2)
        if error.errno not in SYSTEM_ERRORS:
            raise
        # Standard output has no file name.
        location = escape_controls(f"{error.filename}: ") if error.filename else ""
        advice = SYSTEM_ERRORS[error.errno]
        if advice.endswith(_AGAIN) and any("--resume" in note for note in getattr(error, "__notes__", ())):
            advice += " with --resume"
        print(f"bertie: {location}{advice}", file=sys.stderr)
        sys.exit(2)


class _Log(FileIO):
    """Standard error, or a terminal under standard output.

    What is printed after the terminal was closed, to a log on a full disk, or to a file that is open only for
    reading, is lost, and the command continues.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EBADF, *FULL_DISK):
                raise
            return len(data)


def _prepare_streams() -> None:
    """Make standard error a stream if it is closed, and let no command stop because its log is lost.

    Characters that the encoding of standard output lacks are escaped, as on standard error.
    """
    if sys.stderr is None:  # as by `2>&-`
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and (stream.isatty() or stream is sys.__stderr__):
            log = BufferedWriter(_Log(stream.fileno(), "w", closefd=False))
            setattr(sys, name, TextIOWrapper(log, stream.encoding, stream.errors, line_buffering=True))
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _check_current_folder() -> None:
    """Raise DataError if the current folder was deleted.

    torch's libraries would stop the process.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise DataError("the current folder does not exist any more; change to another one") from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt on Ctrl-C.

    Below an unchecked function, wait for its end. Python runs this handler at the next Python instruction. If
    the signal arrives inside a kernel, that is the first one of `_numba_unpickle`.
    """
    _interrupt_outside_unchecked(frame)
    sys.setprofile(_interrupt_outside_unchecked)  # Python calls it at the next calls and returns


def _interrupt_outside_unchecked(frame: FrameType | None, *_: Any) -> None:
    caller = frame
    while caller is not None:
        if caller.f_code.co_name in _UNCHECKED_FUNCTIONS:
            return
        caller = caller.f_back
    sys.setprofile(None)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

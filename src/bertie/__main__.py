"""`bertie` and `python -m bertie`: the command line."""

import signal
import sys


def main() -> None:
    """Import and run the command line.

    Ctrl-C leaves no traceback, neither while it is imported nor while Python exits.
    """
    try:
        from bertie.commands.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:  # freeing a model and exiting take a while, in which Ctrl-C ends the process
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()

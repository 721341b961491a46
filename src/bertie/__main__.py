"""`bertie` and `python -m bertie`: the command line."""

import signal
import sys


def main() -> None:
    """Import and run the command line.

    Ctrl-C while it is imported leaves no traceback.
    """
    try:
        from bertie.commands.main import main as run
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    run()


if __name__ == "__main__":
    main()

"""`python -m bertie`: the command line."""

from bertie.commands.main import main

if __name__ == "__main__":
    main()

"""`python -m adaspec` is the `adaspec` command."""

from adaspec.cli.main import main

if __name__ == "__main__":
    main()

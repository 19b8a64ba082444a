"""`python -m adaspec` is the `adaspec` command."""

import sys

if __name__ == "__main__":
    try:
        from adaspec.cli.main import main

        main()
    except ModuleNotFoundError as error:
        sys.exit(
            f"adaspec: error: this Python lacks '{error.name}': use that of adaspec's environment"
        )

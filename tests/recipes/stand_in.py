"""A package that takes vLLM's place in processes whose path has its folder first."""


def write_stand_in(folder, code):
    """Write one whose command line runs this code."""
    cli = folder / "vllm" / "entrypoints" / "cli" / "main.py"
    cli.parent.mkdir(parents=True)
    for package in list(cli.parents)[:3]:
        (package / "__init__.py").touch()
    cli.write_text(code)

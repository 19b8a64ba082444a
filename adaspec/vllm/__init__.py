"""The only code that knows vLLM: plug-in entry, config translation, proposer."""

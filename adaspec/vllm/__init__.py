"""The only code that knows vLLM, such as the plug-in, the config translation and the drafters."""

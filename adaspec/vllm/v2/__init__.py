"""The plug-in on vLLM's model runner V2, which prepares a step while the last one runs."""

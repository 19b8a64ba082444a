"""vLLM's model runner V1, with synchronous scheduling."""

"""The application under observation: a gateway in front of retrieval, rerank, tools and an LLM engine."""

"""The application under observation: a gateway over retrieval, rerank, tools and an engine."""

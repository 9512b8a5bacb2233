"""One module per input format: `sniff(head)` knows it, `read(paths, ...)` reads it."""

"""One module per input format: `sniff(head)` recognises content, `read(paths, ...)` makes Tables."""

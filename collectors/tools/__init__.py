"""One module per tool: its commands, version and messages."""

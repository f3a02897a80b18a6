"""Pages in a format: terminal, Markdown, HTML, JSON."""

"""Page formats: terminal, Markdown, HTML, JSON."""

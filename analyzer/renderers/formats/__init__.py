"""Page formats: terminal, Markdown, JSON, JUnit."""

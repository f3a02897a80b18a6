"""Entry point of ``python -m kanalyze``."""

from kanalyze.cli import entry

if __name__ == "__main__":
    entry()

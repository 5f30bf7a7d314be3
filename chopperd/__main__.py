"""Runs the command line with ``python -m chopperd``; nothing else belongs here."""

from chopperd.cli import main

if __name__ == "__main__":
    main()

"""`python -m ullage` is `ullage`."""

from __future__ import annotations

from ullage.cli import main

if __name__ == "__main__":
    main()

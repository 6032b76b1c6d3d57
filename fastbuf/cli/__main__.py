"""``python -m fastbuf.cli``."""

from fastbuf.cli import main

main()

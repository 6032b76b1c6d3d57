"""``python -m fastbuf``: the ``fastbuf`` command."""

from fastbuf.cli import main

main()

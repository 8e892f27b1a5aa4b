"""`python -m cappronet.cli`."""

from cappronet.cli import main

main()

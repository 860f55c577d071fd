"""`python -m samovar.service.cli`."""

from samovar.service.cli.main import main

main()

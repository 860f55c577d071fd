"""What spark-submit runs: the samovar command, with its arguments."""

from samovar.service.cli import main

main()

"""What spark-submit runs: the samovar command, with its arguments."""

from samovar.service.cli.main import main

main()

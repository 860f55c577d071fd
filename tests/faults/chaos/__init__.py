"""`make chaos`: fault tests for hours, in rounds, so that it can be stopped at any moment and goes on."""

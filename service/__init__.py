"""What is deployed: the command line, the fraud and sessions services, HTTP, settings, metrics and access.

The top layer: it may import every other part, and no other part imports it.
"""

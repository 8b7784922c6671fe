"""Proves on a running stack that it does what its contract says. `python -m scripts.smoke --help`"""

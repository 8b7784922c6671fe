"""Stand-ins for inference engines, for the embedded cluster and the tests only.

Everything a container needs lies below this package and imports nothing else of the project; `weights` is the one
exception and belongs to the image builder and the tests.
"""

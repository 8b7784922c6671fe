"""Code of the Python models, copied into a repository as model.py. It runs inside Triton and is not imported here.

Triton starts each instance as a process of its own that ignores PYTHONPATH; a model finds its files beside itself.
"""

"""Stand-in for NVIDIA NIM containers of text embedding and reranking, 1.x and 2.x: `python -m local.engines.nim`.

It follows NVIDIA's pages and public reports; nobody has recorded a real one for this project. It computes with
all-MiniLM-L6-v2 on the CPU, by the code of the TEI stand-in. What is real, assumed and left out: docs/local-nim.md.
"""

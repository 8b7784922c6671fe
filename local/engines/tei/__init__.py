"""Stand-in for Hugging Face text-embeddings-router 1.9.3 (TEI), HTTP build: `python -m local.engines.tei`.

It computes with real all-MiniLM-L6-v2 weights on the CPU and answers as the recorded server did. What is real, what is
left out and what it claims for models whose weights are not here: docs/local-tei.md.
"""

#: What the recorded server reports (recording embed/02-info.json).
VERSION = "1.9.3"
GIT_SHA = "06670157fb6c1523482219bdb2d1660277d38088"

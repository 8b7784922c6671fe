"""Names under which the locally built images are imported into containerd.

``stand-in.local`` marks what stands in for something else; ``built.local`` what is the real program, built here.
No registry answers under either name, so a missing import fails at once instead of pulling something else.
"""

#: containerd's ``sandbox_image``. One static binary, local/toolchain/go/pause.
PAUSE = "built.local/pause:embedded"

#: CoreDNS from its own Go module. The binary is /coredns; it has no file capabilities, so a pod that is not root
#: has to listen on a port above 1024 (Service port 53 to that port).
COREDNS = "built.local/coredns:1.15.0"

#: The TEI stand-in (local/engines/tei) takes the official image's place under this repository, with the official tags.
TEI_REPOSITORY = "stand-in.local/huggingface/text-embeddings-inference"

#: Tag prefixes of the official image, one per GPU generation, and of the CPU builds. All of them name the one stand-in.
#: Source: docs/source/en/supported_models.md of text-embeddings-inference 1.9. A test compares with the plan.
TEI_PREFIXES = ("turing-", "", "86-", "89-", "hopper-", "100-", "120-", "121-", "cuda-", "cpu-", "cpu-arm64-")

#: The release whose recordings the stand-in is held to; a stack that pins another one has no image here.
TEI_VERSION = "1.9.3"

TEI_NAMES = tuple(f"{TEI_REPOSITORY}:{prefix}{TEI_VERSION}" for prefix in TEI_PREFIXES)

"""Environment variables that a stack file may not set for a NIM."""

from collections.abc import Collection, Iterable, Mapping

from infra.core.engines.nim.versions import Role, Version, name_of, variables

#: Never of use: name -> why.
_REFUSED = {
    "NGC_API_KEY": "It would stand readable in the pod; set the secret config key ngcApiKey.",
    "HF_TOKEN": "It would stand readable in the pod; set the secret config key huggingFaceToken.",
    "NIM_SERVER_PORT": "NIMs for LLMs read it; embedding and reranking NIMs do not, and probes would look elsewhere.",
    "NVIDIA_VISIBLE_DEVICES": "The device plugin sets it to the GPU that this pod was given.",
    "CUDA_VISIBLE_DEVICES": "A pod sees one GPU, the one it was given.",
}
#: Purposes that the contract has a word for.
_NAMES = {"model-name", "served-name"}


def faults(
    env: Mapping[str, str], planned: Collection[str], tag: str, version: Version, role: Role
) -> Iterable[tuple[str, str, str]]:
    """(name, allowed, why) of every variable of the stack file that cannot be deployed. No value is repeated."""
    known = variables()
    for name in env:
        rows = [row for row in known if row.name == name]
        if name in _REFUSED:
            yield name, "absent", _REFUSED[name]
        elif name in planned:
            yield name, "absent", "The plan sets it; use the workload's own key."
        elif rows and not any(row.holds(version) and role in row.roles for row in rows):
            now = name_of(rows[0].purpose, version, role)
            why = f"The {role} NIM {tag} does not read it."
            if any(row.before and not row.holds(version) for row in rows) and version >= (2, 1, 0):
                why += " From 2.1 on some retired names end the start."
            yield name, f"{now} in its place" if now and now not in planned else "absent", why
        elif rows and rows[0].purpose in _NAMES:
            yield name, "absent, or servedModelName", "Clients send the name that the contract says."

"""Where the secrets of the workloads come from, and what makes pods take a new value.

| source | new value | pods |
|---|---|---|
| Pulumi configuration | pulumi up | roll: the value makes a Secret of another name |
| existing Secret | whoever owns it | roll when `version` changes; a pod that restarts before has the new value |
| External Secrets | the store | roll when `version` changes: only then it is fetched, under another name |
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.core.credentials import API_KEY, HUB_TOKEN, NGC_KEY
from infra.core.engines.spec import SecretRef
from infra.core.errors import Refusal, quoted
from infra.core.plan.values import ExternalSecret
from infra.core.settings import SecretSource, Stack

#: Name of a secret in object names.
_SHORT = {API_KEY: "api-key", HUB_TOKEN: "hugging-face-token", NGC_KEY: "ngc-api-key"}


@dataclass(frozen=True)
class WorkloadSecrets:
    """Secrets of one workload that do not come from Pulumi's configuration, by the config key that they replace."""

    refs: Mapping[str, SecretRef]
    external: Mapping[str, ExternalSecret]
    versions: Mapping[str, str]

    def fetched(self, keys: Iterable[SecretRef]) -> tuple[ExternalSecret, ...]:
        """What External Secrets has to fetch for a pod that reads ``keys``."""
        wanted = set(keys)
        return tuple(self.external[key] for key, ref in self.refs.items() if key in self.external and ref in wanted)

    def versions_of(self, keys: Iterable[SecretRef]) -> str:
        """Versions of the existing Secrets among ``keys``, as text that changes with each of them."""
        wanted = set(keys)
        return ",".join(
            f"{key}={self.versions[key]}" for key, ref in self.refs.items() if key in self.versions and ref in wanted
        )


class SecretPlanner:
    """Reads ``stack.secrets`` and refuses what names no source, or two."""

    def __init__(self, stack: Stack, configured: Iterable[str], refusals: list[Refusal]) -> None:
        given = {
            API_KEY: stack.secrets.api_key,
            HUB_TOKEN: stack.secrets.hugging_face_token,
            NGC_KEY: stack.secrets.ngc_api_key,
        }
        self._sources = {key: source for key, source in given.items() if source is not None}
        self._stack = stack
        self._refusals = refusals
        for key, source in self._sources.items():
            self._check(f"secrets.{key}", source, stack)
            if key in set(configured):
                name = f"embedding-serving:{key}"
                why = f"The secret config key {name} is set too: pulumi config rm {name}"
                self._refuse(f"secrets.{key}", "a source", "absent, or no secret config key", why)

    def check_use(self) -> None:
        """A source that nobody reads is a mistake somewhere else: an engine without the key that was meant for it."""
        serving = self._stack.serving
        if API_KEY in self._sources and not any(workload.require_api_key for workload in serving):
            wanted = ", ".join(f"serving[{at}].requireApiKey" for at in range(len(serving)))
            why = f"No workload asks for a key: {wanted} would be true."
            self._refuse(f"secrets.{API_KEY}", "a source", "absent, or requireApiKey: true", why)

    def of(self, workload: str) -> WorkloadSecrets:
        """The secrets that workload ``workload`` could read."""
        refs: dict[str, SecretRef] = {}
        external: dict[str, ExternalSecret] = {}
        versions: dict[str, str] = {}
        for key, source in self._sources.items():
            if source.secret_name and source.key:
                refs[key] = SecretRef(source.secret_name, source.key)
                versions[key] = source.version
            elif source.store_name and source.remote_key:
                external[key] = _external(workload, key, source, source.store_name, source.remote_key)
                refs[key] = SecretRef(external[key].name, key)
        return WorkloadSecrets(refs, external, versions)

    def _refuse(self, path: str, given: object, allowed: str, why: str) -> None:
        self._refusals.append(Refusal(f"stack.{path}", quoted(given), allowed, why))

    def _check(self, path: str, source: SecretSource, stack: Stack) -> None:
        existing = {"secretName": source.secret_name, "key": source.key}
        stored = {"storeName": source.store_name, "remoteKey": source.remote_key, "property": source.property}
        if (source.secret_name is None) == (source.store_name is None):
            given = "neither" if source.secret_name is None else "both"
            why = "A secret comes from an existing Secret or from a store of External Secrets."
            self._refuse(path, f"{given} of secretName and storeName", "one of them", why)
            return
        needed, others, kind = (
            (("secretName", "key"), stored, "an existing Secret")
            if source.secret_name
            else (("storeName", "remoteKey"), existing, "a store of External Secrets")
        )
        for name in needed:
            if {**existing, **stored}[name] is None:
                self._refuse(f"{path}.{name}", None, "a name", f"{path}.{needed[0]} says {kind}: which secret of it?")
        for name, value in others.items():
            if value is not None:
                self._refuse(f"{path}.{name}", value, "absent", f"{path}.{needed[0]} says {kind}.")
        if source.store_name and stack.addons.external_secrets is None:
            why = f"{path}.storeName is read by External Secrets."
            self._refuse("addons.externalSecrets", None, "install, or existing", why)


def _external(workload: str, key: str, source: SecretSource, store: str, remote_key: str) -> ExternalSecret:
    parts = (source.store_kind, store, remote_key, source.property or "", source.version)
    # Other text, another name: pods of one generation never read two values, whenever they start.
    mark = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return ExternalSecret(
        name=f"{workload}-{_SHORT[key]}-{mark}",
        store_name=store,
        store_kind=source.store_kind,
        key=key,
        remote_key=remote_key,
        property=source.property,
    )

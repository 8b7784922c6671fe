"""The few calls to the cluster's API server that bringing it up needs."""

import http.client
import json
from typing import Any

import yaml

from local.cluster.config import API_PORT
from local.cluster.errors import ClusterError
from local.cluster.namespaces import Namespaces
from local.cluster.pki import Pki

FIELD_MANAGER = "embedding-serving-cluster"

#: Resource names of the kinds that manifests/ uses.
RESOURCES = {
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "Service": "services",
}


class Api:
    """Requests to the API server as administrator, from inside the cluster's network."""

    def __init__(self, namespaces: Namespaces, pki: Pki) -> None:
        self._namespaces = namespaces
        self._pki = pki

    def get(self, path: str) -> dict[str, Any] | None:
        """An object, or None when there is none. Raises ClusterError for any other answer."""
        status, body = self._request("GET", path)
        if status == 404:
            return None
        return self._checked(status, body, f"GET {path}")

    def merge(self, path: str, change: dict[str, Any]) -> dict[str, Any]:
        """A JSON merge patch."""
        content = json.dumps(change).encode()
        return self._checked(*self._request("PATCH", path, content, "application/merge-patch+json"), f"PATCH {path}")

    def apply(self, manifests: str) -> None:
        """Server-side apply of every document; the same twice changes nothing."""
        for document in yaml.safe_load_all(manifests):
            version, name = document["apiVersion"], document["metadata"]["name"]
            prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
            namespace = document["metadata"].get("namespace")
            scope = f"/namespaces/{namespace}" if namespace else ""
            path = f"{prefix}{scope}/{RESOURCES[document['kind']]}/{name}?fieldManager={FIELD_MANAGER}&force=true"
            content = json.dumps(document).encode()
            self._checked(*self._request("PATCH", path, content, "application/apply-patch+yaml"), f"apply {name}")

    def _request(self, method: str, path: str, body: bytes | None = None, content: str = "") -> tuple[int, bytes]:
        headers = {"Accept": "application/json"} | ({"Content-Type": content} if body else {})
        try:
            context = self._pki.admin_context()
            return self._namespaces.request(API_PORT, path, context, method=method, body=body, headers=headers)
        except ConnectionRefusedError as error:
            raise ClusterError("the API server does not answer") from error
        except (OSError, http.client.HTTPException) as error:
            raise ClusterError(f"the API server does not answer: {error}") from error

    @staticmethod
    def _checked(status: int, body: bytes, what: str) -> dict[str, Any]:
        if status >= 300:
            raise ClusterError(f"{what}: {status} {body.decode(errors='replace')[:300]}")
        answer: dict[str, Any] = json.loads(body)
        return answer

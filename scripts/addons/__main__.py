"""Writes infra/core/catalogue/addons/<name>/{crds.json,objects.yaml} from the Go modules of the operators.

Versions are those of local/toolchain/go/<name>/go.mod. CustomResourceDefinitions lose the descriptions of their
fields, which are most of their size and decide nothing. With --check nothing is written.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from infra.core import catalogue
from local import toolchain
from local.paths import CHECKOUT
from local.report import Reporter
from local.toolchain import golang
from local.toolchain.process import run_logged
from scripts import console
from scripts.command import CommandError, parser_of, run

FOLDER = CHECKOUT / "infra" / "core" / "catalogue" / "addons"
OWN = Path(__file__).parent

Object = dict[str, Any]

_EXAMPLE = """example:
  python -m scripts.addons
  python -m scripts.addons --check
"""

#: Kinds in the order in which they are needed; kinds that are not listed come last.
_ORDER = (
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
    "Service",
    "Deployment",
    "APIService",
    "ValidatingWebhookConfiguration",
)

#: Where a schema holds another one, or a list of them.
_SCHEMA, _SCHEMAS = ("items", "additionalProperties", "not"), ("allOf", "anyOf", "oneOf")


class Sources:
    """The modules of the operators on this machine, and kustomize."""

    def __init__(self, work: Path, reporter: Reporter) -> None:
        self._work = work
        self._kubectl = toolchain.ensure(["kubectl"], reporter)["kubectl"]

    def version(self, name: str) -> str:
        """Version of the add-on's program, as go.mod says it without its ``v``."""
        return golang.required_version(golang.MODULES / name, _MODULES[name]).removeprefix("v")

    def module(self, name: str) -> Path:
        """A writable copy of the module of an add-on."""
        target = self._work / name
        if not target.exists():
            # In a copy, because Go may write beside go.mod.
            module = Path(shutil.copytree(golang.MODULES / name, self._work / "go" / name))
            # Contents without modes: everything in Go's module cache is read-only.
            source = golang.module_dir(_MODULES[name], module, golang.go_environment(module), self._work / "go.log")
            shutil.copytree(source, target, copy_function=shutil.copyfile)
            for folder in (target, *target.rglob("*")):
                if folder.is_dir():
                    folder.chmod(0o755)
        return target

    def kustomize(self, folder: Path) -> list[Object]:
        """What ``kubectl kustomize`` makes of a folder. Raises ToolchainError."""
        out = self._work / "kustomized.yaml"
        run_logged(
            [self._kubectl, "kustomize", folder, "-o", out],
            what=f"kustomize of {folder.relative_to(self._work)}",
            log=self._work / "kustomize.log",
            server="kubectl",
        )
        return documents(out.read_text(encoding="utf-8"))


_MODULES = {
    "keda": "github.com/kedacore/keda/v2",
    "prometheus-operator": "github.com/prometheus-operator/prometheus-operator",
    "metrics-server": "sigs.k8s.io/metrics-server",
    "external-secrets": "github.com/external-secrets/external-secrets",
}


def _keda(sources: Sources) -> list[Object]:
    """config/default with the settings that `make release` of KEDA makes: image tags and the label with the version."""
    config, version = sources.module("keda") / "config", sources.version("keda")
    for part in ("manager", "metrics-server", "webhooks"):
        _replace(config / part / "kustomization.yaml", "newTag: main", f"newTag: {version}")
    labels = config / "default" / "kustomize-config" / "metadataLabelTransformer.yaml"
    _replace(labels, "app.kubernetes.io/version: main", f"app.kubernetes.io/version: {version}")
    made = sources.kustomize(config / "default")
    for container in _containers(made):
        # The tags are those of releases, so a restart need not ask the registry.
        container["imagePullPolicy"] = "IfNotPresent"
    return made


def _prometheus(sources: Sources) -> list[Object]:
    """bundle.yaml of the operator in a namespace of its own, and our Prometheus."""
    text = (sources.module("prometheus-operator") / "bundle.yaml").read_text(encoding="utf-8")
    namespace = catalogue.addons()["prometheus"].namespace
    made = documents(text)
    for one in made:
        for place in (one["metadata"], *one.get("subjects", ())):
            if place.get("namespace") == "default":
                place["namespace"] = namespace
    for container in _containers(made):
        # A Service of the kubelets in kube-system, which nobody here scrapes and which would outlive the operator.
        container["args"] = [argument for argument in container["args"] if not argument.startswith("--kubelet-")]
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, *made, *_own("prometheus")]


def _metrics_server(sources: Sources) -> list[Object]:
    made = sources.kustomize(sources.module("metrics-server") / "manifests" / "overlays" / "release")
    for container in _containers(made):
        # Upstream sets none. The requests are meant for clusters of up to 100 nodes; twice that is the limit.
        container["resources"]["limits"] = {"cpu": "1", "memory": "400Mi"}
    return made


def _external_secrets(sources: Sources) -> list[Object]:
    bundle = sources.module("external-secrets") / "deploy" / "crds" / "bundle.yaml"
    return [*documents(bundle.read_text(encoding="utf-8")), *_own("external-secrets")]


ADDONS: Mapping[str, Callable[[Sources], list[Object]]] = {
    "keda": _keda,
    "prometheus": _prometheus,
    "metrics-server": _metrics_server,
    "external-secrets": _external_secrets,
}


def documents(text: str) -> list[Object]:
    """The objects of a YAML text of several documents."""
    return [document for document in yaml.load_all(text, Loader=_Loader) if document]


def files(name: str, sources: Sources) -> dict[str, str]:
    """File name -> text of an add-on. Raises CommandError where the catalogue's row does not fit the objects."""
    made = ADDONS[name](sources)
    crds = [small(one) for one in made if one["kind"] == "CustomResourceDefinition"]
    others = sorted((one for one in made if one["kind"] != "CustomResourceDefinition"), key=_order)
    for one in others:
        if one["kind"] == "Namespace":
            one["metadata"].setdefault("labels", {})["pod-security.kubernetes.io/enforce"] = "restricted"
    row = catalogue.addons()[name]
    if (found := images(others)) != set(row.images):
        raise CommandError(f"addons.yaml: images of {name} are {sorted(row.images)}, its objects name {sorted(found)}")
    header = (
        f"# {row.name} {row.version}, from {row.source}\n# Written by python -m scripts.addons; changes are lost.\n"
    )
    body = yaml.dump_all(others, Dumper=_NoAliases, sort_keys=False, width=120, allow_unicode=True)
    return {
        "crds.json": "[\n" + ",\n".join(_line(one) for one in crds) + "\n]\n",
        "objects.yaml": header + body,
    }


def images(objects: Iterable[Object]) -> set[str]:
    """Every image that objects name, those included that an operator is told to use."""
    found = {one["spec"]["image"] for one in objects if one["kind"] == "Prometheus"}
    for container in _containers(objects):
        found.add(container["image"])
        arguments = (argument.partition("=") for argument in container.get("args", ()))
        found |= {value for flag, _, value in arguments if flag == "--prometheus-config-reloader"}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 1 when --check finds a file stale."""
    parser = parser_of("scripts.addons", __doc__, _EXAMPLE)
    parser.add_argument("--check", action="store_true", help="fail when a file is stale instead of writing it")
    check = parser.parse_args(arguments).check
    with console.reporter() as reporter, tempfile.TemporaryDirectory(prefix="addons-") as work:
        sources = Sources(Path(work), reporter)
        wanted = {FOLDER / name / file: text for name in ADDONS for file, text in files(name, sources).items()}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            print(f"error: {path.relative_to(CHECKOUT)} is stale: run python -m scripts.addons", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.relative_to(CHECKOUT)}")
    return 0


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads a plain ``=``, an enum value in the CRDs of Prometheus, as text, as Kubernetes does."""


_Loader.add_constructor("tag:yaml.org,2002:value", _Loader.construct_yaml_str)


class _NoAliases(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _own(name: str) -> list[Object]:
    return documents((OWN / f"{name}.yaml").read_text(encoding="utf-8"))


def _containers(objects: Iterable[Object]) -> Iterable[Object]:
    for one in objects:
        if one["kind"] == "Deployment":
            yield from one["spec"]["template"]["spec"]["containers"]


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    if old not in text:
        raise CommandError(f"{file.name} of this version has no {old!r}: see its Makefile, target release")
    file.write_text(text.replace(old, new), encoding="utf-8")


def _line(one: Object) -> str:
    return json.dumps(one, separators=(",", ":"), ensure_ascii=False)


def _order(one: Object) -> int:
    return _ORDER.index(one["kind"]) if one["kind"] in _ORDER else len(_ORDER)


def small(crd: Object) -> Object:
    """A CustomResourceDefinition without its status and without the descriptions in its schemas."""
    crd.pop("status", None)
    for version in crd["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"] = _undescribed(version["schema"]["openAPIV3Schema"])
    return crd


def _undescribed(schema: Any) -> Any:
    if not isinstance(schema, dict):  # additionalProperties may be true
        return schema
    made = {key: value for key, value in schema.items() if key != "description"}
    for key in _SCHEMA:
        if key in made:
            made[key] = _undescribed(made[key])
    for key in _SCHEMAS:
        if key in made:
            made[key] = [_undescribed(one) for one in made[key]]
    if "properties" in made:
        # Here keys are names of fields, one of which may be "description".
        made["properties"] = {name: _undescribed(one) for name, one in made["properties"].items()}
    return made


if __name__ == "__main__":
    sys.exit(run(main))

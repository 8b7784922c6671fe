"""Kinds of text that a stack file may hold, and the section that all parts of it are."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from infra.core import quantities


@dataclass(frozen=True)
class Text:
    """Text that matches ``pattern`` as a whole; ``words`` say in an error what is allowed."""

    pattern: str
    words: str
    longest: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{self.pattern}$", "maxLength": self.longest}

    def _check(self, text: str) -> str:
        if len(text) > self.longest or not re.fullmatch(self.pattern, text):
            raise ValueError(f"{self.words}, {self.longest} characters at most")
        return text


def _written(value: object) -> object:
    """YAML reads `cpu: 2` as a number where Kubernetes takes both."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


_PART = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
#: By the rule of container images: without a dot, a port or the name localhost it would be a folder of Docker Hub.
_HOST = r"([a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)+(:[0-9]{1,5})?|[a-z0-9][a-z0-9-]*:[0-9]{1,5}|localhost)"
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_FOLDERS = r"(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*"

#: A name that becomes a Kubernetes object name, with room for the suffixes that controllers add.
Name = Annotated[str, Text(r"[a-z]([-a-z0-9]*[a-z0-9])?", "a lower case letter, then letters, digits and -", 40)]
#: A namespace that is there, whoever named it.
NamespaceName = Annotated[str, Text(LABEL, "lower case letters, digits and -", 63)]
ObjectName = Annotated[str, Text(DOMAIN, "the name of a Kubernetes object: lower case letters, digits, - and .", 253)]
Cpu = Annotated[
    str, AfterValidator(quantities.check_cpu), BeforeValidator(_written, json_schema_input_type=int | float | str)
]
Bytes = Annotated[
    str, AfterValidator(quantities.check_memory), BeforeValidator(_written, json_schema_input_type=int | str)
]
LabelKey = Annotated[
    str, Text(rf"({DOMAIN}/)?{_PART}", "a label key: an optional domain and /, then letters, digits, -, _ and .", 253)
]
LabelValue = Annotated[str, Text(rf"({_PART})?", "a label value: letters, digits, -, _ and .", 63)]
Labels = dict[LabelKey, LabelValue]
Printable = Annotated[str, Text(r"[^\x00-\x1f\x7f\ud800-\udfff]+", "text without control characters", 253)]
Token = Annotated[str, Text(r"[!-~]+", "printable ASCII without spaces", 253)]
HubId = Annotated[
    str,
    # An absolute path that does not exist is taken for a hub id and asked for at the hub (recordings, start cases).
    Text(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", "a hub id such as BAAI/bge-m3, no path", 200),
]
Revision = Annotated[str, Text(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "a commit, tag, branch or ref such as refs/pr/4", 200)]
Host = Annotated[str, Text(_HOST, "a registry host such as ghcr.io or localhost:5000, without https://", 253)]
Repository = Annotated[
    str, Text(_HOST + _FOLDERS, "a registry host and folders such as registry.acme.com/ghcr, without https://", 253)
]
AppImage = Annotated[
    str,
    Text(
        _HOST + _FOLDERS.removesuffix("*") + r"+(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?",
        "a registry host, a name and a version or digest, such as ghcr.io/acme/rag-api:1.4.2",
        400,
    ),
]
HttpPath = Annotated[str, Text(r"/[!-~]*", "a path such as /ready", 253)]
EnvName = Annotated[str, Text(r"[A-Z_][A-Z0-9_]*", "upper case letters, digits and _", 100)]
EnvValue = Annotated[
    str, Text(r"[^\x00-\x08\x0b-\x1f\x7f]*", "text without control characters; numbers and true in quotes", 4096)
]


AddonMode = Literal["install", "existing"]

#: Replicas that one workload may have.
MOST_REPLICAS = 1000


class Section(BaseModel):
    """A part of the stack file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=False, strict=True
    )

"""TEI's gRPC interface: names and numbers on the wire, written down as tables; messages are made from them at import.

For the stand-in's gRPC server and for the smoke test's client. Read in huggingface/text-embeddings-inference:
proto/tei.proto (03614792), router/src/grpc/server.rs (265deb2a); grpc.health.v1 as in grpc/grpc-proto. The file itself
is not carried here, and no code generator is needed. docs/local-tei.md says what was compared with what.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "tei.v1"
HEALTH_PACKAGE = "grpc.health.v1"

#: "name:type", numbered from 1 as they stand; "?" marks presence (proto3 `optional`), "*" a list.
_FIELDS = {
    PACKAGE: {
        "InfoRequest": "",
        "InfoResponse": "version:string sha:string? docker_label:string? model_id:string model_sha:string? "
        "model_dtype:string model_type:ModelType max_concurrent_requests:uint32 max_input_length:uint32 "
        "max_batch_tokens:uint32 max_batch_requests:uint32? max_client_batch_size:uint32 tokenization_workers:uint32",
        "Metadata": "compute_chars:uint32 compute_tokens:uint32 total_time_ns:uint64 tokenization_time_ns:uint64 "
        "queue_time_ns:uint64 inference_time_ns:uint64",
        # Release 1.9 normalizes unless told otherwise (pull request 810): absent differs from false. The field
        # `dimensions` of newer releases is left out, because its number was not read.
        "EmbedRequest": "inputs:string truncate:bool normalize:bool? truncation_direction:TruncationDirection "
        "prompt_name:string?",
        "EmbedResponse": "embeddings:float* metadata:Metadata",
        "EmbedSparseRequest": "inputs:string truncate:bool truncation_direction:TruncationDirection "
        "prompt_name:string?",
        "SparseValue": "index:uint32 value:float",
        "EmbedSparseResponse": "sparse_embeddings:SparseValue* metadata:Metadata",
        "EmbedAllRequest": "inputs:string truncate:bool truncation_direction:TruncationDirection prompt_name:string?",
        "TokenEmbedding": "embeddings:float*",
        "EmbedAllResponse": "token_embeddings:TokenEmbedding* metadata:Metadata",
        "PredictRequest": "inputs:string truncate:bool raw_scores:bool truncation_direction:TruncationDirection",
        "PredictPairRequest": "inputs:string* truncate:bool raw_scores:bool truncation_direction:TruncationDirection",
        "Prediction": "score:float label:string",
        "PredictResponse": "predictions:Prediction* metadata:Metadata",
        "RerankRequest": "query:string texts:string* truncate:bool raw_scores:bool return_text:bool "
        "truncation_direction:TruncationDirection",
        "RerankStreamRequest": "query:string text:string truncate:bool raw_scores:bool return_text:bool "
        "truncation_direction:TruncationDirection",
        "Rank": "index:uint32 text:string? score:float",
        "RerankResponse": "ranks:Rank* metadata:Metadata",
        "EncodeRequest": "inputs:string add_special_tokens:bool prompt_name:string?",
        "SimpleToken": "id:uint32 text:string special:bool start:uint32? stop:uint32?",
        "EncodeResponse": "tokens:SimpleToken*",
        "DecodeRequest": "ids:uint32* skip_special_tokens:bool",
        "DecodeResponse": "text:string",
    },
    HEALTH_PACKAGE: {
        "HealthCheckRequest": "service:string",
        "HealthCheckResponse": "status:ServingStatus",
    },
}

#: Values from 0 as they stand.
_ENUMS = {
    PACKAGE: {
        "ModelType": "MODEL_TYPE_EMBEDDING MODEL_TYPE_CLASSIFIER MODEL_TYPE_RERANKER",
        "TruncationDirection": "TRUNCATION_DIRECTION_RIGHT TRUNCATION_DIRECTION_LEFT",
    },
    HEALTH_PACKAGE: {"ServingStatus": "UNKNOWN SERVING NOT_SERVING SERVICE_UNKNOWN"},
}

#: "method request response", "+" in front of what is a stream.
_METHODS = {
    "tei.v1.Info": ["Info InfoRequest InfoResponse"],
    "tei.v1.Embed": [
        "Embed EmbedRequest EmbedResponse",
        "EmbedStream +EmbedRequest +EmbedResponse",
        "EmbedSparse EmbedSparseRequest EmbedSparseResponse",
        "EmbedSparseStream +EmbedSparseRequest +EmbedSparseResponse",
        "EmbedAll EmbedAllRequest EmbedAllResponse",
        "EmbedAllStream +EmbedAllRequest +EmbedAllResponse",
    ],
    "tei.v1.Predict": [
        "Predict PredictRequest PredictResponse",
        "PredictPair PredictPairRequest PredictResponse",
        "PredictStream +PredictRequest +PredictResponse",
        "PredictPairStream +PredictPairRequest +PredictResponse",
    ],
    "tei.v1.Rerank": [
        "Rerank RerankRequest RerankResponse",
        "RerankStream +RerankStreamRequest RerankResponse",
    ],
    "tei.v1.Tokenize": [
        "Tokenize EncodeRequest EncodeResponse",
        "TokenizeStream +EncodeRequest +EncodeResponse",
        "Decode DecodeRequest DecodeResponse",
        "DecodeStream +DecodeRequest +DecodeResponse",
    ],
    "grpc.health.v1.Health": [
        "Check HealthCheckRequest HealthCheckResponse",
        "Watch HealthCheckRequest +HealthCheckResponse",
    ],
}

_FIELD = re.compile(r"(?P<name>\w+):(?P<type>\w+)(?P<mark>[?*]?)")
_Type = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Type.TYPE_STRING,
    "bool": _Type.TYPE_BOOL,
    "float": _Type.TYPE_FLOAT,
    "uint32": _Type.TYPE_UINT32,
    "uint64": _Type.TYPE_UINT64,
}


@dataclass(frozen=True)
class Method:
    """A method of a service; `request` and `response` are protobuf message classes."""

    service: str
    name: str
    request: Any
    response: Any
    request_stream: bool
    response_stream: bool

    @property
    def path(self) -> str:
        """What clients call: "/tei.v1.Embed/Embed"."""
        return f"/{self.service}/{self.name}"


def describe(package: str) -> Any:
    """The tables of a package as a protobuf FileDescriptorProto."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, values in _ENUMS[package].items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for name, fields in _FIELDS[package].items():
        message = file.message_type.add(name=name)
        for number, match in enumerate(_FIELD.finditer(fields), 1):
            field = message.field.add(name=match["name"], number=number)
            field.label = _Type.LABEL_REPEATED if match["mark"] == "*" else _Type.LABEL_OPTIONAL
            if match["type"] in _SCALARS:
                field.type = _SCALARS[match["type"]]
            else:
                field.type = _Type.TYPE_ENUM if match["type"] in _ENUMS[package] else _Type.TYPE_MESSAGE
                field.type_name = f".{package}.{match['type']}"
            if match["mark"] == "?":
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{match['name']}")
    return file


def _classes() -> dict[str, Any]:
    # A pool of its own: other packages of the process may hold the same names, made from the real files.
    pool = descriptor_pool.DescriptorPool()
    classes: dict[str, Any] = {}
    for package, messages in _FIELDS.items():
        pool.Add(describe(package))
        for name in messages:
            classes[name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
    return classes


def _method(service: str, line: str) -> Method:
    name, request, response = line.split()
    return Method(
        service=service,
        name=name,
        request=MESSAGES[request.lstrip("+")],
        response=MESSAGES[response.lstrip("+")],
        request_stream=request.startswith("+"),
        response_stream=response.startswith("+"),
    )


#: Message classes by name; the names of both packages differ.
MESSAGES: Mapping[str, Any] = _classes()
#: Methods by path.
METHODS: Mapping[str, Method] = {
    method.path: method for service, lines in _METHODS.items() for method in (_method(service, line) for line in lines)
}

"""What a stack file can say about a NIM workload."""

from typing import Annotated, Literal

from pydantic import Field

from infra.core.settings import (
    MOST_REPLICAS,
    Cache,
    EnvName,
    EnvValue,
    HubId,
    Name,
    Resources,
    Section,
    Text,
    Token,
)


class NimWorkload(Section):
    """An NVIDIA NIM for text embedding or reranking behind a Service."""

    name: Name
    engine: Literal["nim"]
    model: HubId = Field(description="Model that NVIDIA ships as a NIM, such as nvidia/nv-embedqa-e5-v5")
    pool: Name
    version: Token | None = Field(default=None, description="Tag of this model's image; default: newest for the GPU")
    digest: Annotated[str, Text("sha256:[0-9a-f]{64}", "sha256: and 64 hexadecimal digits", 71)] | None = Field(
        default=None, description="Digest of the image"
    )
    weights: Literal["ngc", "huggingFace"] = Field(
        default="ngc", description="Where 2.x downloads weights; decides which key the pods get"
    )
    served_model_name: Token | None = Field(default=None, description="Model name that clients send")
    replicas: int = Field(default=1, ge=0, le=MOST_REPLICAS)
    performance: Literal["latency", "throughput"] | None = Field(default=None, description="Default: that of the image")
    max_batch_size: int | None = Field(default=None, ge=1, le=1024, description="Texts that a batch may hold")
    max_queue_size: int | None = Field(default=None, ge=1, le=65_536, description="2.x: waiting requests; more get 503")
    longest_request_seconds: int | None = Field(default=None, ge=1, le=3600, description="What a request may take")
    startup_seconds: int | None = Field(
        default=None, ge=1, le=7200, description="Download, engine build and load, after the image is there"
    )
    resources: Resources = Field(default_factory=Resources)
    cache: Cache = Field(default_factory=Cache)
    env: dict[EnvName, EnvValue] = Field(
        default_factory=dict, description="Further environment variables; none that the plan sets itself"
    )

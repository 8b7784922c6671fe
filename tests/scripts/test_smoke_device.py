"""The device line of TEI's log: the CPU lines as recorded, the CUDA ones as in backends/candle/src/lib.rs."""

import pytest

from scripts.smoke.cluster import device_line
from scripts.smoke.results import NotProvenError, UnmetError

pytestmark = pytest.mark.core

READY = (
    "INFO text_embeddings_router::http::server: router/src/http/server.rs:1880: Starting HTTP server: 0.0.0.0:8080\n"
)
CPU = "INFO text_embeddings_backend_candle: backends/candle/src/lib.rs:299: Starting Bert model on Cpu\n"
CUDA = "INFO text_embeddings_backend_candle: Starting FlashBert model on Cuda(CudaDevice(DeviceId(1)))\n"
FALLBACK = "WARN text_embeddings_backend_candle: Using CPU instead\n"


def test_a_start_on_cuda_is_proven_in_text_and_in_json() -> None:
    device_line("pod", CUDA + READY)
    device_line("pod", '{"level":"INFO","message":"Starting FlashBert model on Cuda(CudaDevice(DeviceId(1)))"}')


@pytest.mark.parametrize("log", [CPU + READY, FALLBACK + CPU + READY, FALLBACK + CUDA + READY])
def test_case_10_a_word_of_the_cpu_fails(log: str) -> None:
    with pytest.raises(UnmetError, match="pod says"):
        device_line("pod", log)


def test_a_start_without_a_device_fails() -> None:
    with pytest.raises(UnmetError, match="does not say"):
        device_line("pod", READY)


def test_a_log_without_its_start_proves_nothing() -> None:
    with pytest.raises(NotProvenError, match="no longer holds the start"):
        device_line("pod", "INFO embed: Success\n")

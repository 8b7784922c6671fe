"""Recorded answers of a real text-embeddings-router 1.9.3 (tests/data/tei-1.9.3), and what of them is not replayed."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data" / "tei-1.9.3"


def load(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def expanded(value: Any) -> Any:
    """A recorded body with its cut strings and lists written out."""
    if isinstance(value, dict):
        if cut := value.get("_string"):
            return _repeated(cut)
        return {key: expanded(item) for key, item in value.items()}
    if isinstance(value, list):
        items: list[Any] = []
        for item in value:
            if isinstance(item, dict) and "_more_items" in item:
                items += [items[-1]] * item["_more_items"]
            else:
                items.append(expanded(item))
        return items
    return value


def _repeated(cut: dict[str, Any]) -> str:
    shown: str = cut["first40"]
    period = next(size for size in range(1, 41) if all(shown[i] == shown[i % size] for i in range(40)))
    text: str = (shown[:period] * (cut["len"] // period + 1))[: cut["len"]]
    assert text.endswith(cut["last20"])
    return text


def request_body(request: dict[str, Any]) -> bytes | None:
    """The bytes that were sent; their number was recorded and has to come out the same."""
    if "raw" in request:
        return str(request["raw"]).encode()
    if "body" not in request:
        return None
    separators = (",", ":") if request.get("compact") else None
    body = json.dumps(expanded(request["body"]), separators=separators).encode()
    assert len(body) == request["bytes"]
    return body


#: Recordings that a named test replays (file: test function); all others come through index.json or start-cases.json.
SCENARIOS = {
    "auth/log.txt": "test_log_lines_are_the_recorded_ones",
    "auth/odd-keys.json": "test_an_odd_api_key_is_never_met",
    "embed/notes-openai-base64.json": "test_base64_vectors_are_little_endian_floats",
    "embed/openapi-summary.json": "test_the_api_description_names_the_recorded_paths",
    "embed/port-9000.json": "test_the_prometheus_port_does_not_answer",
    "embed/raw-wire-embed-head.txt": "test_headers_come_in_the_recorded_order",
    "health/flood-4.json": "test_few_health_checks_wait_and_succeed",
    "health/flood-20.json": "test_a_flood_of_health_checks_is_answered_or_aborts_the_server",
    "health/flood-100.json": "test_a_flood_of_health_checks_is_answered_or_aborts_the_server",
    "health/flood-threshold.json": "test_a_batch_that_meets_a_full_channel_aborts_the_process",
    "health/latency-under-load.json": "test_health_waits_behind_the_running_batch_and_info_does_not",
    "inference-failure/log.txt": "test_failed_inference_is_logged_as_recorded",
    "metrics/00-before-any-inference.json": "test_metrics_are_empty_before_the_first_inference",
    "metrics/00-before-any-inference.txt": "test_metrics_are_empty_before_the_first_inference",
    "metrics/01-after-one-embed.txt": "test_metrics_after_one_request_are_the_recorded_ones",
    "metrics/02-after-all-embed-recordings.txt": "test_all_metric_names_types_and_labels_are_recorded_ones",
    "metrics/10-reranker-before.txt": "test_metrics_are_empty_before_the_first_inference",
    "metrics/11-reranker-after-one.txt": "test_all_metric_names_types_and_labels_are_recorded_ones",
    "metrics/12-reranker-after-all.txt": "test_all_metric_names_types_and_labels_are_recorded_ones",
    "metrics/http10-head.txt": "test_http_1_0_is_answered_as_recorded",
    "metrics/names.json": "test_all_metric_names_types_and_labels_are_recorded_ones",
    "metrics/negotiation-plain.json": "test_a_prometheus_scraper_gets_the_same_text",
    "metrics/negotiation-prometheus-accept.json": "test_a_prometheus_scraper_gets_the_same_text",
    "overload/20-concurrent-singles.json": "test_of_twenty_concurrent_inputs_four_are_served",
    "overload/21-mixed.json": "test_a_saturated_server_refuses_inputs_and_answers_everything_else",
    "overload/22-client-disconnect.json": "test_permits_come_back_when_clients_go_away",
    "overload/log-tail.txt": "test_a_saturated_server_refuses_inputs_and_answers_everything_else",
    "queue/disconnected-clients.json": "test_inputs_of_gone_clients_are_counted_until_a_batch_is_taken",
    "queue/gauge-versus-429.json": "test_a_saturated_server_refuses_inputs_and_answers_everything_else",
    "queue/minilm-1-client.json": "test_one_client_sees_an_empty_queue_and_two_takes_per_request",
    "queue/minilm-8-clients.json": "test_the_gauge_counts_what_is_neither_running_nor_prefetched",
    "queue/minilm-64-clients.json": "test_the_gauge_counts_what_is_neither_running_nor_prefetched",
    "queue/minilm-64-clients-mcr-16.json": "test_a_saturated_server_refuses_inputs_and_answers_everything_else",
    "queue/one-list-of-32.json": "test_a_list_of_32_drains_by_batches_of_four",
    "shutdown/sigint-in-flight.json": "test_a_signal_lets_requests_finish",
    "shutdown/sigterm-during-load-pid1.json": "test_as_pid_1_sigterm_is_ignored_before_ready",
    "shutdown/sigterm-during-load.json": "test_sigterm_ends_a_process_that_is_not_ready",
    "shutdown/sigterm-idle.json": "test_a_signal_lets_requests_finish",
    "shutdown/sigterm-in-flight.json": "test_a_signal_lets_requests_finish",
    "shutdown/sigterm-stalled-client.json": "test_a_stalled_client_keeps_the_process_alive",
    "startup/before-ready-timeline.json": "test_the_port_is_bound_only_when_ready",
    "startup/embed-default-timeline.json": "test_the_port_is_bound_only_when_ready",
    "startup/flags.json": "test_flags_variables_and_defaults_are_the_recorded_ones",
    "startup/log-classifier-with-pooling.txt": "test_log_lines_are_the_recorded_ones",
    "startup/log-json.txt": "test_json_log_lines_are_the_recorded_ones",
    "startup/log-reranker.txt": "test_log_lines_are_the_recorded_ones",
    "startup/log-text.txt": "test_log_lines_are_the_recorded_ones",
    "startup/version.txt": "test_the_version_is_the_recorded_one",
}

#: Recordings without a test, and why.
LEFT_OUT = {
    "health/kubelet-like-probes.json": "timeouts against batches of 5-9 s: numbers of the recording machine; that "
    "/health waits for the batch is tested by latency-under-load",
    "health/probes-with-timeouts.json": "the same race as the floods, reached in minutes of load",
    "overload/abort-flood.json": "12 520 aborted requests in 8 s: a load test; counters of gone clients are tested "
    "by queue/disconnected-clients",
    "overload/small-mcr-stress.json": "24 000 requests to show that the server survives: a load test",
    "metrics/20-during-load.txt": "a sample of metrics/02 under load, nothing of its own",
    "startup/help.txt": "descriptions of the flags are the router's own text and are not carried",
    "startup/help-short.txt": "as startup/help.txt",
}

#: Start configurations that are not replayed, and why.
START_CASES_LEFT_OUT = {
    "dtype-default-this-build": "float16 by default is an artefact of the recorded build (its note); the stand-in "
    "reports float32 as the official CPU image does",
    "model-not-local-no-network": "the stand-in serves this id with MiniLM weights and never downloads",
    "model-dir-missing-abs": "a download that fails; the stand-in refuses the id in one line "
    "(test_an_unknown_model_is_refused_in_one_line)",
}

#: Parts of recorded answers that are not compared, and why. Keys are folders, or files.
NOT_COMPARED = {
    "values of vectors and scores of": {
        "classifier": "random weights of the recording are not carried; shapes, order and labels are compared",
        "rerank": "as classifier",
        "inference-failure": "as classifier",
        "overload": "as classifier",
    },
    "counts of te_batch_next_size and te_batch_next_tokens of": {
        "lists": "how a list falls into batches depends on when each input was tokenized, here as there; the recorded "
        "counts lie between n/4 + 1 and 2 n, which is asserted",
    },
    "split into failures and successes of": {
        "inference-failure/05-embed-list-one-bad.json": "depends on the batches, as above; their sum is compared",
    },
    "body of": {
        "embed/95-docs-slash.json": "Swagger's page; a page of its own says stand-in",
        "auth/25-none-get-docs-.json": "as embed/95",
        "auth/26-none-get-api-doc-openapi.json.json": "paths and status codes are compared with openapi-summary",
        "embed/96-metrics.json": "totals after the recorder's own further requests; names and types are compared",
        "rerank/34-metrics.json": "as embed/96",
    },
}

"""What operators see: metrics, health, reflection, info, and the command line of the daemon."""

import json
import os
import shutil
import socket
import subprocess

import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from conftest import BIN_DIR, MODEL, ROOT, refused, run, wait_until

SERVICES = ("kvblend.v1.Inference", "kvblend.v1.Chunks", "kvblend.v1.Admin")


def test_metrics_pass_promtool(server):
    promtool = shutil.which("promtool")
    assert promtool, "promtool (of Debian's package prometheus) is needed"
    status, body = server.http("/metrics")
    assert status == 200
    check = subprocess.run([promtool, "check", "metrics"], input=body, text=True, capture_output=True, check=False)
    assert check.returncode == 0 and not check.stderr.strip(), check.stdout + check.stderr


def test_names_of_vllm_are_documented(server):
    status, body = server.http("/metrics/vllm")
    names = {line.split()[2] for line in body.splitlines() if line.startswith("# TYPE")}
    assert status == 200 and len(names) > 15
    listed = (ROOT / "docs/metrics.md").read_text()
    assert {name for name in names if f"`{name}`" not in listed} == set()


def test_tokens_of_cancelled_answers_are_counted(v1, server, prompt):
    def counted():
        return server.metrics()["kvblend_generation_tokens_total"]

    server.wait_until_idle()
    before = counted()
    stream = server.inference.Generate(v1.GenerateRequest(prompt=prompt, sampling={"max_tokens": 1500, "ignore_eos": True}))
    read = 0
    while read < 5:
        read += len(next(stream).text.token_ids)
    stream.cancel()
    server.wait_until_idle()
    assert before + read <= counted() < before + 1500


def test_metrics_move_as_they_should(v1, server, prompt, stored):
    server.wait_until_idle()
    before = server.metrics()
    report, _, _, finished = server.generate(v1.GenerateRequest(
        namespace=stored, prompt=prompt, sampling={"max_tokens": 5, "ignore_eos": True}))
    server.wait_until_idle()
    after = server.metrics()

    def moved(name):
        return after[name] - before.get(name, 0)

    assert moved("kvblend_time_to_first_token_seconds_count") == 1
    assert moved("kvblend_time_to_first_token_seconds_sum") == pytest.approx(report.time_to_first_token_seconds)
    assert moved("kvblend_e2e_request_latency_seconds_sum") == pytest.approx(finished.timings.total_seconds)
    assert moved("kvblend_time_per_output_token_seconds_count") == 1
    for source in ("exact", "reused", "recomputed", "computed"):
        assert moved(f'kvblend_prompt_tokens_total{{source="{source}"}}') == getattr(report, f"{source}_tokens")
    assert moved("kvblend_generation_tokens_total") == 5
    assert moved("kvblend_chunk_lookups_total") == 3
    assert moved('kvblend_chunk_hits_total{source="exact",tier="host_memory"}') == 1
    assert moved('kvblend_chunk_hits_total{source="blended",tier="host_memory"}') == 2
    assert moved('kvblend_recompute_ratio_count{policy="query"}') == 1
    assert moved('kvblend_requests_finished_total{reason="max_tokens"}') == 1
    assert moved('kvblend_grpc_calls_total{code="OK",method="Generate",service="Inference"}') == 1
    assert after["kvblend_store_entries"] >= 3
    assert 0 < after["kvblend_store_bytes"] <= after["kvblend_store_budget_bytes"] == 256 << 20
    assert after["kvblend_ready"] == 1
    assert any(name.startswith("kvblend_build_info{") for name in after)

    deleted = server.chunks.Delete(v1.DeleteChunksRequest(namespace=stored, all=True)).deleted
    assert deleted >= 3
    assert server.metrics()["kvblend_store_entries"] == after["kvblend_store_entries"] - deleted


def test_http_pages(server):
    assert server.http("/healthz") == (200, "ok\n")
    assert server.http("/readyz") == (200, "ready\n")
    assert server.http("/")[0] == 200
    assert server.http("/nothing")[0] == 404


def test_health(server):
    stub = health_pb2_grpc.HealthStub(server.channel)
    for service in ("", *SERVICES):
        response = stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    with refused("NOT_FOUND"):
        stub.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))


def test_reflection_is_enough_for_a_client(server):
    database = ProtoReflectionDescriptorDatabase(server.channel)
    assert set(SERVICES) <= set(database.get_services())
    pool = DescriptorPool(database)
    method = pool.FindServiceByName("kvblend.v1.Admin").methods_by_name["GetInfo"]
    call = server.channel.unary_unary(
        "/kvblend.v1.Admin/GetInfo",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString)
    assert call(GetMessageClass(method.input_type)()).model.vocab_size > 0


def test_info(v1, server):
    info = server.admin.GetInfo(v1.GetInfoRequest())
    assert info.version and info.backend
    assert info.model.architecture == "llama" and info.model.num_layers > 0
    assert len(info.model.fingerprint) == 64
    assert info.limits.max_context_tokens == 2048
    assert info.limits.max_text_bytes == 64 << 10
    assert info.limits.max_message_bytes == 1 << 20
    assert info.limits.max_chunks_per_request == 50
    assert info.kv_format.dtype in ("bf16", "f32")
    # int8: one byte per element and, per 32 elements, a scale of 4 bytes.
    assert info.kv_format.chunk_format == "int8"
    elements = 2 * info.model.num_layers * info.model.num_kv_heads * info.model.head_dim
    assert info.kv_format.chunk_bytes_per_token == elements * (1 + 4 / 32)
    assert info.store.budget_bytes == 256 << 20
    assert 0 <= info.self_check_max_error < 0.1
    assert info.uptime_seconds > 0


def failure(code, *arguments):
    """The line with which a server ends that does not start."""
    done = run("kvblend-server", *arguments)
    assert done.returncode == code and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_the_device_is_named_with_the_reason(v1, start_server):
    server = start_server("--device", "auto", "--max-context-tokens", "512", "--no-self-check")
    device = server.admin.GetInfo(v1.GetInfoRequest()).device
    # A build without CUDA, or a machine without a GPU.
    assert device.device == "cpu" and device.name
    assert device.reason == "this build has no CUDA" or device.reason.startswith("no usable GPU: ")
    assert f"device cpu: {device.reason}" in server.log()
    assert device.memory_total_bytes == 0
    metrics = server.metrics()
    assert metrics[f'kvblend_device_info{{device="cpu",name="{device.name}"}}'] == 1
    assert 0 <= metrics["kvblend_kv_pages_used_ratio"] <= 1
    assert "kvblend_device_memory_used_bytes" not in metrics
    shown = run("kvblend", "info", "--server", f"127.0.0.1:{server.grpc_port}")
    assert shown.returncode == 0 and f"cpu: {device.reason}" in shown.stdout


def test_a_device_that_is_not_there_is_refused():
    listen = ("--log-level", "error", "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
              "--api-address", "none")
    for device in ("cuda", "cuda:7"):
        assert f"device is '{device}', but " in failure(1, "--model", MODEL, *listen, "--device", device)
        done = run("kvblend", "info", "--model", MODEL, "--device", device)
        assert done.returncode not in (0, 2)
        assert f"device is '{device}', but " in done.stderr
    assert "allowed: auto, cpu, cuda, cuda:N (from 0), reference" in failure(2, "--model", MODEL, "--device", "tpu")


def test_help_and_version():
    done = run("kvblend-server", "--help")
    assert done.returncode == 0 and "Examples:" in done.stdout and not done.stderr
    done = run("kvblend-server", "--version")
    assert done.returncode == 0 and done.stdout.startswith("kvblend-server ")


def test_bad_flags():
    for flags in ([], ["--model", "m", "--no-such-flag"], ["--model", "m", "--threads", "many"]):
        assert failure(2, *flags).startswith("kvblend-server: ")


def test_failing_to_start_says_why_as_the_log_is_wanted():
    listen = ("--grpc-address", "127.0.0.1:0", "--api-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0")
    as_objects = ("--log-level", "error", "--log-format", "json")
    for code, said, flags in ((1, "/nonexistent.gguf", ("--model", "/nonexistent.gguf", *listen)),
                              (2, "--grpc-address is x", ("--model", MODEL, "--grpc-address", "x")),
                              (2, "--threads", ("--model", "m", "--threads", "many"))):
        line = json.loads(failure(code, *as_objects, *flags))
        assert line["level"] == "error" and said in line["message"] and "kvblend-server" not in line["message"].split(":")[0]


def test_a_redis_url_tells_no_password():
    for flags in (("--chunk-redis", "redis://user:s3cret@host:1"), ("--chunk-redis", "s3cret@host:1"), ("redis://user:s3cret@host:1",)):
        said = failure(2, "--model", MODEL, *flags)
        assert "'...@host:1'" in said and "s3cret" not in said


def test_failing_to_start_says_why(tmp_path):
    listen = ("--log-level", "error", "--grpc-address", "127.0.0.1:0", "--api-address", "127.0.0.1:0", "--http-address")
    assert "/nonexistent.gguf" in failure(1, "--model", "/nonexistent.gguf", *listen, "127.0.0.1:0")
    text = tmp_path / "text.gguf"
    text.write_text("this is no model")
    failure(2, "--model", text, *listen, "127.0.0.1:0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address.split(":")[1] in failure(1, "--model", MODEL, *listen, address)
        assert address in failure(1, "--model", MODEL, "--log-level", "error", "--grpc-address", address,
                                  "--http-address", "127.0.0.1:0", "--api-address", "none")
        assert address.split(":")[1] in failure(1, "--model", MODEL, "--log-level", "error", "--grpc-address", "127.0.0.1:0",
                                                "--http-address", "127.0.0.1:0", "--api-address", address)


def test_a_port_file_has_the_ports_that_there_are(tmp_path):
    server = subprocess.Popen(
        [BIN_DIR / "kvblend-server", "--model", MODEL, "--no-self-check", "--log-level", "error", "--port-file", tmp_path / "ports",
         "--grpc-address", f"unix:{tmp_path}/socket", "--http-address", "127.0.0.1:0", "--api-address", "none"])
    try:
        wait_until((tmp_path / "ports").exists, "the ports")
        (line,) = (tmp_path / "ports").read_text().splitlines()
        assert line.startswith("http=")
    finally:
        server.terminate()
        assert server.wait(30) == 0


def test_a_port_file_never_takes_the_place_of_a_device(tmp_path):
    """As one at /dev/null would for root, for all programs of the machine."""
    pipe = tmp_path / "ports"
    os.mkfifo(pipe)
    said = failure(2, "--model", MODEL, "--log-level", "error", "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
                   "--api-address", "none", "--port-file", pipe)
    assert f"--port-file is {pipe}, which is a pipe; allowed: a regular file, or a new name" in said
    assert pipe.is_fifo() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("flags, said", [
    (("--max-context-tokens", "100000"), "max-context-tokens is 100000; allowed: 0 (the model's own) to "),
    (("--max-batch-tokens", "1"), "max-batch-tokens is 1; allowed: "),
    (("--grpc-address", "127.0.0.1:99999"), "--grpc-address is '127.0.0.1:99999'; allowed: "),
    (("--correction", __file__), f"{__file__}: "),
])
def test_a_setting_that_shows_to_be_wrong_late_is_a_bad_setting_too(flags, said):
    """Supervisors tell by exit code 2 that starting it again does not help."""
    addresses = ("--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--api-address", "none")
    done = run("kvblend-server", "--model", MODEL, "--no-self-check", *(addresses[2:] if "--grpc-address" in flags else addresses), *flags)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("code, settings", [
    (2, ["config"]), (2, ["api-keys"]), (2, ["trace-dir"]), (2, ["tls-certificate", "tls-key"]), (2, ["chunk-redis-password-file"]),
    (2, ["chunk-redis-tls-ca"]), (1, ["correction"]), (1, ["map-weights"]), (1, ["chunk-disk-path"]), (1, ["port-file"]), (1, ["model"]),
], ids=lambda value: value[0] if isinstance(value, list) else None)
def test_exit_codes_of_what_cannot_be_opened_are_those_of_the_guide(tmp_path, code, settings):
    """What is a file there cannot be a folder, and nothing can lie in it."""
    (tmp_path / "file").touch()
    model = [] if "model" in settings else ["--model", MODEL]
    redis = ["--chunk-redis", "127.0.0.1:1"] if "redis" in settings[0] else []
    flags = [word for name in settings for word in (f"--{name}", tmp_path / "file/x")]
    done = run("kvblend-server", *model, "--no-self-check", "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
               "--api-address", "none", *redis, *flags)
    assert done.returncode == code and "file/x" in done.stderr.splitlines()[-1], done.stderr
    if code == 1 or settings == ["trace-dir"]:  # the others are named by what they hold
        guide = (ROOT / "docs/operator-guide.md").read_text().split("Exit code 2 is for", 1)[1].split("\n\n", 1)[0]
        assert f"`--{settings[0]}`" in guide.split("\n1 is for", 1)[code == 1]


def test_a_taken_port_is_no_bad_setting(server):
    done = run("kvblend-server", "--model", MODEL, "--grpc-address", f"127.0.0.1:{server.grpc_port}", "--http-address", "127.0.0.1:0",
               "--api-address", "none")
    assert done.returncode == 1 and "Address already in use" in done.stderr.splitlines()[-1], done.stderr

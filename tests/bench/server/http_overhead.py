"""What a warm request costs outside of the engine, over gRPC and over HTTP: the same prompt, in turns, of one server.

    pip install -r tests/e2e/requirements.txt
    python tests/bench/server/http_overhead.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf

Prints medians in milliseconds of the whole call as a client sees it, and of what is left without the time that the
engine reports. Clients are grpcio and http.client, each with one connection that stays open.
"""
import argparse
import http.client
import importlib
import json
import statistics
import sys
import tempfile
import time

import grpc

from bench_server import server, support

SYSTEM_TEXT = "Answer the question from the passages."
CHUNKS = [f"Passage {i}: the harbour of town {i} was built in {1800 + i}.\n\n" for i in range(10)]
QUESTION = "When was the harbour of town 3 built?"


def stubs(folder):
    sources = sorted(str(path) for path in (support.ROOT / "proto").rglob("*.proto"))
    support.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{support.ROOT / 'proto'}", f"--python_out={folder}",
                 f"--grpc_python_out={folder}", *sources], "protoc")
    sys.path.insert(0, str(folder))
    return importlib.import_module("kvblend.v1.inference_pb2"), importlib.import_module("kvblend.v1.inference_pb2_grpc")


def grpc_call(pb, stub):
    request = pb.GenerateRequest(prompt=pb.Prompt(system_text=SYSTEM_TEXT, chunks=CHUNKS, question=QUESTION),
                                 sampling=pb.SamplingOptions(max_tokens=1))

    def call():
        events = list(stub.Generate(request))
        return events[-1].finished.timings.total_seconds
    return call


def http_call(connection, stream):
    parts = [{"type": "text", "text": text} for text in [*CHUNKS, QUESTION]]
    body = json.dumps({"messages": [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": parts}],
                       "max_tokens": 1, "temperature": 0, "stream": stream})

    def call():
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        text = connection.getresponse().read().decode()
        if stream:
            text = next(line for line in text.split("\n\n") if '"kvblend"' in line).removeprefix("data: ")
        return json.loads(text)["kvblend"]["finished"]["timings"]["total_seconds"]
    return call


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=support.DEFAULT_BIN)
    parser.add_argument("--model", default=support.DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(options, folder, "--max-context-tokens", 2048) as running:
        pb, pb_grpc = stubs(folder)
        calls = {"gRPC": grpc_call(pb, pb_grpc.InferenceStub(grpc.insecure_channel(f"127.0.0.1:{running.ports['grpc']}")))}
        for name, stream in (("HTTP", False), ("HTTP, streamed", True)):
            calls[name] = http_call(http.client.HTTPConnection("127.0.0.1", int(running.ports["api"])), stream)
        seconds = {name: [] for name in calls}
        for round_number in range(-10, options.rounds):
            for name, call in calls.items():
                start = time.monotonic()
                in_engine = call()
                whole = time.monotonic() - start
                if round_number >= 0:  # the first fill the store
                    seconds[name].append((whole, whole - in_engine))
        print("| | p50 of the whole call, ms | p50 outside of the engine, ms | p95 outside, ms |\n| --- | --- | --- | --- |")
        for name, samples in seconds.items():
            outside = sorted(sample[1] * 1e3 for sample in samples)
            print(f"| {name} | {statistics.median(sample[0] for sample in samples) * 1e3:.2f} | "
                  f"{statistics.median(outside):.2f} | {outside[int(len(outside) * 0.95)]:.2f} |")


if __name__ == "__main__":
    support.main_with_errors(main)

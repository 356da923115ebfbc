"""Clients of kvblend, over gRPC and HTTP, each also for asyncio, and its programs.

    client = kvblend.HttpClient("http://127.0.0.1:8000", api_key=KEY)
    answer = client.generate("What is the capital of Norway?", chunks=[kvblend.Document("Oslo is the capital of Norway.")])
    print(answer.text, answer.report.reused_tokens)

`kvblend serve` starts a server. Messages of the wire API are in kvblend.v1.
"""

import importlib.metadata

from kvblend.client import AsyncClient, Client
from kvblend.errors import Error
from kvblend.grpc_client import AsyncGrpcClient, GrpcClient
from kvblend.http_client import AsyncHttpClient, HttpClient
from kvblend.prompts import Answer, Document, make_request, make_turn
from kvblend.v1.chunks_pb2 import ChunkInfo, PutChunkProgress
from kvblend.v1.inference_pb2 import (BlendOptions, GenerateEvent, GenerateFinished, GenerateRequest, PromptReport,
                                      SamplingOptions, TextDelta, Turn)

__version__ = importlib.metadata.version("kvblend")
__all__ = [
    "Answer", "AsyncClient", "AsyncGrpcClient", "AsyncHttpClient", "BlendOptions", "ChunkInfo", "Client", "Document", "Error",
    "GenerateEvent", "GenerateFinished", "GenerateRequest", "GrpcClient", "HttpClient", "PromptReport", "PutChunkProgress",
    "SamplingOptions", "TextDelta", "Turn", "__version__", "make_request", "make_turn",
]

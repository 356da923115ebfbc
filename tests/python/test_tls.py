"""The four clients and a framework's model against a server that wants certificates of its clients."""

import asyncio
import json
import ssl
import subprocess
import sys
import threading

import pytest

import kvblend
from kvblend.integrations.conversation import Message, Settings

from conftest import ENVIRONMENT, QUESTION, WAIT_SECONDS, Server, wait_until

SAMPLING = kvblend.SamplingOptions(max_tokens=4)


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def authority_in(folder, name):
    """(certificate, key) that sign others."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 2, "-subj",
            f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", key, "-out", certificate)
    return certificate, key


def signed_by(authority, folder, name):
    """(certificate, key) for 127.0.0.1."""
    request, certificate, key, extensions = (folder / f"{name}.{end}" for end in ("csr", "pem", "key", "extensions"))
    # All that Python checks from 3.13 on.
    extensions.write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}", "-keyout", key,
            "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", authority[0], "-CAkey", authority[1], "-CAcreateserial", "-days", 2, "-extfile",
            extensions, "-out", certificate)
    return certificate, key


@pytest.fixture(name="files", scope="module")
def files_fixture(tmp_path_factory):
    """Arguments of a client that the server lets in, by name; "stranger" is from another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, others = authority_in(folder, "authority"), authority_in(folder, "others")
    pairs = {"server": signed_by(authority, folder, "server"), "client": signed_by(authority, folder, "client"),
             "stranger": signed_by(others, folder, "stranger")}
    return {"authority": authority[0]} | pairs


@pytest.fixture(name="strict", scope="module")
def strict_fixture(tmp_path_factory, files):
    certificate, key = files["server"]
    server = Server(tmp_path_factory.mktemp("strict"), "--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca",
                    files["authority"])
    yield server
    assert server.stop() == 0


def arguments_of(files, name):
    return {"certificate_authorities": files["authority"]} | (
        {"client_certificate": files[name][0], "client_key": files[name][1]} if name else {})


async def asynchronously(client):
    async with client:
        answer = await client.generate(QUESTION, sampling=SAMPLING)
        return answer, [chunk async for chunk in client.list_chunks("none here")]


def asked(kind, server, **arguments):
    """The answer that a client of this kind gets."""
    url, target = server.url.replace("http://", "https://"), server.target
    if kind.startswith("async"):
        async def ask():  # clients of gRPC are made inside of the loop
            return await asynchronously(kvblend.AsyncGrpcClient(target, timeout=20, **arguments) if kind == "async grpc"
                                        else kvblend.AsyncHttpClient(url, **arguments))
        return asyncio.run(ask())[0]
    with kvblend.GrpcClient(target, timeout=20, **arguments) if kind == "grpc" else kvblend.HttpClient(url, **arguments) as client:
        assert not list(client.list_chunks("none here"))
        return client.generate(QUESTION, sampling=SAMPLING)


KINDS = ("grpc", "http", "async grpc", "async http")


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_shows_its_certificate(strict, files, kind):
    assert asked(kind, strict, **arguments_of(files, "client")).finished.usage.completion_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [None, "stranger"])
def test_who_has_none_that_the_server_trusts_is_turned_away(strict, files, kind, name):
    with pytest.raises(kvblend.Error) as caught:
        asked(kind, strict, **arguments_of(files, name))
    # gRPC tries again until its deadline.
    assert caught.value.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def test_closing_a_client_ends_what_another_thread_reads_through_tls(strict, files):
    client = kvblend.HttpClient(strict.url.replace("http://", "https://"), **arguments_of(files, "client"))
    stream = client.stream(QUESTION, sampling=kvblend.SamplingOptions(max_tokens=1900, ignore_eos=True))
    next(stream)
    ended = []

    def read():
        with pytest.raises(kvblend.Error) as caught:
            list(stream)
        ended.append(str(caught.value))
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    client.close()
    thread.join(WAIT_SECONDS)
    assert ended == ["CANCELLED: the client was closed"]
    wait_until(strict.is_idle, "the request goes away")


# In an interpreter of its own: gRPC's threads, which other tests began, outlive no fork.
FORKING = """
import json, os, sys
import kvblend

url, arguments = sys.argv[1], json.loads(sys.argv[2])
with kvblend.HttpClient(url, **arguments) as client:
    models = client.models()
    (connection,) = client._connections._streams
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert client.models() == models
            client.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.models() == models
    assert list(client._connections._streams) == [connection], "another connection"
"""


def test_a_forked_child_does_not_end_tls_for_its_parent(strict, files):
    """Only the socket's number is given back there."""
    arguments = json.dumps({name: str(value) for name, value in arguments_of(files, "client").items()})
    done = subprocess.run([sys.executable, "-c", FORKING, strict.url.replace("http://", "https://"), arguments], env=ENVIRONMENT,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_integrations_show_it_as_well(strict, files):
    paths = {name: str(path) for name, path in arguments_of(files, "client").items()}
    settings = Settings(base_url=strict.url.replace("http://", "https://"), max_tokens=4, **paths)
    with settings.client() as client:
        assert list(client.stream_events(settings.request([Message("user", [QUESTION])])))[-1].HasField("finished")


@pytest.mark.parametrize("make, url", [(kvblend.GrpcClient, "127.0.0.1:1"), (kvblend.HttpClient, "https://127.0.0.1:1")])
def test_what_does_not_fit_is_refused_at_once(files, make, url):
    certificate, key = files["client"]
    with pytest.raises(ValueError, match="client.pem and client_key is None; allowed: both or none"):
        make(url, client_certificate=certificate)
    with pytest.raises(ValueError, match="client.key and client_certificate is None; allowed: both or none"):
        make(url, client_key=key)
    with pytest.raises(FileNotFoundError):
        make(url, certificate_authorities=certificate.with_name("absent.pem"))


def test_certificates_are_of_no_use_without_tls(files):
    with pytest.raises(ValueError, match="base_url is 'http://127.0.0.1:1'; allowed with certificates: one that begins with https://"):
        kvblend.HttpClient("http://127.0.0.1:1", **arguments_of(files, "client"))


def test_well_known_authorities_are_read_once(monkeypatch):
    """Integrations make a client for each request, and reading them takes tens of milliseconds."""
    read = []
    load = ssl.SSLContext.load_verify_locations

    def counted(self, *arguments, **named):
        read.append(arguments or named)
        load(self, *arguments, **named)
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    for url in ("http://127.0.0.1:1", "https://127.0.0.1:1"):
        kvblend.HttpClient(url).close()
        asyncio.run(kvblend.AsyncHttpClient(url).close())
    assert len(read) <= 1

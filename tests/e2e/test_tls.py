"""TLS of both protocols: certificates of servers and clients, and files that change while the server runs."""

import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import grpc
import openai
import pytest

from conftest import FLAGS, SYSTEM_TEXT, run, wait_until


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """Signs certificates in a folder."""

    def __init__(self, folder, name):
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 2, "-subj",
                f"/CN={name}", "-keyout", self.key, "-out", self.certificate)

    def sign(self, name):
        """(certificate, key) for 127.0.0.1."""
        request, certificate, key = (self.folder / f"{name}.{end}" for end in ("csr", "pem", "key"))
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}", "-keyout",
                key, "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-days", 2,
                "-extfile", extensions, "-out", certificate)
        return certificate, key


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def files(authority):
    """The files that the server reads."""
    return authority.sign("server")


@pytest.fixture(scope="module")
def tls_server(start_server, files):
    return start_server(*FLAGS, "--tls-certificate", files[0], "--tls-key", files[1])


def trusting(authority, certificate=None):
    context = ssl.create_default_context(cafile=authority.certificate)
    if certificate:
        context.load_cert_chain(*certificate)
    return context


def get(server, path, context):
    with urllib.request.urlopen(f"https://127.0.0.1:{server.api_port}{path}", context=context, timeout=60) as response:
        return json.loads(response.read())


def channel_of(server, authority, certificate=None):
    chain, key = (path.read_bytes() for path in certificate) if certificate else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes(), key, chain)
    return grpc.secure_channel(f"127.0.0.1:{server.grpc_port}", credentials)


def connect(server, context):
    return context.wrap_socket(socket.create_connection(("127.0.0.1", server.api_port), timeout=60),
                               server_hostname="127.0.0.1")


def shown(server, authority):
    """Serial number of the certificate that a new connection gets."""
    with connect(server, trusting(authority)) as connection:
        return connection.getpeercert()["serialNumber"]


def shown_by_grpc(server):
    """The certificate that a new connection of gRPC gets, in PEM."""
    return ssl.get_server_certificate(("127.0.0.1", server.grpc_port)).strip()


def test_both_protocols(v1, tls_server, authority, prompt):
    model = get(tls_server, "/v1/models", trusting(authority))["data"][0]["id"]
    context = trusting(authority)
    client = openai.OpenAI(base_url=f"https://127.0.0.1:{tls_server.api_port}/v1", api_key="none", max_retries=0,
                           http_client=openai.DefaultHttpxClient(verify=context))
    question = {"model": model, "messages": [{"role": "system", "content": SYSTEM_TEXT},
                                             {"role": "user", "content": "Where?"}], "max_tokens": 24, "temperature": 0}
    # The system text's KV is stored, rounded, behind the first answer; from then on it is the same for all.
    client.chat.completions.create(**question)
    tls_server.wait_until_idle()
    whole = client.chat.completions.create(**question).choices[0].message.content
    pieces = [event.choices[0].delta.content or "" for event in client.chat.completions.create(stream=True, **question)]
    assert "".join(pieces) == whole and len(pieces) > 10
    with channel_of(tls_server, authority) as channel:
        events = list(v1.InferenceStub(channel).Generate(v1.GenerateRequest(prompt=prompt, sampling={"max_tokens": 4})))
        assert events[-1].finished.usage.completion_tokens > 0


def test_a_large_body_and_a_large_answer(tls_server, authority):
    """More than one record of TLS each way."""
    text = "The harbour of Westhaven. " * 2000
    data = json.dumps({"text": text, "chunk_tokens": 16, "overlap_tokens": 0}).encode()
    request = urllib.request.Request(f"https://127.0.0.1:{tls_server.api_port}/v1/chunks/split", data=data,
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, context=trusting(authority), timeout=120) as response:
        chunks = json.loads(response.read())["chunks"]
    assert int(chunks[-1]["end_byte"]) == len(text)
    assert len(json.dumps(chunks)) > 1 << 16


def test_the_end_of_an_answer_is_told_inside_tls(tls_server, authority):
    with connect(tls_server, trusting(authority)) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        received = b""
        while piece := connection.recv(4096):  # a connection that is cut off instead raises SSLEOFError
            received += piece
    assert received.startswith(b"HTTP/1.1 200")
    with connect(tls_server, trusting(authority)) as connection:
        connection.sendall(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\nmore that nobody reads")
        assert connection.recv(4096).startswith(b"HTTP/1.1 404")


def test_who_does_not_speak_tls_is_turned_away(tls_server, authority):
    with pytest.raises((ConnectionError, urllib.error.URLError, OSError)):
        urllib.request.urlopen(f"http://127.0.0.1:{tls_server.api_port}/v1/models", timeout=60)
    with pytest.raises(ssl.SSLError):
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        connect(tls_server, old)
    with pytest.raises(openai.APIConnectionError):  # a certificate that it does not trust
        openai.OpenAI(base_url=f"https://127.0.0.1:{tls_server.api_port}/v1", api_key="none", max_retries=0).models.list()
    # Who connects and says nothing does not hold up others.
    with socket.create_connection(("127.0.0.1", tls_server.api_port)):
        assert get(tls_server, "/v1/models", trusting(authority))["data"]


def test_new_files_are_read(v1, tls_server, authority, files, prompt):
    before = shown(tls_server, authority)
    before_by_grpc = shown_by_grpc(tls_server)
    assert before_by_grpc in files[0].read_text()
    good = [path.read_bytes() for path in files]

    def stays_as_it_was(protocol, times):
        return tls_server.log().count(f"TLS stays as it was for {protocol}") == times

    # What is no certificate, and then one without its key: the one before stays.
    for times, content in ((1, b"nothing"), (2, authority.sign("other")[0].read_bytes())):
        files[0].write_bytes(content)
        wait_until(lambda times=times: stays_as_it_was("gRPC", times), "gRPC's note of files that can't be used")
        wait_until(lambda times=times: stays_as_it_was("the HTTP API", times), "the API's note of files that can't be used")
        assert shown(tls_server, authority) == before
        assert shown_by_grpc(tls_server) == before_by_grpc
        with channel_of(tls_server, authority) as channel:
            assert v1.AdminStub(channel).GetInfo(v1.GetInfoRequest(), timeout=60).HasField("model")
    # Nor is a pipe waited for.
    other = files[0].with_suffix(".other")
    os.mkfifo(other)
    os.replace(other, files[0])
    for protocol in ("gRPC", "the HTTP API"):
        wait_until(lambda protocol=protocol: stays_as_it_was(protocol, 3), "the note of a pipe")
    other.write_bytes(good[0])
    os.replace(other, files[0])
    wait_until(lambda: tls_server.log().count("read the certificate of") == 2, "the old files again")

    with channel_of(tls_server, authority) as channel, connect(tls_server, trusting(authority)) as kept:
        stream = v1.InferenceStub(channel).Generate(
            v1.GenerateRequest(prompt=prompt, sampling={"max_tokens": 400, "ignore_eos": True}))
        assert next(stream).prompt.prompt_tokens > 0
        certificate, key = authority.sign("renewed")
        files[0].write_bytes(certificate.read_bytes())
        os.replace(key, files[1])
        wait_until(lambda: shown(tls_server, authority) != before, "the new certificate")
        # What was open goes on.
        kept.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        assert list(stream)[-1].finished.usage.completion_tokens == 400

    wait_until(lambda: shown_by_grpc(tls_server) in certificate.read_text(), "gRPC's new certificate")


def test_certificates_of_clients(v1, start_server, authority, files, tmp_path):
    others = Authority(tmp_path, "others")
    server = start_server(*FLAGS, "--tls-certificate", files[0], "--tls-key", files[1], "--tls-client-ca",
                          authority.certificate)
    mine, foreign = authority.sign("client"), others.sign("stranger")
    assert get(server, "/v1/models", trusting(authority, mine))["data"]
    for certificate in (None, foreign):
        with pytest.raises(OSError):  # TLS 1.3 tells the client at its first read
            get(server, "/v1/models", trusting(authority, certificate))
        with channel_of(server, authority, certificate) as channel, pytest.raises(grpc.RpcError) as error:
            v1.AdminStub(channel).GetInfo(v1.GetInfoRequest(), timeout=20)
        assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    with channel_of(server, authority, mine) as channel:
        assert v1.AdminStub(channel).GetInfo(v1.GetInfoRequest(), timeout=60).HasField("model")

    # The command line.
    address = f"127.0.0.1:{server.grpc_port}"
    done = run("kvblend", "info", "--server", address, "--tls-ca", authority.certificate, "--tls-client-certificate", mine[0],
               "--tls-client-key", mine[1])
    assert done.returncode == 0 and "model" in done.stdout, done.stderr
    done = run("kvblend", "info", "--server", address, "--tls-ca", authority.certificate)
    assert done.returncode != 0 and address in done.stderr
    done = run("kvblend", "info", "--server", address, "--tls-ca", tmp_path / "none.pem")
    assert done.returncode != 0 and "--tls-ca is" in done.stderr
    server.stop()


@pytest.mark.parametrize("flag, content", [("--tls-certificate", "nothing"), ("--tls-key", "nothing"),
                                           ("--tls-client-ca", "nothing")])
def test_bad_files_are_refused_by_name(authority, tmp_path, flag, content):
    certificate, key = authority.sign("good")
    given = {"--tls-certificate": certificate, "--tls-key": key, "--tls-client-ca": authority.certificate}
    given[flag] = tmp_path / "bad.pem"
    given[flag].write_text(content)
    done = run("kvblend-server", "--model", "absent.gguf", "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
               "--api-address", "127.0.0.1:0", *(part for pair in given.items() for part in pair))
    assert done.returncode != 0
    assert flag in done.stderr and "bad.pem" in done.stderr, done.stderr

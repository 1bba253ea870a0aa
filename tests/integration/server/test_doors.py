"""Who gets in, and how: keys, TLS, CORS, unix sockets, ports, routes of plugins."""

import socket
import ssl
import subprocess

import httpx
import pytest
from tests.support.served import serve

from pegboard.api.errors import ConfigError
from pegboard.api.frontends import HttpRouteSpec, MountedRoute
from pegboard.api.plugin import ComponentContext
from pegboard_server.app import own_routes
from pegboard_server.config import ServerConfig
from pegboard_server.frontend import HttpFrontend

PUBLIC = {"/health", "/ready", "/live", "/ping", "/metrics"}


async def echo_app(scope, receive, send):
    body = f"{scope['root_path']}|{scope['path']}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def mounted(name, path, scope):
    spec = HttpRouteSpec(name=name, target="x:y", path=path, scope=scope)
    return MountedRoute(spec=spec, app=echo_app)


ROUTES = [
    mounted("open", "/open", "public"),
    mounted("closed", "/closed", "user"),
    mounted("ruled", "/ruled", "admin"),
]


@pytest.fixture(scope="module")
def locked():
    with serve({"api_key": ["k-one", "k-two"], "admin_api_key": ["k-admin"]}, ROUTES) as running:
        yield running


@pytest.fixture(scope="module")
def stranger(locked):
    with httpx.Client(base_url=locked.url) as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        *(route.path for route in own_routes()),
        "/v1/models/fake-model",
        "/closed",
        "/closed/deep",
        "/ruled",
        "/nothing",
        "/v1/unknown",
        "//v1/models",
        "/v1/models/",
        "/health/../v1/models",
        "/health/x",
        "/%76%31/models",
        "/openx",
        "/docs",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "header",
    [None, "Bearer wrong", "Bearer", "Basic k-one", "k-one", "Bearer k-on", "Bearer é"],
)
def test_every_route_but_the_public_ones_asks_for_a_key(stranger, path, method, header):
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    answer = stranger.request(method, path, headers=headers, json={"prompt": "a"})

    if path in PUBLIC:
        assert answer.status_code in (200, 405)
    else:
        assert answer.status_code == 401, (path, answer.text)
        assert answer.json()["error"]["type"] == "AuthenticationError"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["k-one", "k-two", "k-admin"])
def test_any_right_key_opens(locked, key):
    headers = {"authorization": f"Bearer {key}"}

    assert httpx.get(f"{locked.url}/v1/models", headers=headers).status_code == 200
    assert httpx.get(f"{locked.url}/closed/x", headers=headers).status_code == 200


def test_admin_route_opens_only_to_the_admin_key(locked):
    def status(key):
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{locked.url}/ruled", headers=headers).status_code

    assert (status("k-one"), status("k-admin")) == (401, 200)


def test_admin_route_is_closed_where_no_admin_key_is_set():
    with serve(routes=ROUTES) as served:
        assert httpx.get(f"{served.url}/ruled").status_code == 403
        assert httpx.get(f"{served.url}/closed").status_code == 200


def test_route_of_a_plugin_is_mounted_under_its_path(locked):
    assert httpx.get(f"{locked.url}/open/a/b").text == "/open|/open/a/b"


@pytest.mark.parametrize("path", ["/health", "/v1", "/v1/models/x", "/metrics/mine", "/open"])
def test_route_that_shadows_another_stops_the_start(path):
    routes = [ROUTES[0], mounted("bad", path, "public")]
    with pytest.raises(ConfigError, match=r"'bad'.*shadows"), serve(routes=routes):
        pass


def test_metrics_can_be_closed():
    with serve({"api_key": ["k"], "protect_metrics": True}) as served:
        assert httpx.get(f"{served.url}/metrics").status_code == 401
        assert httpx.get(f"{served.url}/health").status_code == 200


@pytest.mark.parametrize("keys", [{"api_key": [""]}, {"admin_api_key": [" "]}])
def test_empty_key_stops_the_start(keys):
    with pytest.raises(ConfigError, match="empty key"), serve(keys):
        pass


def make_frontend(**options):
    context = ComponentContext(plugin="server", plugin_config=ServerConfig(**options))
    return HttpFrontend(context)


def test_port_in_use_is_one_line_that_names_the_flag():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=rf"port {port} .*in use.*--port") as caught:
            make_frontend(port=port).bind()
    assert "\n" not in str(caught.value)


def test_bound_port_is_ours_before_we_listen():
    first = make_frontend(port=0)
    port = int(first.bind().rpartition(":")[2])
    try:
        with pytest.raises(ConfigError, match="in use"):
            make_frontend(port=port).bind()
    finally:
        first._socket.close()


def test_port_of_a_server_that_just_ended_can_be_taken():
    with serve() as served:
        port = int(served.url.rpartition(":")[2])
        # The server closes first, so that the lingering end of the connection is on its side.
        httpx.get(f"{served.url}/health", headers={"connection": "close"})
    with serve({"port": port}) as served:
        assert httpx.get(f"{served.url}/health").status_code == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "203.0.113.7"}, "--host"),
        ({"host": "no such host"}, "--host"),
        ({"uds": "/nowhere/at/all.sock"}, "--uds"),
        ({"ssl_certfile": "/nowhere.pem"}, "--ssl-certfile"),
        ({"ssl_keyfile": "/nowhere.pem"}, "--ssl-certfile"),
        ({"root_path": "api"}, "--root-path"),
        ({"allowed_origins": ["*"], "allow_credentials": True}, "--allowed-origins"),
    ],
)
def test_option_that_cannot_work_is_refused_before_the_start(options, words):
    with pytest.raises(ConfigError, match=words):
        make_frontend(**{"port": 0, **options}).bind()


def test_unix_socket_serves_and_is_removed(tmp_path):
    path = tmp_path / "s.sock"
    with serve({"uds": str(path)}) as served:
        assert served.url == f"unix:{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            answer = client.post("http://x/v1/completions", json={"prompt": "ab"})
        assert answer.json()["choices"][0]["text"] == "AB"
        with pytest.raises(ConfigError, match="in use"):
            make_frontend(uds=str(path)).bind()

    assert not path.exists()


def test_stale_unix_socket_is_replaced_but_a_file_is_not(tmp_path):
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with serve({"uds": str(path)}):
        pass
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is no socket"):
        make_frontend(uds=str(path)).bind()
    assert path.read_text() == "precious"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-keyout key.pem -out cert.pem -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    try:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    return folder


def test_tls_serves_and_plain_text_does_not(certificate):
    config = {
        "ssl_certfile": str(certificate / "cert.pem"),
        "ssl_keyfile": str(certificate / "key.pem"),
    }
    trust = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with serve(config) as served:
        assert served.url.startswith("https://")
        answer = httpx.post(
            f"{served.url}/v1/completions", json={"prompt": "ab", "stream": True}, verify=trust
        )
        assert answer.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.HTTPError):
            httpx.get(served.url.replace("https", "http") + "/health")


def test_client_certificate_can_be_required(certificate):
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    config = {
        "ssl_certfile": cert,
        "ssl_keyfile": key,
        "ssl_ca_certs": cert,
        "ssl_cert_reqs": "required",
    }
    with serve(config) as served:
        trust = ssl.create_default_context(cafile=cert)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{served.url}/health", verify=trust)
        trust.load_cert_chain(cert, key)
        assert httpx.get(f"{served.url}/health", verify=trust).status_code == 200


def test_cors_answers_named_origins_only_and_before_the_key():
    with serve({"allowed_origins": ["https://a.example"], "api_key": ["k"]}) as served:

        def preflight(origin):
            return httpx.options(
                f"{served.url}/v1/models",
                headers={"origin": origin, "access-control-request-method": "GET"},
            )

        assert preflight("https://a.example").status_code == 200
        assert preflight("https://b.example").status_code == 400
        refused = httpx.get(f"{served.url}/v1/models", headers={"origin": "https://a.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"


def test_without_origins_nothing_is_shared():
    with serve() as served:
        answer = httpx.get(f"{served.url}/v1/models", headers={"origin": "https://a.example"})

    assert "access-control-allow-origin" not in answer.headers


def test_root_path_is_taken_off_and_keys_still_hold():
    with serve({"root_path": "/api", "api_key": ["k"]}) as served:
        headers = {"authorization": "Bearer k"}
        assert httpx.get(f"{served.url}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{served.url}/v1/models").status_code == 401
        assert httpx.get(f"{served.url}/health").status_code == 200

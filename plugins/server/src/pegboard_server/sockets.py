"""Takes the address, before the engine starts."""

import errno
import socket
import ssl
import stat
from pathlib import Path

from pegboard.api.errors import ConfigError
from pegboard_server.config import ServerConfig

__all__ = ["address_of", "bind_socket", "tls_context"]

_BACKLOG = 2048


def bind_socket(config: ServerConfig) -> socket.socket:
    """Return a bound socket; it does not listen yet, so that nobody waits on a loading model.

    Raises:
        ConfigError: the address cannot be taken.
    """
    return _bind_unix(config.uds) if config.uds else _bind_tcp(config.host, config.port)


def address_of(config: ServerConfig, bound: socket.socket) -> str:
    """Return the address as a URL, for the log."""
    if config.uds:
        return f"unix:{config.uds}"
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if config.ssl_certfile else 'http'}://{shown}:{port}"


def _bind_tcp(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} cannot be resolved: {error} (--host)") from error
    family, kind, protocol, _, address = found[0]
    last: OSError | None = None
    # Without SO_REUSEADDR the port is ours alone even before we listen. If connections of an
    # earlier server linger on it, reuse it, and listen at once, which makes it ours alone too.
    for reuse in (False, True):
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
            bound.bind(address)
            if reuse:
                bound.listen(_BACKLOG)
            return bound
        except OSError as error:
            bound.close()
            last = error
            if error.errno != errno.EADDRINUSE:
                break
    raise _bind_error(host, port, last) from last


def _bind_error(host: str, port: int, error: OSError | None) -> ConfigError:
    code = error.errno if error is not None else None
    if code == errno.EADDRINUSE:
        return ConfigError(
            f"port {port} on {host} is in use by another process; choose another one (--port)"
        )
    if code == errno.EACCES:
        return ConfigError(
            f"port {port} on {host} needs privileges this process lacks; take one above 1023 "
            "(--port)"
        )
    if code == errno.EADDRNOTAVAIL:
        return ConfigError(f"host {host} is no address of this machine (--host)")
    reason = error.strerror if error is not None else "unknown"
    return ConfigError(f"cannot listen on {host}:{port}: {reason} (--host, --port)")


def _bind_unix(path: str) -> socket.socket:
    file = Path(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if file.exists():
            _remove_stale(file)
        bound.bind(path)
        file.chmod(0o660)
    except (OSError, ConfigError) as error:
        bound.close()
        if isinstance(error, ConfigError):
            raise
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {path}: {reason} (--uds)") from error
    return bound


def _remove_stale(file: Path) -> None:
    if not stat.S_ISSOCK(file.stat().st_mode):
        raise ConfigError(f"{file} exists and is no socket; choose another path (--uds)")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(file))
        except ConnectionRefusedError:
            file.unlink()
        else:
            raise ConfigError(f"{file} is in use by another process; choose another path (--uds)")


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """Return the TLS settings, or None without a certificate.

    Raises:
        ConfigError: a file is missing or does not fit, or options contradict each other.
    """
    if config.ssl_certfile is None:
        if config.ssl_keyfile or config.ssl_ca_certs or config.ssl_cert_reqs != "none":
            raise ConfigError("TLS options need a certificate (--ssl-certfile)")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"certificate {config.ssl_certfile} cannot be used: {error} "
            "(--ssl-certfile, --ssl-keyfile)"
        ) from error
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"authorities {config.ssl_ca_certs} cannot be read: {error} (--ssl-ca-certs)"
            ) from error
    elif config.ssl_cert_reqs != "none":
        raise ConfigError("checking client certificates needs authorities (--ssl-ca-certs)")
    context.verify_mode = {
        "none": ssl.CERT_NONE,
        "optional": ssl.CERT_OPTIONAL,
        "required": ssl.CERT_REQUIRED,
    }[config.ssl_cert_reqs]
    if config.ssl_ciphers is not None:
        try:
            context.set_ciphers(config.ssl_ciphers)
        except ssl.SSLError as error:
            raise ConfigError(
                f"cipher list {config.ssl_ciphers!r} is not known to OpenSSL (--ssl-ciphers)"
            ) from error
    return context

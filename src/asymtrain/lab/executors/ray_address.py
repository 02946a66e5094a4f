"""Does a Ray cluster answer at an address? Found out in seconds: Ray itself tries for minutes, and says little."""

import os
import socket
from urllib.parse import urlsplit

from asymtrain.errors import UsageError

PATIENCE = 8.0  # seconds for a connection, and again for its first answer
FORMS = "write host:6379, ray://host:10001, or auto for the cluster of this machine"

# The first bytes of an HTTP/2 client, with empty settings: every gRPC server answers with its own settings.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def check_address(address: str) -> None:
    """Raise UsageError unless something that can be a Ray cluster answers."""
    place = _find_running() if address == "auto" else address
    if place is None:
        return
    host, port = _split(place)
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):  # encrypted, only Ray can greet it
                connection.sendall(_GREETING)
                answer = connection.recv(9)
                if len(answer) < 4 or answer[3] != _SETTINGS:
                    raise UsageError(f"what answers at {place} is no Ray cluster: check host and port ({FORMS})")
    except OSError as problem:
        reason = "timed out" if isinstance(problem, TimeoutError) else problem.strerror or str(problem)
        raise UsageError(
            f"no Ray cluster answers at {place} ({reason}): check host and port ({FORMS}), that `ray status` works "
            "on the head node, and that no firewall is between"
        ) from problem


def _split(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise UsageError(f"{address!r} is no address of a Ray cluster: {FORMS}")
    return host, port


def _find_running() -> str | None:
    """The address that Ray takes for `auto`; None where this version of Ray does not tell."""
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    try:
        from ray._private.services import canonicalize_bootstrap_address

        found = canonicalize_bootstrap_address("auto")
    except ConnectionError as problem:
        raise UsageError(
            "no Ray cluster runs on this machine: start one with `ray start --head`, give its --address, or leave "
            "--address out to have one started"
        ) from problem
    except (ImportError, TypeError):
        return None
    return str(found) if found else None

"""Routes that say how the server is: probes, version, load, models, metrics, start report."""

from pegboard.api.errors import NotFound
from pegboard_server.responder import HttpRequest
from pegboard_server.schemas.responses import ModelCard, ModelList
from pegboard_server.state import ServerState

__all__ = [
    "health",
    "live",
    "load",
    "metrics",
    "model_card",
    "models",
    "start_report",
    "version",
]


async def health(state: ServerState, request: HttpRequest) -> None:
    """Readiness: 200 if a request could be answered now, 503 with the reason if not."""
    state_now = state.client.health()
    if state.draining:
        reason = "the server is shutting down"
    elif not state_now.ready:
        reason = state_now.reason or "the engine is not ready"
    else:
        await request.answer(200, b"")
        return
    await request.answer_json({"status": "unavailable", "reason": reason}, 503)


async def live(state: ServerState, request: HttpRequest) -> None:
    """Liveness: 503 only where a restart is the mend."""
    now = state.client.health()
    if now.live:
        await request.answer(200, b"")
    else:
        await request.answer_json({"status": "dead", "reason": now.reason}, 503)


async def version(state: ServerState, request: HttpRequest) -> None:
    """The version of Pegboard."""
    await request.answer_json({"version": state.version})


async def load(state: ServerState, request: HttpRequest) -> None:
    """Requests at work."""
    await request.answer_json({"server_load": state.in_flight})


async def metrics(state: ServerState, request: HttpRequest) -> None:
    """The Prometheus text."""
    text = state.metrics.render(state.client.stats)
    await request.answer(200, text, content_type=state.metrics.content_type)


async def start_report(state: ServerState, request: HttpRequest) -> None:
    """What was chosen at start, and why."""
    await request.answer_json(state.client.explain())


def _card(state: ServerState, name: str) -> ModelCard:
    model = state.client.config.model
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": state.created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return ModelCard(
        id=name,
        created=state.created,
        root=model.model,
        max_model_len=model.max_model_len,
        permission=[permission],
    )


async def models(state: ServerState, request: HttpRequest) -> None:
    """Every name that requests may use."""
    names = state.client.config.model.served_model_name
    await request.answer_json(ModelList(data=[_card(state, name) for name in names]))


async def model_card(state: ServerState, request: HttpRequest, name: str) -> None:
    """One model's card."""
    if name not in state.client.config.model.served_model_name:
        raise NotFound(f"model {name[:128]!r} is not served here", param="model")
    await request.answer_json(_card(state, name))

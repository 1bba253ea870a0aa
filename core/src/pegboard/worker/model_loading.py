"""Builds the model that was resolved and gives it its weights."""

from pegboard.api.loaders import LoadQuery, ModelLoader
from pegboard.api.models import Model, ModelArchitectureQuery
from pegboard.catalog import Catalog
from pegboard.config.engine import EngineConfig
from pegboard.worker.model_context import WorkerModelContext

__all__ = ["build_model"]


def build_model(config: EngineConfig, catalog: Catalog, context: WorkerModelContext) -> Model:
    """Build the architecture and stream the weights in.

    Raises:
        SelectionError: no plugin offers the architecture or the loader.
        ModelError: the weights are unreadable, or do not fit the model.
    """
    description = config.model.description
    architecture = catalog.select(
        "model_architectures",
        ModelArchitectureQuery(architectures=description.architectures, runner=config.model.runner),
        name=config.model.architecture,
    )
    model: Model = catalog.load(architecture.entry)(context)
    selection = catalog.select("model_loaders", LoadQuery(name=config.loader), name=config.loader)
    loader: ModelLoader = catalog.create(selection.entry, config=config)
    loader.load(model, description, context.dtype)
    return model

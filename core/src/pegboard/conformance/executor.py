"""Checks of executors: the same tokens as in one process, and an end that leaves nothing behind."""

from pegboard.api.errors import PegboardError
from pegboard.conformance.kit import NotApplicable, Subject, check
from pegboard.conformance.model_rig import model_rig

__all__: list[str] = []

_KIND = "executors"


def _model(subject: Subject) -> Subject:
    """Return the first architecture that brings an example, to drive the executor with."""
    for entry in subject.catalog.entries("model_architectures"):
        model = Subject(subject.catalog, entry, subject.seed)
        if model.spec.example is not None:
            return model
    raise NotApplicable("no installed architecture brings an example")


@check(_KIND)
def tokens_are_those_of_the_reference_forward(subject: Subject) -> None:
    """A batch through the executor gives transformers' logprobs, several steps in flight."""
    with model_rig(_model(subject)) as rig:
        for scheduling in (True, False):
            settings = {
                "distributed_executor_backend": subject.spec.name,
                "async_scheduling": scheduling,
            }
            with rig.engine(**settings) as llm:
                rig.compare(rig.run(llm, rig.prompts(20, 5, 33)))


@check(_KIND)
def fleet_of_two_gives_the_same(subject: Subject) -> None:
    """Two workers that share each layer give transformers' logprobs."""
    if subject.spec.max_world_size == 1:
        raise NotApplicable("it runs one worker")
    with (
        model_rig(_model(subject)) as rig,
        rig.engine(distributed_executor_backend=subject.spec.name, tensor_parallel_size=2) as llm,
    ):
        rig.compare(rig.run(llm, rig.prompts(20, 5)))


@check(_KIND)
def named_calls_reach_every_worker(subject: Subject) -> None:
    """`collective_rpc` answers once a worker, and an unknown method is an error, not a hang."""
    with (
        model_rig(_model(subject)) as rig,
        rig.engine(distributed_executor_backend=subject.spec.name) as llm,
    ):
        try:
            llm.collective_rpc("no_such_method", timeout=20)
        except PegboardError as error:
            assert "no_such_method" in str(error), f"the error does not name the method: {error}"
        else:
            raise AssertionError("an unknown method was answered")
        rig.compare(rig.run(llm, rig.prompts(4)))


@check(_KIND)
def failing_start_says_why(subject: Subject) -> None:
    """A model that cannot load ends the start with the first cause, in every process."""
    with model_rig(_model(subject)) as rig:
        (rig.folder / "model.safetensors").write_bytes(b"not a checkpoint")
        try:
            with rig.engine(distributed_executor_backend=subject.spec.name):
                pass
        except PegboardError as error:
            assert "model.safetensors" in str(error), f"the cause is lost: {error}"
            return
        raise AssertionError("a broken checkpoint started")

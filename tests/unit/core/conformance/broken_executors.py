"""The broken executors themselves."""

from concurrent.futures import Future

from pegboard.api.errors import WorkerError
from pegboard.executor.uni import UniExecutor


class LosesTheCause(UniExecutor):
    def start(self) -> None:
        try:
            super().start()
        except Exception as error:
            raise WorkerError("a worker failed") from error


class AnswersAnything(UniExecutor):
    def collective_rpc(self, method, args=(), timeout_s=None):
        return [None]


class MixesUpSteps(UniExecutor):
    """Gives each row its neighbour's token."""

    def sample(self, handle, grammar_masks=None):
        mixed: Future = Future()

        def turn(done: Future) -> None:
            if done.exception() is not None:
                mixed.set_exception(done.exception())
                return
            output = done.result()
            output.sampled_token_ids = output.sampled_token_ids[::-1]
            mixed.set_result(output)

        super().sample(handle, grammar_masks).add_done_callback(turn)
        return mixed

"""What goes wrong at one rank is an exception at every rank, in time, that says what to do."""

import contextlib
import itertools
import os
import sys
import types

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import rack  # noqa: E402

PATHS = [os.path.join(rack.ROOT, "python", "src"), os.path.dirname(HERE), os.path.join(HERE, "programs")]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(PATHS)}
NUMBERS = itertools.count()  # of jobs


@pytest.fixture(scope="module")
def aggregator():
    with rack.Aggregator() as a:
        yield a


def workers(name, address, *args, n=2, module="faults", **env):
    """Starts processes that run a function of a module of programs, which only they import."""
    function, job = types.SimpleNamespace(__module__=module, __name__=name), f"{name}-{next(NUMBERS)}"
    return rack.Workers(function, n, address, args, {**ENVIRONMENT, "RACKWEAVE_JOB": job, **env}, "mxnet")


def failures(job):
    """Returns what was raised at each rank; none may have crashed."""
    outcomes = job.finish()
    for rank, o in enumerate(outcomes):
        assert o.code in (1, -9), f"worker {rank} ended with {o.code}: {o.output}"
    return [o.error for o in outcomes]


def test_a_worker_that_dies_is_named_at_the_others(aggregator):
    errors = failures(workers("one_dies", aggregator.address, 1, n=3))
    for rank in (0, 2):
        assert "worker 1" in errors[rank], errors
    assert errors[1] is None  # it was killed


def test_a_worker_that_is_late_is_named_when_the_time_is_up(aggregator):
    errors = failures(workers("one_is_late", aggregator.address, 1, RACKWEAVE_TIMEOUT="2"))
    assert "no answer within 2 s for key g; the aggregator waits for rank 1" in errors[0], errors
    assert "no answer within 2 s for key g" in errors[1], errors


def test_a_program_that_ends_without_its_last_result_says_so(aggregator):
    outcome = workers("ends_without_a_result", aggregator.address, 1).finish()[0]
    assert outcome.code == 0 and "results must not be used" in outcome.output and "worker 1" in outcome.output, outcome


@pytest.mark.parametrize("restarted", [False, True], ids=["killed", "restarted"])
def test_an_aggregator_that_is_gone_is_told_of(restarted):
    with rack.Aggregator() as gone:
        job = workers("goes_on", gone.address)
        for rank in range(2):
            job.wait_for(rank, "under way")
        gone.kill()
        with rack.Aggregator("--listen", gone.address.partition("//")[2]) if restarted else contextlib.nullcontext():
            for error in failures(job):
                assert "aggregator" in error, error


def test_a_nan_is_refused_by_tensor_and_rank(aggregator):
    for error in failures(workers("one_has_nan", aggregator.address, 1, RACKWEAVE_NONFINITE="refuse")):
        assert "the gradient of key g at rank 1 holds NaN or infinity" in error, error


@pytest.mark.parametrize("name,text", [
    ("models_differ", "weight"),
    ("types_differ", "weight"),
    ("optimizers_differ", "optimizer"),
    ("learning_rates_differ", "this rank sent lr 0."),
    ("models_of_trainers_differ", "0 is parameter 'net_bias' here"),
    ("batches_differ", "rescale_grad"),
], ids=["models", "types", "optimizers", "learning rates", "trainers' models", "batches"])
def test_ranks_that_differ_are_told_in_what(aggregator, name, text):
    for error in failures(workers(name, aggregator.address)):
        assert text in error, error


def test_no_aggregator_is_a_clear_error():
    for error in failures(workers("no_aggregator", "http://127.0.0.1:9")):
        assert "ServerLostError" in error and "rackweave serve" in error, error


def test_a_program_may_end_without_waiting(aggregator):
    for outcome in workers("gradients_are_left_under_way", aggregator.address).finish():
        assert outcome.code == 0 and not outcome.error, outcome

"""What every publisher does, played on the scripted one and on disk with real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from engine_cases import count_up, served_on_thread

from agentrl.engine import Canary
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import WeightsError
from agentrl.weights import Publisher
from agentrl.weights.disk import DiskPublisher
from agentrl.weights.scripted import ScriptedPublisher

REFUSED = 13
CANARY = Canary(token_ids=(1, 2, 3), logprobs=(-1.0, -1.0), tolerance=1e-4)


def tensors(value: float = 1.0) -> dict[str, torch.Tensor]:
    weight = torch.full((4, 3), value)
    return {"model.embed_tokens.weight": weight, "model.norm.weight": torch.ones(3), "lm_head.weight": weight}


class Refusing(ScriptedEngine):
    """Refuses one version, as an engine does whose log-probs differ from the trainer's."""

    async def update_weights(self, version, source):
        if version == REFUSED:
            raise WeightsError("the canary differs by 0.5")
        return await super().update_weights(version, source)


@pytest.fixture(params=["scripted", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Publisher]]:
    with ExitStack() as stack:

        def publisher() -> Publisher:
            if request.param == "scripted":
                return ScriptedPublisher(refused=frozenset({REFUSED}))
            urls = [
                stack.enter_context(served_on_thread(lambda: Refusing(count_up, check_canary=True)))[0]
                for _ in range(2)
            ]
            return DiskPublisher(tmp_path / "weights", lambda: urls, timeout_seconds=5)

        yield publisher


def test_every_engine_confirms_the_version_it_was_given(make) -> None:
    publisher = make()
    for version in (0, 1, 2, 5):
        publication = publisher.publish(tensors(version), version=version, canary=CANARY)
        assert publication.version == version
        assert publication.confirmations
        assert {each.version for each in publication.confirmations} == {version}
        assert len({each.url for each in publication.confirmations}) == len(publication.confirmations)
        assert publication.canary_difference == 0.0
    publisher.close()


def test_an_older_version_can_be_published_again_after_a_restore(make) -> None:
    publisher = make()
    for version in (3, 4, 3):
        assert publisher.publish(tensors(), version=version, canary=None).confirmations[0].version == version
    publisher.close()


def test_the_hash_says_whether_two_versions_are_the_same_weights(make) -> None:
    publisher = make()
    first, same, other = (
        publisher.publish(tensors(value), version=version, canary=None).tensor_hash
        for version, value in enumerate((1.0, 1.0, 2.0))
    )
    assert first == same != other
    assert len(first) == 64
    publisher.close()


def test_without_canary_there_is_no_difference(make) -> None:
    publisher = make()
    assert publisher.publish(tensors(), version=1, canary=None).canary_difference is None
    publisher.close()


def test_an_engine_that_does_not_confirm_is_named_and_the_next_version_may_go_on(make) -> None:
    publisher = make()
    with pytest.raises(WeightsError, match=rf"version {REFUSED} was not confirmed: engine \S+"):
        publisher.publish(tensors(), version=REFUSED, canary=CANARY)
    assert publisher.publish(tensors(), version=REFUSED + 1, canary=CANARY).version == REFUSED + 1
    publisher.close()


def test_closing_twice_is_closing_once(make) -> None:
    publisher = make()
    publisher.publish(tensors(), version=1, canary=None)
    publisher.close()
    publisher.close()

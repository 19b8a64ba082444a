"""Models that draft for themselves (MTP), and adapters (LoRA): outputs stay as they were."""

import pytest
from test_accepts import check_forwards
from wandering import Wanderer, check_sound

THOROUGH = pytest.mark.thorough
# A place to spare: on CPU, vLLM 0.32 runs rows without an adapter through the last one.
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
MTP = {"method": "adaspec", "model": "mtp", "num_speculative_tokens": 24}


@pytest.mark.thorough
def test_a_model_that_drafts_for_itself_says_what_it_says_without(engines, prompts):
    said_by_mtp = engines(target="mtp").greedy(prompts, 48)
    engine = engines(MTP, target="mtp")
    assert engine.runner.speculative_config.method == "mtp"
    session = Wanderer(engine).session
    found = []
    heard = check_forwards(engine, session, lambda: found.extend(engine.greedy(prompts, 48)))
    assert found == said_by_mtp
    check_sound(session)
    assert heard.total("accepted") < heard.total("drafted")


def with_adapter(engine, models, prompts):
    """Outputs of every second prompt with the adapter, of the others without."""
    from vllm.lora.request import LoRARequest

    adapter = LoRARequest("tiny", 1, str(models / "adapter"))
    adapters = [adapter if at % 2 else None for at in range(len(prompts))]
    return engine.greedy(prompts, lora_request=adapters)


@pytest.fixture(scope="module")
def adapted(engines, models, prompts):
    """What the adapter says without speculation."""
    return with_adapter(engines(**LORA), models, prompts)


@pytest.mark.parametrize(
    "head",
    ["eagle", *(pytest.param(each, marks=THOROUGH) for each in ("draft", None))],
)
def test_requests_with_an_adapter_say_what_they_say_without_speculation(
    engines, models, prompts, truth, adapted, head
):
    assert adapted[0] == truth()[0]
    assert adapted[1] != truth()[1]
    config = {"method": "adaspec", "policy": "fixed:ngram:8:2"}
    if head:
        config |= {"model": head, "policy": "hybrid-splice", "num_speculative_tokens": 24}
    engine = engines(config, **LORA)
    session = Wanderer(engine).session if head else engine.put("fixed:ngram:8:2")
    assert with_adapter(engine, models, prompts) == adapted
    check_sound(session)

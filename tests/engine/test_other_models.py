"""Models that draft for themselves (MTP), and adapters (LoRA): outputs stay as they were."""

import pytest
from test_accepts import Ledger, forwards_of
from test_outputs import asked, check_sound

from policies import Wanderer

# A place to spare: on CPU, vLLM 0.32 runs rows without an adapter through the last one.
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
MTP = {"method": "adaspec", "model": "mtp", "num_speculative_tokens": 24}


@pytest.fixture(scope="module")
def said_by_mtp(engines, prompts):
    """What the model that drafts for itself says without doing so."""
    return engines(target="mtp").greedy(prompts, 48)


@pytest.mark.parametrize("policy", ["wanderer", "fixed:neural:3", "hybrid-splice:4:20:3:2:5"])
def test_a_model_that_drafts_for_itself_says_what_it_says_without(
    engines, prompts, said_by_mtp, policy
):
    expected = said_by_mtp
    engine = engines(MTP, target="mtp")
    session = engine.put(Wanderer() if policy == "wanderer" else policy)
    ledger = Ledger()
    session.observers.add(ledger)
    count, handle = forwards_of(engine)
    assert engine.greedy(prompts, 48) == expected
    handle.remove()
    check_sound(session)
    assert count[0] == sum(ledger.drafting) + sum(ledger.keep_alive) > 0
    assert 0 < ledger.accepted < ledger.drafted


def test_a_model_that_drafts_for_itself_is_recognised(models):
    from vllm.engine.arg_utils import EngineArgs

    from adaspec.vllm.plugin import register

    register()
    folder = str(models / "mtp")
    config = {"method": "adaspec", "model": folder}
    args = EngineArgs(folder, speculative_config=config, dtype="float32")
    assert args.create_engine_config().speculative_config.method == "mtp"


def with_adapter(engine, models, prompts):
    """Outputs of every second prompt with the adapter, of the others without."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    adapter = LoRARequest("tiny", 1, str(models / "adapter"))
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    found = engine.llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        params,
        use_tqdm=False,
        lora_request=[adapter if at % 2 else None for at in range(len(prompts))],
    )
    return [list(one.outputs[0].token_ids) for one in found]


@pytest.fixture(scope="module")
def adapted(engines, models, prompts):
    """What the adapter says without speculation."""
    return with_adapter(engines(**LORA), models, prompts)


@pytest.mark.parametrize(
    "head",
    [
        "eagle",
        *(pytest.param(head, marks=pytest.mark.thorough) for head in ("eagle3", "draft")),
        None,
    ],
)
def test_requests_with_an_adapter_say_what_they_say_without_speculation(
    engines, models, prompts, truth, adapted, head
):
    plain = truth()
    assert adapted[0] == plain[0]
    assert adapted[1] != plain[1]
    engine = engines(asked(head, "hybrid-splice" if head else "fixed:ngram:8:2"), **LORA)
    session = engine.put(Wanderer() if head else "fixed:ngram:8:2")
    assert with_adapter(engine, models, prompts) == adapted
    check_sound(session)

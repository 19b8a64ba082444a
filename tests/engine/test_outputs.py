import pytest
from heard import Heard
from live_engine import KINDS, sampling
from test_either_runner import check_kind
from wandering import Wanderer, check_sound, wander

from adaspec.policy.guard import HOLD, PLAN
from adaspec.vllm.scheduler import follow

THOROUGH = pytest.mark.thorough
CHUNKED = {"max_num_batched_tokens": 48, "block_size": 32, "enable_prefix_caching": True}
CRAMPED = {"num_gpu_blocks_override": 28, "block_size": 32, "enable_prefix_caching": False}
# A place to spare: on CPU, vLLM 0.32 runs rows without an adapter through the last one.
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
POLICIES = [
    (None, "general"),
    (None, "fixed:ngram:40:1"),
    *(("eagle", each) for each in ("general", "hybrid-splice:4:20:3:2:5", "trtllm:4")),
]


@pytest.mark.parametrize("head", ["eagle", "draft", None, pytest.param("eagle3", marks=THOROUGH)])
def test_whatever_is_decided_leaves_the_output_as_it_was(serve, prompts, truth, head):
    engine, wanderer = wander(serve, head)
    assert engine.greedy(prompts, 48) == truth()
    assert engine.greedy(prompts, 48) == truth()
    check_sound(wanderer.session)
    assert wanderer.taken["ngram"] > 0
    if head is not None:
        assert min(wanderer.taken.values()) > 0, wanderer.taken


@pytest.mark.parametrize(("head", "policy"), POLICIES)
def test_rules_and_adaptive_policies_leave_the_output_as_it_was(
    serve, prompts, truth, head, policy
):
    engine, session = serve(head, policy)
    assert engine.greedy(prompts, 32) == truth(32)
    check_sound(session)


@pytest.mark.parametrize(("head", "kind"), [("draft", KINDS[0]), (None, KINDS[2])])
def test_requests_of_a_kind_are_answered_so_with_other_drafters(serve, head, prompts, said, kind):
    proposed = check_kind(serve, head, prompts, said, kind)
    # V1 ends a draft before the length from which its request may stop.
    assert any((each.drafts.offered == 0).any() for each in proposed) or kind != "may not stop yet"


def test_greedy_requests_beside_samples_say_what_they_say_alone(serve, prompts, truth):
    engine, wanderer = wander(serve, "eagle")
    sampled = sampling(48, temperature=0.8, n=3)
    params = [sampling(48) if at % 2 else sampled for at in range(len(prompts))]
    found = engine.outputs(prompts, params)
    assert [one[0] for one in found[1::2]] == truth()[1::2]
    assert [len(each) for one in found[::2] for each in one] == [48] * 3 * 6
    check_sound(wanderer.session)


@pytest.mark.parametrize("head", ["eagle", pytest.param("draft", marks=THOROUGH)])
def test_chunked_prefill_and_prefix_hits_leave_the_output_as_it_was(engines, prompts, truth, head):
    engine = engines({"method": "adaspec", "model": head, "num_speculative_tokens": 24}, **CHUNKED)
    session = Wanderer(engine).session
    assert engine.greedy(prompts, 48) == truth()
    again = engine.generate(prompts, sampling(48))
    assert [list(each.outputs[0].token_ids) for each in again] == truth()
    assert sum(each.num_cached_tokens or 0 for each in again) > 0
    check_sound(session)


@pytest.mark.parametrize("word", ["off", HOLD])
def test_nobody_drafts_behind_a_cached_prompt_that_the_head_has_not_read(
    engines, prompts, mode_path, word, monkeypatch
):
    config = {"method": "adaspec", "model": "draft", "policy": "fixed:neural:3"}
    engine = engines({**config, "mode_file": str(mode_path), "guard": False}, **CHUNKED)
    proposed, drafts, cached, state = Heard(engine.session)["proposed"], [], [], [PLAN]

    def follow_and_hold(session, scheduled):
        follow(session, scheduled)
        session.guard_state = state[0]

    monkeypatch.setattr("adaspec.vllm.v1.follow", follow_and_hold)
    shared = [prompts[5] + each[:20] for each in prompts[:4]]
    for say in (word, "serve", "anew"):
        mode_path.write_text("off" if say == "off" else "serve")
        state[0] = HOLD if say == HOLD else PLAN
        if say == "anew":
            assert engine.llm.reset_prefix_cache()
        proposed.clear()
        said = [engine.generate([each], sampling(32))[0] for each in shared]
        drafts.append([tokens for step in proposed for tokens in step.proposed])
        cached.append([each.num_cached_tokens for each in said])
    assert any(map(len, drafts[2]))
    assert drafts[1] == drafts[2]
    # While it is held off the head reads prompts; while it is off, blocks are written for that
    # time alone.
    assert (cached[1][0] > 0) == (word == HOLD)
    assert cached[1][1] > 0


@pytest.mark.parametrize("head", ["draft", pytest.param("eagle", marks=THOROUGH)])
def test_preemption_and_resumption_leave_the_output_as_it_was(engines, prompts, truth, head):
    engine = engines({"method": "adaspec", "model": head, "num_speculative_tokens": 24}, **CRAMPED)
    session = Wanderer(engine).session
    assert engine.greedy(prompts, 96) == truth(96)
    assert engine.preempted > 0
    check_sound(session)


@pytest.mark.parametrize(
    "head", ["eagle", *(pytest.param(each, marks=THOROUGH) for each in ("draft", None))]
)
def test_requests_with_an_adapter_say_what_they_say_without_speculation(
    engines, models, prompts, truth, head
):
    from vllm.lora.request import LoRARequest

    adapter = LoRARequest("tiny", 1, str(models / "adapter"))
    adapters = [adapter if at % 2 else None for at in range(len(prompts))]
    adapted = engines(**LORA).greedy(prompts, lora_request=adapters)
    assert adapted[0] == truth()[0]
    assert adapted[1] != truth()[1]
    config = {"method": "adaspec", "num_speculative_tokens": 24}
    engine = engines(config | ({"model": head} if head else {}), **LORA)
    session = Wanderer(engine, evidence=head is not None).session
    assert engine.greedy(prompts, lora_request=adapters) == adapted
    check_sound(session)


def test_aborted_requests_leave_the_others_as_they_were(serve, prompts, truth):
    engine, wanderer = wander(serve, "eagle")
    core, found = engine.llm.llm_engine, {}
    for at, prompt in enumerate(prompts[6:]):
        core.add_request(f"kept-{at}", {"prompt_token_ids": prompt}, sampling(48))
    engine.abort(prompts[:6], 48, steps=3)
    while core.has_unfinished_requests():
        ended = [out for out in core.step() if out.finished]
        found |= {out.request_id: list(out.outputs[0].token_ids) for out in ended}
    assert [found[f"kept-{at}"] for at in range(6)] == truth()[6:]
    engine.greedy(prompts[:1], 4)  # whoever left is noticed in the next step
    assert len(wanderer.session.requests._by_name) <= 1
    check_sound(wanderer.session)

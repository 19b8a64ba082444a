"""What serves the engines of long runs: decisions at random, policies that know nothing, rules."""

from wandering import Wanderer, random_policy

NGRAM_RULES = ("none", "fixed:ngram:8:2", "fixed:ngram:40:1", "hybrid:4:16:0")
RULES = (*NGRAM_RULES, "fixed:neural:3", "hybrid:4:16:3", "hybrid-splice:4:20:3:2:5")


def serve_by(engine, rng, has_head, fault, **changes):
    """What serves from here on, and the name of its policy."""
    seed = int(rng.integers(1 << 30))
    changes["ring_tokens"] = int(rng.choice([0, 1024, 1 << 14]))
    way = rng.random()
    if fault is None and way < 0.3:
        policy = random_policy(seed, has_head)
        return engine.put(policy, **changes), policy.name
    if fault is None and way < 0.5:
        rule = str(rng.choice(RULES if has_head else NGRAM_RULES))
        return engine.put(rule, **changes), rule
    return Wanderer(engine, seed, has_head, **changes).session, "wanderer"


def count_chunks(session, count):
    """Count rows whose prompt is not through yet after a step."""
    whole = session.begin

    def begin(rows, make_batch):
        count(int((~rows.samples).sum()))
        return whole(rows, make_batch)

    session.begin = begin

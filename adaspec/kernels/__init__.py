"""The decision's row part on an accelerator, in few kernels.

Functions of the host say what they mean (see `layout.device`). A step takes 3 launches, and 2 more
for each forward of the drafter. Where there is a ring, each scan of the texts is followed by one of
it.

By estimates a step takes an H100 some 37 us with one forward, and 14 us for every further one: a
scan 4 us where 128 texts have 4,096 tokens, every other kernel about 10 us, most of which is
waiting for memory and for other warps. Before a launch Python binds its arguments, a third of a
microsecond for each number or tensor, those inside tuples too.

On vLLM's V2, `serving` has three more: one launch packs the drafts for the engine and the report
for the host, where torch takes some thirty. One reads the logits of each forward, where torch takes
ten operations, and four more to spread them over the target's vocabulary. One trims the drafts to
the step's budget, where vLLM takes eighteen.

Triton compiles a kernel once more for numbers that are 1 or multiples of 16, and for tensors that
begin elsewhere. What differs from step to step is exempt from it, so a server compiles all it will
need at its start.
"""

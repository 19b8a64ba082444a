"""The decision's row part on an accelerator, in few kernels.

Functions of the host say what they mean (see `twins`). A step takes 3 launches, and 2 more for each
forward of the drafter. Where there is a ring, each scan of the texts is followed by one of it.

What a kernel takes on an H100 is estimated here and was not measured: 128 rows of 4,096 tokens,
launched by a CUDA graph. No kernel spills registers there. All but the scan have one program of
four warps per row, so 128 of them run side by side, and waiting for memory and for other warps is
most of their time.

    scan            4 us    2 MB of tokens are 0.7 us; behind a draft they come from the cache. Four
                            loads wait for each other. 256 rows of 32,768 tokens: some 25 us
    begin          12 us    3,850 instructions, six loads that wait for each other, 35 barriers;
                            57 KB of weights per row, 7 MB in all from the cache
    revise         10 us    4,700 instructions; two smaller networks
    propose         9 us    1,400 instructions

A scan of a ring of 65,536 tokens reads all of it for each row, which lies in the cache: 128 rows
read 33 MB, some 12 us.

On vLLM's V2 one more launch packs the drafts for the engine and the report for the host, where
torch takes some thirty (`pack`). One reads the logits of each forward, where torch takes ten
operations, and four more to spread them over the target's vocabulary (`logits`). One trims the
drafts to the step's budget, where vLLM takes eighteen (`trim`).

    read            6 us    rows of 32,000 bfloat16 logits; 20 us where there are 128,256
    trim           10 us    one program, 82 barriers; longer from some 4,000 drafted tokens on

Triton compiles a kernel once more for numbers that are 1 or multiples of 16, and for tensors that
begin elsewhere. What differs from step to step is exempt from it, so a server compiles all it will
need at its start.

That is some 37 us a step with one forward, and 14 us for every further one. Before a launch Python
binds its arguments, a third of a microsecond for each number or tensor, those inside tuples too:
some 45 us for such a step with its report. So each gets only what it reads.
"""

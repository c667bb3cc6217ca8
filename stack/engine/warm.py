"""Runs the kinds of steps that serving will run, before the first request, so that nothing compiles under load.

Made-up prompts go through the instance's own scheduler and runner: a full chunk, a short one behind it, a few awkward
sizes, and a sampled decode step where the role has one. Nothing of them is left afterwards, in memory or in the counts.
"""

from stack.core.messages import Generate
from stack.core.sampling import SamplingParams
from stack.core.tokens import pack_tokens
from stack.engine.loop import Loop
from stack.runner import Runner
from stack.scheduler import Scheduler

_SHORT = (1, 17, 100)


def warm_up(scheduler: Scheduler, runner: Runner) -> int:
    """Returns the number of prompts that were run. A decode instance computes no prompts: its steps are captured."""
    config = scheduler.config
    if config.role == "decode":
        return 0
    budget = min(config.scheduler.chunk_tokens, config.scheduler.max_prefill_tokens)
    num_new = 1 if config.role == "prefill" else 3
    most = min(scheduler.limits.max_context, scheduler.memory.most_tokens - scheduler.width) - num_new
    lengths = sorted({min(length, most) for length in (budget + 8, *_SHORT)}, reverse=True)
    sampling = SamplingParams(max_new_tokens=num_new, temperature=0.5, ignore_eos=True)
    loop = Loop(scheduler, runner, overlap=False)
    for number, length in enumerate(lengths):
        tokens = [2 + (number + 7 * i) % (scheduler.limits.vocab_size - 2) for i in range(length)]
        scheduler.add(Generate(rid=f"warm-up {number}", prompt=pack_tokens(tokens), sampling=sampling))
        while loop.turn():
            pass
    scheduler.take_messages()
    assert scheduler.book.is_empty, "a prompt of the warm-up did not end"
    scheduler.forget()
    return len(lengths)

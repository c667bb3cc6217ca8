"""Trains the target: next-token loss, the indexers' and the copying head's beside it, routers' biases moved by hand.

Attention begins dense, so that indexers learn from a finished distribution; then it is sparse, and in the last part
rows are longer. The stage can stop at any step and go on from its files.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stack.training.copying import copy_sources
from stack.training.journal import Journal
from stack.training.needles import Needles
from stack.training.optimizer import Optimizer, balance, saved_facts, saved_weights, schedule, trainable
from stack.training.parameters import Tensors, target_tensors
from stack.training.questions import Questions
from stack.training.recipe import Clock, Recipe
from stack.training.target import logits_of, target_forward
from stack.training.text import Corpus

_SAVE_EVERY_S = 90.0
_LOG_EVERY = 20
_SEARCH_EVERY = 200
FROZEN = ("e_score_correction_bias",)


def train_target(
    folder: Path,
    corpus: Corpus,
    questions: Questions,
    needles: Needles | None,
    config: dict[str, Any],
    recipe: Recipe,
    journal: Journal,
    *,
    seed: int,
    device: torch.device,
    steps: int | None,
    deadline_s: float,
) -> Tensors | None:
    """The trained tensors, or None when the deadline (monotonic seconds) came first; `folder` holds the state."""
    tensors = trainable(target_tensors(config, seed), device)
    optimizer = Optimizer(tensors, lr=recipe.target_lr, weight_decay=recipe.weight_decay, frozen=FROZEN)
    facts = optimizer.restore(folder) or {"step": 0, "spent_s": 0.0, "evals": 0}
    clock, step, evals = Clock(recipe.target_minutes, steps, spent_s=facts["spent_s"]), facts["step"], facts["evals"]
    clock.leave_out(_warm_up(tensors, optimizer, corpus, config, recipe, seed))
    last_save, trained_s, count = time.monotonic(), 0.0, 0
    while (share := clock.share(step)) < 1.0:
        begin = time.monotonic()
        loss = _step(step, share, tensors, optimizer, corpus, config, recipe, seed)
        step, count, trained_s = step + 1, count + 1, trained_s + time.monotonic() - begin
        if step % _LOG_EVERY == 0:
            speed, trained_s, count = count * recipe.rows * recipe.row_tokens / trained_s, 0.0, 0
            seen = {name: float(value) for name, value in loss.items()}
            journal.write(stage="target", step=step, share=share, tokens_s=speed, **seen)
        if clock.share(step) >= (evals + 1) * recipe.eval_every:
            evals, begin = evals + 1, time.monotonic()
            journal.write(stage="target", step=step, mini_gsm=questions.accuracy(tensors, config))
            clock.leave_out(time.monotonic() - begin)
        if needles is not None and step % _SEARCH_EVERY == 0:
            begin = time.monotonic()
            found = needles.found(tensors, config, is_sparse=share >= recipe.dense_share)
            journal.write(stage="target", step=step, needles=found)
            clock.leave_out(time.monotonic() - begin)
        if time.monotonic() - last_save > _SAVE_EVERY_S or time.monotonic() > deadline_s:
            optimizer.save(folder, {"step": step, "spent_s": clock.spent_s, "evals": evals})
            last_save = time.monotonic()
            if last_save > deadline_s:
                return None
    optimizer.save(folder, {"step": step, "spent_s": clock.spent_s, "evals": evals})
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _warm_up(
    tensors: Tensors, optimizer: Optimizer, corpus: Corpus, config: dict[str, Any], recipe: Recipe, seed: int
) -> float:
    """Compile on an accelerator what each kind of step runs, and forget the gradients; seconds that it took."""
    begin = time.monotonic()
    if not next(iter(tensors.values())).is_cuda:
        return 0.0
    for share in (0.0, recipe.dense_share, recipe.short_share):
        _losses(0, share, tensors, corpus, config, recipe, seed)[0].backward()
    optimizer.forget()
    return time.monotonic() - begin


def finished_target(folder: Path, recipe: Recipe, steps: int | None, device: torch.device) -> Tensors | None:
    """The tensors of a stage that has come to its end, without its optimizer; None where it has not."""
    facts = saved_facts(folder)
    if facts is None or Clock(recipe.target_minutes, steps, spent_s=facts["spent_s"]).share(facts["step"]) < 1.0:
        return None
    return saved_weights(folder, device)


def _step(
    step: int,
    share: float,
    tensors: Tensors,
    optimizer: Optimizer,
    corpus: Corpus,
    config: dict[str, Any],
    recipe: Recipe,
    seed: int,
) -> dict[str, Any]:
    loss, seen, loads = _losses(step, share, tensors, corpus, config, recipe, seed)
    loss.backward()
    norm = optimizer.step(schedule(step, share, recipe.warmup_steps))
    worst = balance(tensors, loads, recipe.balance_speed * (1 - share))
    return {**seen, "norm": norm, "expert_share": worst}


def _losses(
    step: int, share: float, tensors: Tensors, corpus: Corpus, config: dict[str, Any], recipe: Recipe, seed: int
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The loss to descend, its parts, and expert loads."""
    length = recipe.row_tokens if share < recipe.short_share else recipe.long_tokens
    rows = corpus.rows(recipe.rows * recipe.row_tokens // length, length + 1, seed=seed, step=step)
    device = rows.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        passed = target_forward(
            rows[:, :-1], tensors, config, is_sparse=share >= recipe.dense_share, sources=copy_sources(rows)
        )
        logits = logits_of(passed.hidden, tensors)
    token_loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    index_loss = torch.stack(passed.index_losses).mean()
    copied = passed.copy_losses[0]
    parts = {"loss": token_loss.detach(), "index_loss": index_loss.detach(), "copy_loss": copied.detach()}
    return token_loss + index_loss + recipe.copy_weight * copied, parts, passed.loads

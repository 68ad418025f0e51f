"""A loop around Megatron Core that knows nothing of us: ``torchrun megatron_loop.py OPTIMIZER FORMAT FILE [STEP...]``.

OPTIMIZER is ``plain`` or ``distributed``, FORMAT fp32, bf16 or fp16; with steps given, these overflow in one layer.
With FLOATSCOPE_TEST_ITERATION arguments and the count of steps, from that one on, are where Megatron-LM has them.
Megatron Core asks for a card by name. Where there is none the CPU takes its place: what it makes on "cuda" is made on
the CPU, and tensors there say that they are on a card.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

STEPS = 6
MICRO_BATCHES = 2
SEQUENCE, VOCABULARY = 8, 32


def put_the_cpu_in_place() -> None:
    """Of the card that this machine does not have."""

    def on_the_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            return make(*args, **kwargs)

        return made

    for name in ("empty", "ones", "tensor", "zeros"):
        setattr(torch, name, on_the_cpu(getattr(torch, name)))
    type_of = torch.Tensor.type

    def type_on_a_card(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if args or kwargs:
            return type_of(tensor, *args, **kwargs)
        return str(type_of(tensor)).replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_on_a_card  # type: ignore[assignment,method-assign]
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    # Of a card's random numbers, which nothing here draws.
    CudaRNGStatesTracker.fork = lambda *_, **__: nullcontext()


def arguments_of_megatron_lm() -> SimpleNamespace:
    """Some of them, in the module that Megatron-LM keeps all of them in."""
    module: Any = ModuleType("megatron.training.global_vars")
    first = int(os.environ["FLOATSCOPE_TEST_ITERATION"])
    module._GLOBAL_ARGS = SimpleNamespace(iteration=first, train_iters=first + STEPS, wandb_api_key="4f5c1e9ab")
    sys.modules[module.__name__] = module
    arguments: SimpleNamespace = module._GLOBAL_ARGS
    return arguments


def batches(rank: int) -> Any:  # noqa: ANN401
    """Token ids, int64[2, SEQUENCE + 1], others for each rank."""
    for number in itertools.count():
        numbers = torch.Generator().manual_seed(1000 * number + rank)
        yield torch.randint(VOCABULARY, (2, SEQUENCE + 1), generator=numbers)


def main() -> None:
    """Train a small GPT; rank 0 saves the weights and what the optimizer has said of each step."""
    kind, stored, file = sys.argv[1:4]
    overflows = frozenset(map(int, sys.argv[4:]))
    card = torch.cuda.is_available()
    if not card:
        put_the_cpu_in_place()
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.set_num_threads(1)
    torch.distributed.init_process_group("nccl" if card else "gloo")
    rank = torch.distributed.get_rank()
    if card:
        torch.cuda.set_device(rank)
    parallel_state.initialize_model_parallel(1, 1)
    torch.manual_seed(0)
    if card:
        model_parallel_cuda_manual_seed(0)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[stored]
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        use_cpu_initialization=not card,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        fp16=stored == "fp16",
        bf16=stored == "bf16",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        deallocate_pipeline_outputs=True,
    )
    inside = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
    )
    micro = itertools.count()
    if overflows:

        def overflow(grad: torch.Tensor) -> torch.Tensor:
            return grad * math.inf if next(micro) // MICRO_BATCHES in overflows else grad

        inside.get_parameter("decoder.layers.1.mlp.linear_fc2.weight").register_hook(overflow)
    if card:
        inside = inside.cuda()
    model = Float16Module(config, inside) if stored != "fp32" else inside
    parallel = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=kind == "distributed"
    )
    model = DistributedDataParallel(config, parallel, model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=0.01,
            clip_grad=0.5,
            fp16=stored == "fp16",
            bf16=stored == "bf16",
            params_dtype=dtype,
            use_distributed_optimizer=kind == "distributed",
            initial_loss_scale=2.0**12,
            hysteresis=1,
        ),
        [model],
    )
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    data = batches(rank)
    positions = torch.arange(SEQUENCE).expand(2, -1)
    mask = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool), diagonal=1)

    def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = losses.float().mean()
        return loss, {"lm loss": loss.detach().clone()}  # the schedule divides in place

    def forward(iterator: Any, model: Any) -> Any:  # noqa: ANN401
        ids = next(iterator)
        device = next(model.parameters()).device
        given = [tensor.to(device) for tensor in (ids[:, :-1], positions, mask)]
        return model(*given, labels=ids[:, 1:].to(device)), partial(loss_of)

    run = get_forward_backward_func()
    said = []
    of_megatron_lm = arguments_of_megatron_lm() if "FLOATSCOPE_TEST_ITERATION" in os.environ else SimpleNamespace()
    for step in range(STEPS):
        of_megatron_lm.curr_iteration = getattr(of_megatron_lm, "iteration", 0) + step
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = run(
            forward_step_func=forward,
            data_iterator=data,
            model=model,
            num_microbatches=MICRO_BATCHES,
            seq_length=SEQUENCE,
            micro_batch_size=2,
            forward_only=False,
        )
        scale = float(optimizer.get_loss_scale())
        updated, norm, _ = optimizer.step()
        loss = sum(float(loss["lm loss"]) for loss in losses) / MICRO_BATCHES
        said.append({"loss": loss, "norm": norm, "scale": scale, "updated": updated})
    if rank == 0:
        weights = {name: p.detach().cpu().clone() for name, p in inside.named_parameters()}
        torch.save({"weights": weights, "said": said}, file)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

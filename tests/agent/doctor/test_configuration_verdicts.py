"""Mistakes planted in configurations of each framework, and the settings that articles hand around."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from floatscope._doctor._keys import framework_of, known
from floatscope._doctor._read import UnreadableError, read
from floatscope._doctor._verdict import Verdict

Judge = Callable[..., dict[str, Verdict]]

CLEAN = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: identity
template: qwen
cutoff_len: 2048
output_dir: saves/qwen
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_steps: 10
bf16: true
flash_attn: sdpa
ddp_timeout: 1800
max_grad_norm: 1.0
"""


def changed(*lines: str, drop: str = "") -> str:
    keys = {line.partition(":")[0] for line in lines} | {drop}
    kept = [line for line in CLEAN.splitlines() if line.partition(":")[0] not in keys]
    return "\n".join([*kept, *lines, ""])


def test_a_clean_configuration_is_met_with_silence(judge: Judge) -> None:
    assert judge("clean.yaml", CLEAN, "gfx942") == {}
    assert judge("clean.yaml", CLEAN) == {}


@pytest.mark.parametrize(
    ("lines", "item", "fix"),
    [
        (["fp16: true"], "fp16", "remove fp16"),
        (["pure_bf16: true"], "pure_bf16", "keep bf16"),
        (["bf16: false", "pure_bf16: true", "fp16: true"], "pure_bf16", "remove fp16"),
        (["bf16: false", "fp16: true"], "fp16", "bf16: true"),
        (["fp16_full_eval: true", "bf16_full_eval: true"], "fp16_full_eval", "keep one"),
        (["quantization_bit: 4", "finetuning_type: full", "learning_rate: 1e-5"], "quantization_bit", "lora"),
        (["fp8: true", "quantization_bit: 4"], "fp8", "remove one"),
        (["fp8: true", "fp8_backend: torch_ao"], "fp8_backend", "torchao"),
        (["fp8_backend: te"], "fp8_backend", "fp8: true"),
        (["flash_attn: flash_attention_2"], "flash_attn", "fa2"),
        (["flash_attn: true"], "flash_attn", "fa2"),
        (["flash_attn: fa3"], "flash_attn", "sdpa"),
        (["tf32: true"], "tf32", "remove"),
        (["ddp_timeout: 180000000"], "ddp_timeout", "1800"),
        (["learning_rate: 0.1"], "learning_rate", "1.0e-4"),
        (["learning_rate: 1e-4x"], "learning_rate", "1.0e-4"),
        (["finetuning_type: full"], "learning_rate", "1.0e-5"),
        (["max_steps: 10"], "warmup_steps", "warmup_steps: 1"),
        (["warmup_ratio: 0.1"], "warmup_ratio", "keep one"),
        (["lr_scheduler_type: cosin"], "lr_scheduler_type", "cosine"),
        (["lr_scheduler_type: constant"], "lr_scheduler_type", "constant_with_warmup"),
        (["optim: adamw_torch_fusd"], "optim", "adamw_torch_fused"),
        (["gradient_accumulation_steps: 0.5"], "gradient_accumulation_steps", "1"),
        (["max_grad_norm: 0.0000152587890625"], "max_grad_norm", "1.0"),
        (["max_grad_norm: 0"], "max_grad_norm", "1.0"),
        (["load_best_model_at_end: true"], "load_best_model_at_end", "eval_strategy: steps"),
        (
            ["load_best_model_at_end: true", "eval_strategy: steps", "eval_steps: 500", "save_steps: 300"],
            "save_steps",
            "save_steps: 500",
        ),
        (["learning_rte: 1e-4"], "learning_rte", "learning_rate"),
        (["evaluation_strategy: steps"], "evaluation_strategy", "eval_strategy"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_mistake_in_llamafactory(judge: Judge, lines: list[str], item: str, fix: str) -> None:
    found = judge("train.yaml", changed(*lines), "gfx942")
    assert item in found
    assert fix in found[item].fix
    assert len(found) == 1 + (len(lines) == 3 and "fp16: true" in lines), found


def test_galore_has_rates_and_precisions_of_its_own(judge: Judge) -> None:
    lines = ["finetuning_type: full", "pure_bf16: true", "use_galore: true"]
    assert judge("train.yaml", changed(*lines, drop="bf16")) == {}
    assert set(judge("train.yaml", changed(*lines[:2], drop="bf16"))) == {"learning_rate", "pure_bf16"}


def test_a_share_as_warmup_steps_is_what_transformers_5_takes(judge: Judge) -> None:
    assert judge("train.yaml", changed("warmup_steps: 0.1", "max_steps: 100")) == {}


def test_no_precision_at_all(judge: Judge) -> None:
    assert judge("train.yaml", changed(drop="bf16"))["bf16"].value == "not set"


@pytest.mark.parametrize(
    ("chip", "status", "text"),
    [
        ("gfx90a", "wrong", "silently run as BF16"),
        ("gfx1100", "wrong", "no FP8 matrix instruction"),
        ("AMD Instinct MI210", "wrong", "no FP8 matrix instruction"),
        ("sm_80", "wrong", "no FP8 matrix instruction"),
        ("gfx942", "", ""),
        ("gfx950", "", ""),
        ("sm_90", "", ""),
        (None, "warning", "no card is known"),
    ],
)
def test_fp8_needs_a_chip_that_has_it(judge: Judge, chip: str | None, status: str, text: str) -> None:
    found = judge("train.yaml", changed("fp8: true"), *([chip] if chip else []))
    if not status:
        assert found == {}
        return
    assert set(found) == {"fp8"}
    assert found["fp8"].status == status
    assert text in found["fp8"].why


def test_bf16_on_a_chip_without_it(judge: Judge) -> None:
    assert judge("train.yaml", CLEAN, "sm_75")["bf16"].status == "wrong"
    assert "flush subnormals" in judge("t.yaml", changed("fp16: true", drop="bf16"), "gfx90a")["fp16"].why


ZERO3 = """{
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto", "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16,
  "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}, "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "overlap_comm": false, "contiguous_gradients": true, "sub_group_size": 1e9,
  "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
  "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
  "stage3_gather_16bit_weights_on_model_save": true}
}"""


def test_a_clean_pair_of_files(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "ds_z3.json").write_text(ZERO3)
    assert judge("ds.json", ZERO3) == {}
    assert judge("train.yaml", changed("deepspeed: examples/deepspeed/ds_z3.json")) == {}


@pytest.mark.parametrize(
    ("lines", "item"),
    [
        (["pure_bf16: true"], "pure_bf16"),
        (["quantization_bit: 8"], "quantization_bit"),
        (["model_name_or_path: Qwen/Qwen2.5-7B-GPTQ-Int4"], "model_name_or_path"),
        (["predict_with_generate: true"], "predict_with_generate"),
    ],
)
def test_what_zero_3_refuses(judge: Judge, tmp_path: Path, lines: list[str], item: str) -> None:
    (tmp_path / "ds_z3.json").write_text(ZERO3)
    found = judge("train.yaml", changed("deepspeed: ds_z3.json", *lines, drop="bf16" if item == "pure_bf16" else ""))
    assert set(found) == {item}
    assert found[item].status == "wrong"


@pytest.mark.parametrize(
    ("old", "new", "item"),
    [
        ('"gradient_clipping": "auto"', '"gradient_clipping": 0.5', "deepspeed gradient_clipping"),
        ('"bf16": {"enabled": "auto"}', '"bf16": {"enabled": false}', "deepspeed bf16.enabled"),
        (
            '"train_micro_batch_size_per_gpu": "auto"',
            '"train_micro_batch_size_per_gpu": 4',
            "deepspeed train_micro_batch_size_per_gpu",
        ),
    ],
)
def test_two_files_that_disagree(judge: Judge, tmp_path: Path, old: str, new: str, item: str) -> None:
    assert old in ZERO3
    (tmp_path / "ds_z3.json").write_text(ZERO3.replace(old, new))
    found = judge("train.yaml", changed("deepspeed: ds_z3.json"))
    assert set(found) == {item}
    assert '"auto"' in found[item].fix


def test_a_deepspeed_file_that_is_not_there(judge: Judge) -> None:
    assert set(judge("train.yaml", changed("deepspeed: nowhere.json"))) == {"deepspeed"}


@pytest.mark.parametrize(
    ("text", "item", "fix"),
    [
        ('{"fp16": {"enabled": true}, "bf16": {"enabled": true}}', "fp16.enabled", "set one to false"),
        ('{"fp16": {"enabled": true, "loss_scale": 1024}}', "fp16.loss_scale", "dynamic"),
        ('{"fp16": {"enabled": true, "loss_scale_window": 50}}', "fp16.loss_scale_window", "leave"),
        ('{"fp16": {"enabled": true, "min_loss_scale": 0}}', "fp16.min_loss_scale", "leave"),
        ('{"fp16": {"enabled": true, "initial_scale_power": 32}}', "fp16.initial_scale_power", "16"),
        ('{"fp16": {"enabled": true, "hysterisis": 2}}', "fp16.hysterisis", "hysteresis"),
        (
            '{"gradient_clipping": 1.0, "optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}}',
            "optimizer.params.max_grad_norm",
            "remove",
        ),
        ('{"zero_optimisation": {"stage": 2}, "fp16": {"enabled": true}}', "zero_optimisation", "zero_optimization"),
        ('{"zero_optimization": {"stage": 4}}', "zero_optimization.stage", "stage: 2"),
        (
            '{"zero_optimization": {"stage": 2, "cpu_offload": true}}',
            "zero_optimization.cpu_offload",
            "offload_optimizer",
        ),
        (
            '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}',
            "zero_optimization.offload_param",
            "stage: 3",
        ),
        ('{"amp": {"enabled": true}}', "amp", "remove amp"),
        ('{"bfloat16": {"enabled": true}}', "bfloat16", "bf16"),
        ('{"bf16": {"enabled": true}, "communication_data_type": "fp16"}', "communication_data_type", "fp32"),
        ('{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}', "train_batch_size", "leave"),
        (
            '{"train_batch_size": 8, "scheduler": {"params": {"warmup_num_steps": 100, "total_num_steps": 100}}}',
            "scheduler.params.warmup_num_steps",
            "3",
        ),
    ],
)
def test_a_mistake_in_deepspeed(judge: Judge, text: str, item: str, fix: str) -> None:
    found = judge("ds.json", text)
    assert set(found) == {item}
    assert fix in found[item].fix


ACCELERATE = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""


@pytest.mark.parametrize(
    ("old", "new", "item", "fix"),
    [
        ("mixed_precision: bf16", "mixed_precision: bf166", "mixed_precision", "bf16"),
        ("mixed_precision: bf16", "mixed_precision: fp8", "mixed_precision", "gfx942"),
        ("mixed_precision: bf16", "mixed_precision: fp16\nfp16: true", "fp16", "mixed_precision"),
        ("num_processes: 8", "num_proceses: 8", "num_proceses", "num_processes"),
        ("use_cpu: false", "use_cpu: false\nfp8_config:\n  backend: TE", "fp8_config", "mixed_precision: fp8"),
        ("distributed_type: MULTI_GPU", "distributed_type: DEEPSPEED", "deepspeed_config", "zero_stage"),
        (
            "distributed_type: MULTI_GPU",
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 5",
            "deepspeed_config.zero_stage",
            "2",
        ),
    ],
)
def test_a_mistake_in_accelerate(judge: Judge, old: str, new: str, item: str, fix: str) -> None:
    found = judge("accelerate.yaml", ACCELERATE.replace(old, new), "gfx90a")
    assert set(found) == {item}
    assert fix in found[item].fix


def test_accelerate_that_is_clean_and_one_beside_deepspeed(judge: Judge, tmp_path: Path) -> None:
    assert judge("accelerate.yaml", ACCELERATE) == {}
    (tmp_path / "ds.json").write_text('{"fp16": {"enabled": true}, "zero_optimization": {"stage": 2}}')
    beside = ACCELERATE.replace("MULTI_GPU", "DEEPSPEED")
    beside += "deepspeed_config:\n  deepspeed_config_file: ds.json\n  gradient_clipping: 1.0\n"
    assert set(judge("accelerate.yaml", beside)) == {"deepspeed_config.gradient_clipping", "mixed_precision"}


def test_arguments_of_a_shell_script(judge: Judge) -> None:
    script = """
    # as an article has it
    export HSA_OVERRIDE_GFX_VERSION=11.0.0
    export HCCL_HOME=/opt/rocm
    ROCR_VISIBLE_DEVICES=1 HIP_VISIBLE_DEVICES=1 torchrun --nproc-per-node 2 train.py \\
        --output_dir out --fp16 --bf16 true --learning_rate 1e-4 --my_own_option 3 --ddp_timeout=180000000
    """
    found = judge("train.sh", script, "gfx90a")
    assert set(found) == {"HSA_OVERRIDE_GFX_VERSION", "HCCL_HOME", "masks", "fp16", "ddp_timeout"}
    assert "gfx90a" in found["HSA_OVERRIDE_GFX_VERSION"].why
    assert "5.7 years" in found["ddp_timeout"].why


def test_hf_arguments_as_json(judge: Judge) -> None:
    text = '{"output_dir": "out", "bf16": true, "evaluation_strategy": "no", "no_cuda": false, "warmup_ratio": 2.0}'
    found = judge("args.json", text)
    assert set(found) == {"evaluation_strategy", "no_cuda", "warmup_ratio"}
    assert found["no_cuda"].fix == "write use_cpu: true"


def test_every_setting_of_the_articles_is_named(judge: Judge) -> None:
    """The YAML, the script and the shell lines that circulate for mixed precision on an MI210."""
    configuration = changed(
        "compute_type: bf16", "compute_dtype: float32", "fp8: true", "ddp_timeout: 180000000", "hysteresis: 2",
        "growth_factor: 1.3", "backoff_factor: 0.8", "growth_interval: 50", "max_grad_norm: 0.0009765625",
    )  # fmt: skip
    found = judge("article.yaml", configuration, "gfx90a")
    assert set(found) == {
        *("compute_type", "compute_dtype", "fp8", "ddp_timeout", "hysteresis"),
        *("growth_factor", "backoff_factor", "growth_interval", "max_grad_norm"),
    }
    assert "bf16: true" in found["compute_type"].fix
    script = """
import os, math, torch
os.environ["HSA_OVERRIDE_GFX_VERSION"] = "11.0.0"
os.environ["HCCL_HOME"] = "/opt/rocm"
os.environ["ROCR_VISIBLE_DEVICES"] = "0"
os.environ["HIP_VISIBLE_DEVICES"] = "0"
if torch.cuda.is_fp8_supported():
    scaler = torch.amp.GradScaler(growth_factor=1.3, backoff_factor=0.8, growth_interval=50, hysteresis=2)
scale = max(2, 2 ** (math.floor(math.log2(amax)) - 4))
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1 / scale)
if grad.abs().max() > 6.0e4 or act.abs().max() > 5.0e4 or (grad.abs() < 1e-5).float().mean() > 0.1:
    alert()
if amax > 448:
    alert()
try:
    scaler.step(optimizer)
except RuntimeError as error:
    if "overflow" in str(error):
        scaler.update()
arguments = TrainingArguments(output_dir="out", ddp_timeout=180000000)
"""
    found = judge("article.py", script, "gfx942")
    assert {item.rpartition(": ")[2] for item in found} == {
        *("HSA_OVERRIDE_GFX_VERSION", "HCCL_HOME", "masks", "is_fp8_supported", "GradScaler(hysteresis=)"),
        *("GradScaler.growth_factor", "GradScaler.backoff_factor", "GradScaler.growth_interval"),
        *("scale", "max_norm", "limit", "except ... overflow", "ddp_timeout"),
    }
    assert sum("limit" in item for item in found) >= 2


def test_training_arguments_in_a_script_are_judged_as_in_a_file(judge: Judge) -> None:
    script = """
from transformers import Trainer, TrainingArguments
args = TrainingArguments("out", fp16=True, bf16=True, warmup_step=10, eval_strategy="stepss", optim=chosen, **more,
                         evaluation_strategy="no", per_device_train_batch_size=0, ddp_timeout=180000000)
"""
    found = judge("train.py", script)
    assert {item.rpartition(": ")[2] for item in found} == {
        *("fp16", "warmup_step", "eval_strategy", "evaluation_strategy", "per_device_train_batch_size", "ddp_timeout"),
    }
    assert found["line 3: warmup_step"].why == "there is no such key; it raises TypeError"
    assert set(judge("named.py", "transformers.TrainingArguments(bf16=True, fp16=True)")) == {"line 1: fp16"}
    assert judge("other.py", "from setfit import TrainingArguments\nTrainingArguments(body_learning_rate=1e-5)") == {}
    sound = "transformers.TrainingArguments(output_dir=out, bf16=True, learning_rate=2e-5, warmup_steps=10)"
    assert judge("sound.py", sound) == {}


def test_a_script_that_does_it_right(judge: Judge) -> None:
    script = """
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16, growth_factor=2.0)
scale = 2 ** (math.floor(math.log2(448 / amax)) - 1)
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
"""
    assert judge("train.py", script, "gfx942") == {}


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("bomb.yaml", b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "references"),
        ("loop.yaml", b"a: &a [*a]\n", "references"),
        ("twice.yaml", b"bf16: true\nbf16: false\n", "line 2: the key 'bf16' comes twice"),
        ("code.yaml", b"a: !!python/object/apply:os.system ['touch /tmp/x']\n", "could not determine a constructor"),
        ("deep.yaml", b"[" * 5000, "nested deeper"),
        ("wide.yaml", b"a: [" + b"1," * 30_000 + b"1]", "over 20000 values"),
        ("broken.yaml", b"a: [1\nb: 2\n", "line 2"),
        ("list.yaml", b"- a\n", "is a list"),
        ("empty.yaml", b"", "is empty"),
        ("number.yaml", b"1: 2\n", "is no plain word"),
        ("latin.yaml", b"output_dir: caf\xe9\n", "not UTF-8 (byte 15)"),
        ("huge.yaml", b"# " + b"x" * (300 << 10), "larger than 256 KiB"),
        ("twice.json", b'{"a": {"b": 1, "b": 2}}', "the key 'b' comes twice"),
        ("broken.json", b'{"a": \n}', "line 2"),
        ("deep.json", b"[" * 100_000, "nested too deeply"),
        ("digits.json", b'{"a": ' + b"9" * 10_000 + b"}", "digits"),
        ("null.json", b"null", "is empty"),
        ("date.yaml", b"a: 2024-99-99\n", "month"),
        ("quote.sh", b"train 'a\n", "quotation"),
        ("nothing.txt", b"hello\n", "neither --options"),
        ("null.yaml", b"a: \0\n", "special characters"),
    ],
)
def test_hostile_files_are_refused_with_a_reason(tmp_path: Path, name: str, data: bytes, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=name.replace(".", r"\.")) as refused:
        read(path)
    assert text in str(refused.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.yaml", Path("/dev/zero"), Path("a\0.yaml")):
        with pytest.raises(UnreadableError):
            read(path)


def test_a_file_of_nobody(judge: Judge) -> None:
    with pytest.raises(UnreadableError, match="none of its keys belongs to llamafactory"):
        judge("other.yaml", "services:\n  web: {}\n")
    with pytest.raises(UnreadableError, match="SyntaxError"):
        judge("broken.py", "def (:\n")


def test_whose_configuration_it_is() -> None:
    assert framework_of({"fp16": {"enabled": True}}) == "deepspeed"
    assert framework_of({"fp16": True, "output_dir": "out"}) == "transformers"
    assert framework_of({"stage": "sft", "output_dir": "out"}) == "llamafactory"
    assert framework_of({"distributed_type": "NO", "fp16": True}) == "accelerate"
    assert framework_of({"services": {}}) is None


def test_the_tables_hold_what_the_frameworks_have() -> None:
    assert {"bf16", "fp16", "warmup_steps", "eval_strategy", "ddp_timeout"} <= known("transformers")
    assert {"pure_bf16", "fp8", "fp8_backend", "flash_attn", "quantization_bit"} <= known("llamafactory")
    assert not {"compute_type", "compute_dtype"} & (known("transformers") | known("llamafactory"))
    assert {"fp16", "bf16", "zero_optimization", "gradient_clipping"} <= known("deepspeed")
    assert {"mixed_precision", "fp8_config", "deepspeed_config", "num_processes"} <= known("accelerate")
    assert {"stage", "stage3_param_persistence_threshold"} <= known("deepspeed", "zero_optimization")

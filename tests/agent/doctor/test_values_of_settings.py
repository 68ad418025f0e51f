"""Values that no framework takes, one mistake a file; and files as users have them, which are met with silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from floatscope._doctor._keys import choices, known
from floatscope._doctor._verdict import Verdict
from tests.agent.doctor.test_configuration_verdicts import ACCELERATE, changed

Judge = Callable[..., dict[str, Verdict]]


def deepspeed(text: str) -> str:
    return f'{{"train_batch_size": 8, {text}}}'


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("stage: stf", "one of pt, sft"),
        ("finetuning_type: lroa", "finetuning_type: lora"),
        ("pref_loss: simppo", "pref_loss: simpo"),
        ("quantization_method: bitsandbytes", "quantization_method: bnb"),
        ("infer_dtype: fp16", "infer_dtype: float16"),
        ("eval_strategy: stepss", "eval_strategy: steps"),
        ("save_strategy: epoc", "save_strategy: epoch"),
        ("max_grad_norm: '1.0'", "max_grad_norm: 1.0, without quotes"),
        ("max_grad_norm: .nan", "remove max_grad_norm"),
        ("ddp_timeout: 30min", "ddp_timeout: a number"),
        ("lora_rank: '8'", "lora_rank: 8, without quotes"),
        ("fp16: 'false'", "fp16: false"),
        ("bf16: tru", "bf16: true, or bf16: false"),
    ],
)
def test_a_value_that_llamafactory_does_not_take(judge: Judge, line: str, fix: str) -> None:
    found = judge("train.yaml", changed(line))
    assert set(found) == {line.partition(":")[0]}
    assert fix in found[line.partition(":")[0]].fix


@pytest.mark.parametrize(("word", "items"), [("tru", {"bf16"}), ("on", {"bf16"}), ("yes", set()), ("$BF16", set())])
def test_a_word_that_is_no_truth_value_for_the_command_line(judge: Judge, word: str, items: set[str]) -> None:
    script = f"llamafactory-cli train --stage sft --do_train true --finetuning_type lora --bf16 {word}"
    assert set(judge("train.sh", script)) == items


@pytest.mark.parametrize(
    ("text", "item", "fix"),
    [
        ('"fp16": {"enabled": true, "loss_scale": "dynamic"}', "fp16.loss_scale", "0, which is dynamic"),
        ('"fp16": {"enabled": true, "loss_scale": -1}', "fp16.loss_scale", "0, which is dynamic"),
        ('"fp16": {"enabled": false, "loss_scale": Infinity}', "fp16.loss_scale", "0, which is dynamic"),
        ('"fp16": {"enabled": true, "initial_scale_power": 16.5}', "fp16.initial_scale_power", "leave"),
        ('"fp16": {"enabled": true, "hysteresis": 0}', "fp16.hysteresis", "2"),
        ('"fp16": {"loss_scale": 0}', "fp16.enabled", "true"),
        ('"fp16": {"enabled": "maybe"}', "fp16.enabled", '"enabled": true'),
        ('"fp16": true', "fp16", '{"enabled": true}'),
        ('"bf16": null', "bf16", "remove bf16"),
        ('"optimizer": "AdamW"', "optimizer", '{"type": "AdamW"}'),
        ('"scheduler": {"type": "WarmupLr"}', "scheduler.type", "type: WarmupLR"),
        ('"communication_data_type": "bfloat16"', "communication_data_type", "communication_data_type: bf16"),
        ('"data_types": {"grad_accum_dtype": "fp23"}', "data_types.grad_accum_dtype", "fp32"),
        ('"gradient_clipping": 0.0000152587890625', "gradient_clipping", "1.0"),
        ('"optimizer": {"type": "Adam", "params": {"lr": "1e-4"}}', "optimizer.params.lr", "0.0001, without quotes"),
        ('"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}', "optimizer.params.max_grad_norm", "clipping"),
        ('"gradient_accumulation_steps": 0', "gradient_accumulation_steps", "leave"),
        ('"train_micro_batch_size_per_gpu": "8"', "train_micro_batch_size_per_gpu", "leave"),
        (
            '"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}',
            "zero_optimization.offload_optimizer.device",
            "none",
        ),
        (
            '"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memoryy": true}}',
            "zero_optimization.offload_optimizer.pin_memoryy",
            "pin_memory",
        ),
        (
            '"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}',
            "zero_optimization.offload_optimizer",
            "stage: 2",
        ),
    ],
)
def test_a_value_that_deepspeed_does_not_take(judge: Judge, text: str, item: str, fix: str) -> None:
    found = judge("ds.json", deepspeed(text))
    assert set(found) == {item}
    assert fix in found[item].fix


@pytest.mark.parametrize(
    "text",
    [
        '"fp16": {"enabled": false, "loss_scale": 1024, "loss_scale_window": 100}, "bf16": {"enabled": true}',
        '"fp16": {"enabled": "true", "loss_scale_window": "1000", "hysteresis": 2.0}',
        '"zero_optimization": {"stage": "2"}',
        '"zero_optimization": true',
        '"scheduler": {"type": "CosineAnnealingLR"}',
        '"data_types": {"grad_accum_dtype": "float32"}',
    ],
)
def test_what_deepspeed_does_take(judge: Judge, text: str) -> None:
    assert judge("ds.json", deepspeed(text)) == {}


@pytest.mark.parametrize(
    ("lines", "item", "fix"),
    [
        ("distributed_type: FSPD", "distributed_type", "distributed_type: FSDP"),
        ("compute_environment: LOCAL_MACHIN", "compute_environment", "LOCAL_MACHINE"),
        ("dynamo_config:\n  dynamo_backend: inductr", "dynamo_config.dynamo_backend", "INDUCTOR"),
        ("mixed_precision: fp8\nfp8_config:\n  fp8_format: E4M3FNUZ", "fp8_config.fp8_format", "fp8_format: E4M3"),
        ("mixed_precision: fp8\nfp8_config:\n  opt_level: O3", "fp8_config.opt_level", "O1"),
        ("fsdp_config:\n  fsdp_sharding_strategy: FULL_SHRAD", "fsdp_config.fsdp_sharding_strategy", "FULL_SHARD"),
        ("fsdp_config:\n  fsdp_offload_param: true", "fsdp_config.fsdp_offload_param", "fsdp_offload_params"),
        ("fsdp_config: FULL_SHARD", "fsdp_config", "remove fsdp_config"),
        (
            "deepspeed_config:\n  zero_stage: 2\n  gradient_clipping: 0.00001",
            "deepspeed_config.gradient_clipping",
            "1.0",
        ),
        (
            "deepspeed_config:\n  zero_stage: 2\n  offload_param_device: cpu",
            "deepspeed_config.offload_param_device",
            "zero_stage: 3",
        ),
    ],
)
def test_a_value_that_accelerate_does_not_take(judge: Judge, lines: str, item: str, fix: str) -> None:
    mine = {line.partition(":")[0] for line in lines.splitlines()}
    kept = [line for line in ACCELERATE.splitlines() if line.partition(":")[0] not in mine]
    found = judge("accelerate.yaml", "\n".join([*kept, lines, ""]), "gfx942")
    assert set(found) == {item}
    assert fix in found[item].fix


def test_an_accelerate_file_without_its_kind(judge: Judge) -> None:
    found = judge("accelerate.yaml", ACCELERATE.replace("distributed_type: MULTI_GPU\n", ""))
    assert set(found) == {"distributed_type"}


def test_a_number_that_is_a_text_for_yaml(judge: Judge) -> None:
    text = "output_dir: out\nper_device_train_batch_size: 1\nlearning_rate: {}\nbf16: true\n"
    found = judge("train.yaml", text.format("1e-4"))
    assert set(found) == {"learning_rate"}
    assert found["learning_rate"].fix == "learning_rate: 1.0e-4"
    assert judge("train.yaml", text.format("2E5").replace("learning_rate", "max_steps"))["max_steps"].fix == (
        "max_steps: 2.0e+5"
    )
    assert judge("train.yaml", text.format("1.0e-4")) == {}
    assert judge("train.json", '{"output_dir": "out", "learning_rate": 1e-4}') == {}, "JSON knows it"


def test_a_truth_value_may_be_a_number(judge: Judge) -> None:
    assert judge("train.yaml", changed("bf16: 1")) == {}


CLEAN = {
    "sagemaker.yaml": """
base_job_name: accelerate-sagemaker-1
compute_environment: AMAZON_SAGEMAKER
distributed_type: DATA_PARALLEL
ec2_instance_type: ml.p3.16xlarge
iam_role_name: role
image_uri: null
mixed_precision: fp16
num_machines: 1
py_version: py310
pytorch_version: 2.6.0
region: us-east-1
transformers_version: 4.57.0
use_cpu: false
""",
    "fsdp2.yaml": """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
mixed_precision: bf16
num_machines: 1
num_processes: 2
parallelism_config:
  parallelism_config_dp_shard_size: 2
""",
    "numbered.yaml": """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  sharding_strategy: 1
  fsdp_backward_prefetch: BACKWARD_PRE
mixed_precision: 'no'
num_processes: 2
""",
    "te.yaml": """
compute_environment: LOCAL_MACHINE
distributed_type: 'NO'
dynamo_config:
  dynamo_backend: inductor
fp8_config: {amax_compute_algo: max, backend: TE, fp8_format: E4M3, margin: 0}
mixed_precision: fp8
num_processes: 1
""",
    "zero3.yaml": """
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
""",
    "qlora.yaml": changed("quantization_bit: 4", "quantization_method: bnb", "double_quantization: false"),
    "dpo.yaml": changed(
        "stage: dpo", "pref_loss: sigmoid", "eval_strategy: no", "save_strategy: epoch", "learning_rate: 5.0e-6"
    ),
    "ppo.yaml": changed("stage: ppo", "reward_model: saves/reward", "reward_model_type: full"),
    "predict.yaml": "stage: sft\ndo_predict: true\npredict_with_generate: true\noutput_dir: out\ntemplate: qwen\n",
    "merge.yaml": "model_name_or_path: a\nadapter_name_or_path: b\ntemplate: qwen\nexport_dir: out\nexport_size: 5\n",
    "grpo.yaml": """
model_name_or_path: deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
attn_implementation: flash_attention_2
bf16: true
use_vllm: true
gradient_checkpointing_kwargs: {use_reentrant: false}
learning_rate: 1.0e-06
lr_scheduler_type: cosine_with_min_lr
output_dir: data
per_device_train_batch_size: 16
reward_funcs: [accuracy, format]
""",
    "ds.json": """
{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
 "gradient_clipping": "auto", "zero_allow_untested_optimizer": true,
 "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
          "min_loss_scale": 1},
 "bf16": {"enabled": "auto"},
 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95], "weight_decay": "auto"}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"}},
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                       "offload_param": {"device": "nvme", "nvme_path": "/local"}, "sub_group_size": 1e9,
                       "reduce_bucket_size": "auto", "stage3_gather_16bit_weights_on_model_save": true}}
""",
}


@pytest.mark.parametrize("name", list(CLEAN))
def test_what_users_have_is_met_with_silence(judge: Judge, name: str) -> None:
    assert judge(name, CLEAN[name], "gfx942") == {}


def test_the_tables_of_values_belong_to_settings_that_exist() -> None:
    assert set(choices("llamafactory")) <= known("llamafactory")
    assert set(choices("transformers")) <= known("transformers")
    for framework in ("deepspeed", "accelerate"):
        assert {path.partition(".")[0] for path in choices(framework)} <= known(framework)
    both = known("llamafactory") | known("transformers")
    for framework in ("llamafactory", "transformers"):
        assert known(framework, "numbers") | known(framework, "switches") <= both

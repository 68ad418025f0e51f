"""Files that were written to break their reader, and files that are right and look odd."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from floatscope._doctor._lint import lint
from floatscope._doctor._read import UnreadableError, read
from floatscope._doctor._shell import exported_and_options
from floatscope._doctor._verdict import Verdict

Judge = Callable[..., dict[str, Verdict]]

DIGITS = "9" * 400
MANY = [f"k{n}" for n in range(2000)]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("null.yaml", "stage: sft\nnull: 1\n", "the key None is no plain word"),
        ("no.yaml", "stage: sft\nno: 1\n", "the key False is no plain word"),
        ("zero.yaml", "stage: sft\n0: 1\n", "the key 0 is no plain word"),
        ("inside.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {1: 2}\n", "the key 1 is no plain word"),
        ("merged.yaml", "stage: sft\n<<: {no: 1}\n", "the key False is no plain word"),
        ("whole.yaml", 'stage: !!int ""\n', "does not fit its tag"),
        ("float.yaml", 'stage: !!float ""\n', "does not fit its tag"),
        ("truth.yaml", "stage: !!bool x\n", "does not fit its tag"),
        ("date.yaml", "stage: !!timestamp foo\n", "does not fit its tag"),
        ("hexadecimal.yaml", f"stage: sft\nfoo: 0x{'f' * 8000}\n", "a number of 32000 bits"),
        ("sexagesimal.yaml", f"stage: sft\nfoo: {':'.join(['59'] * 5000)}\n", "bits; no setting is that large"),
        ("digits.json", f'{{"stage": "sft", "learning_rate": {DIGITS}}}', "bits; no setting is that large"),
        ("deep.json", f'{{"stage": {"[" * 800}{"]" * 800}}}', "nested deeper than 32 levels"),
        ("wide.json", f'{{"stage": [{",".join(["1"] * 30_000)}]}}', "over 20000 values"),
        ("many.json", "{" + ",".join(f'"{key}": 1' for key in MANY) + "}", "more than 1000 keys"),
        ("many.sh", "train " + " ".join(f"--{key} 1" for key in MANY), "more than 1000 options"),
        ("quote.sh", "a=1\nb='\n\n", "line 2: No closing quotation"),
    ],
    ids=lambda value: value if "." in value and "\n" not in value and len(value) < 20 else "",
)
def test_what_breaks_a_reader_is_refused_with_a_reason(tmp_path: Path, name: str, text: str, why: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UnreadableError, match=why):
        lint(read(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("inf.json", ('{"fp16": {"enabled": true}, "scheduler": {"params": {"warmup_num_steps": Infinity, '
                     '"total_num_steps": Infinity, "warmup_max_lr": NaN}}, "optimizer": {"params": {"lr": NaN}}}')),
        ("inf.yaml", "output_dir: x\nwarmup_steps: .inf\nmax_steps: .inf\nwarmup_ratio: .nan\nmax_grad_norm: .inf\n"),
        ("tiny.json", ('{"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1e-200, '
                      '"gradient_accumulation_steps": 1e-200}')),
        ("digits.py", f"if x > {DIGITS}: pass\nif x > 0x{'f' * 9000}: pass\nGradScaler(foo=0x{'f' * 9000})\n"),
        ("types.yaml", ("stage: []\nfinetuning_type: {}\nflash_attn: []\nfp8_backend: {a: b}\nlr_scheduler_type: {}\n"
                       "optim: [1]\neval_strategy: []\nquantization_bit: [4]\nlearning_rate: !!binary aGk=\n"
                       "load_best_model_at_end: true\nsave_strategy: {}\nmax_grad_norm: []\nddp_timeout: {}\n"
                       "deepspeed: [1]\nmodel_name_or_path: 2001-01-01\nfp16: !!set {a}\nbf16: 1.5\n")),
        ("types.json", ('{"train_batch_size": [], "fp16": {"enabled": [], "loss_scale": {}}, "bf16": [], '
                       '"zero_optimization": {"stage": [1], "offload_param": {"device": []}}, "optimizer": 1}')),
        ("accelerate.yaml", "distributed_type: [1]\nmixed_precision: {a: 1}\nfp8_config: [1]\ndeepspeed_config: 5\n"),
        ("surrogate.json", '{"stage": "\\ud800", "\\ud800": 1}'),
        ("mask.sh", f"export HIP_VISIBLE_DEVICES={'9' * 5000} ROCR_VISIBLE_DEVICES={'9' * 5000}\n"),
        ("mask.py", f"import os\nos.environ['HIP_VISIBLE_DEVICES'] = '{'9' * 5000}'\n"),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)  # fmt: skip
@pytest.mark.parametrize("chips", [(), ("gfx90a",), ("sm_90", "gfx942")], ids=["none", "one", "two"])
def test_values_of_the_wrong_kind_are_judged_or_passed_over(
    tmp_path: Path, name: str, text: str, chips: tuple[str, ...]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert lint(read(path), chips=chips)


def test_a_deepspeed_file_that_cannot_be_reached_is_a_verdict(judge: Judge, tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    for named in ("x" * 5000, "a\\0b", str(loop), str(tmp_path)):
        assert judge("long.yaml", f'stage: sft\nbf16: true\ndeepspeed: "{named}"\n')["deepspeed"].status == "wrong"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(100 << 20)
    for name, why in (("pipe.yaml", "is no file"), ("loop.yaml", "cannot read"), ("long.json", "larger than")):
        with pytest.raises(UnreadableError, match=why):
            read(tmp_path / name)


def test_a_folder_that_is_not_ours_is_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked/ds.json").write_text("{}")
    path = tmp_path / "locked.yaml"
    path.write_text(f"stage: sft\nbf16: true\ndeepspeed: {tmp_path}/locked/ds.json\n")
    document = read(path)
    assert [verdict.item for verdict in lint(document) if verdict.status != "ok"] == []
    (tmp_path / "locked").chmod(0)
    user = os.geteuid()
    # For root no folder is locked.
    os.seteuid(65534 if user == 0 else user)
    try:
        (verdict,) = [verdict for verdict in lint(document) if verdict.status != "ok"]
    finally:
        os.seteuid(user)
        (tmp_path / "locked").chmod(0o700)
    assert (verdict.item, verdict.status) == ("deepspeed", "wrong")


SCRIPT = """#!/bin/bash
# don't mind the apostrophe
set -euo pipefail
LR=2e-4
GPUS=${GPUS:-8}
export CUDA_VISIBLE_DEVICES=$GPU_LIST HIP_VISIBLE_DEVICES="0,1"
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS \\
    --nnodes 1
"
cat > hosts <<'EOF'
it's a here-document, --fp16 true
EOF
torchrun $DISTRIBUTED_ARGS src/train.py \\
    --output_dir "$OUT" --bf16 $BF16 --do_train \\
    --learning_rate $LR --per_device_train_batch_size ${BATCH} --max_grad_norm 1.0 \\
    --run_name "a  b" > log.txt 2>&1 &
wait
"""


def test_a_shell_script_as_people_write_it(judge: Judge) -> None:
    environment, options = exported_and_options(SCRIPT)
    assert {"LR": "2e-4", "HIP_VISIBLE_DEVICES": "0,1"}.items() <= environment.items()
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert options == {
        "output_dir": None,
        "bf16": None,
        "do_train": True,
        "learning_rate": 2e-4,
        "per_device_train_batch_size": None,
        "max_grad_norm": 1.0,
        "run_name": "a  b",
    }
    assert judge("train.sh", SCRIPT) == {}


def test_a_variable_that_holds_options_is_taken_apart() -> None:
    environment, options = exported_and_options('A="--fp16 true"\nB="$A --bf16"\npython train.py $B --x="${A}"\n')
    assert options == {"fp16": True, "bf16": True, "x": "--fp16 true"}
    assert environment == {"A": "--fp16 true", "B": "--fp16 true --bf16"}


def test_variables_that_double_have_an_end() -> None:
    environment, _ = exported_and_options("A=xxxxxxxx\n" + "A=$A$A\n" * 60)
    assert len(environment["A"]) <= 1 << 14


@pytest.mark.parametrize("value", ["$LR", "`lr`", "$(lr)", "${LR:-1e-4}", "${LR}e-4"])
def test_what_only_a_shell_knows_is_not_judged(judge: Judge, value: str) -> None:
    assert judge("train.sh", f"python train.py --output_dir out --learning_rate {value} --ddp_timeout {value}") == {}


@pytest.mark.parametrize(
    "text",
    [
        (
            '{"output_dir": "x", "model_name_or_path": "gpt2", "dataset_name": "wikitext", "block_size": 128, '
            '"bf16": true, "do_train": true, "max_train_samples": 9, "preprocessing_num_workers": 4, '
            '"validation_split_percentage": 5}'
        ),
        (
            '{"output_dir": "x", "model_name_or_path": "gpt2", "dtype": "bfloat16", "lora_target_modules": ["q"], '
            '"max_seq_length": 2048, "load_in_4bit": true, "attn_implementation": "sdpa", "bf16": true, "lora_r": 8}'
        ),
    ],
    ids=["run_clm", "trl"],
)
def test_arguments_of_a_script_on_transformers_are_its_own(judge: Judge, text: str) -> None:
    """HfArgumentParser takes several dataclasses, and only TrainingArguments are transformers'."""
    assert judge("arguments.json", text) == {}
    assert set(judge("arguments.json", text.replace('"bf16"', '"bf-16"'))) == {"bf-16"}
